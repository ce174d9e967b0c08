"""Which metrics pages other members of a group read, so that this one need not. Pure.

Rules:

1. Of the members that can read a page, the one with the lowest id reads it: a member stops when it
   hears readings of one before it, and takes them. Those of members after it are not taken.
2. It reads the page itself again when that member fails to read it or is gone, or when its last
   readings are more than ``FRESH_S`` old. That a member cannot read a page says nothing else.
3. A member hears a restart from the one whose readings it takes.
4. Each judges each page by what it hears, so there is no vote: where a link works one way only, two
   members read, and none relies on one that it does not hear.
5. At most ``MAX_PAGES`` are left to others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.candidates import FRESH_S
from ext_proc.telemetry.news import GPU, PAGE, PUSH, ReadingsUpdate, Restarted, ScrapeFailed

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PAGES: Final = 16_384
PAGE_NEWS: Final = (ReadingsUpdate, Restarted, ScrapeFailed)
Page = tuple[str, str]
"""Endpoint and source."""


class _Heard(NamedTuple):
    """The latest readings of a page."""

    member: str
    at: float
    """Their time by this machine's clock, monotonic seconds."""


class PageReaders:
    """What members read.

    Args:
        own: Id of this one.
        on_left: Called with the pages that others read, whenever they change.
    """

    def __init__(self, own: str, on_left: Callable[[frozenset[Page]], None]) -> None:
        self._own = own
        self._on_left = on_left
        self._left: frozenset[Page] = frozenset()
        self._heard: dict[Page, _Heard] = {}

    def heard(
        self, member: str, news: ReadingsUpdate | Restarted | ScrapeFailed, now: float
    ) -> bool:
        """Return whether a member's news, its time moved to this clock, is to be taken."""
        if isinstance(news, ReadingsUpdate):
            if news.source in {PAGE, GPU}:
                return self._reads(member, news, now)
            return news.source == PUSH
        page = news.endpoint, PAGE
        found = self._heard.get(page)
        if found is None or found.member != member:
            return False
        if isinstance(news, ScrapeFailed):
            del self._heard[page]
            return False
        return True

    def _reads(self, member: str, news: ReadingsUpdate, now: float) -> bool:
        page = news.endpoint, news.source
        found = self._heard.get(page)
        if member >= self._own or now - news.at > FRESH_S:
            return False
        if found is None:
            if len(self._heard) >= MAX_PAGES:
                return False
        elif found.member < member and now - found.at <= FRESH_S:
            return False
        self._heard[page] = _Heard(member, news.at)
        return True

    def lost(self, member: str | None) -> None:
        """Note that a member is gone."""
        self._heard = {page: each for page, each in self._heard.items() if each.member != member}

    def leave(self, now: float) -> None:
        """Tell which pages are left to others, if they have changed."""
        late = [page for page, each in self._heard.items() if now - each.at > FRESH_S]
        for page in late:
            del self._heard[page]
        if self._left != self._heard.keys():
            self._left = frozenset(self._heard)
            self._on_left(self._left)
