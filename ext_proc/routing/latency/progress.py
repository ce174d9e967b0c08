"""Progress: which prompts replicas have computed, as their pages tell. Pure.

It is needed where the proxy's log does not tell first tokens.

Rules:

1. Engines compute prompts in the order in which they arrive. So a counter of first tokens that grew
   by ``k`` tells that ``k`` prompts are done: those that have ended, and the oldest of the others.
   The mean of the seconds that it counted is that of their times to the first token.
2. Without such a counter, a queue of ``q`` requests tells that all but the latest ``q`` prompts
   have left it. The last of these may still be under way, so it counts as waiting. Where requests
   are queued at two pages, the engine was busy between them, and the work that left the queue tells
   its speed. A queue that is not all that waits (``saturated``) tells nothing.
3. Engines serve other clients, too. ``k`` and ``q`` are multiplied by this worker's share of the
   requests in the engine, over the latest ``MEMORY`` pages or so, and work is divided by it. The
   engine's seconds tell of our prompts only while this picker's share is ``ALONE`` or more.
4. The first page only begins to count; so does a counter that fell, and a replica that restarted.

Memory: at most ``MAX_PENDING`` prompts for each replica whose page tells; the oldest are dropped.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.ticket import Ticket

MAX_PENDING: Final = 4_096
MEMORY: Final = 64.0
ALONE: Final = 0.9
"""Also the share of the counted first tokens that must be known to be of our prompts."""
LEAST_SHARE: Final = 0.05
"""Of a smaller part of the engine's requests nothing is concluded for the rest."""


class Computed(NamedTuple):
    """What happened on a replica since the page before."""

    tickets: Sequence[Ticket]
    """The prompts that are done."""
    mean_s: float | None = None
    """Their mean seconds to the first token by the engine; ``None`` = unknown."""
    busy_s: float = 0.0
    """Seconds in which there was work in the queue throughout; 0 = not known to be."""
    share: float = 1.0
    """Share of our prompts in what the engine did."""


class _Page:
    """What is known of one replica."""

    __slots__ = ("all", "at", "ended", "first_tokens", "ours", "own", "pending", "queued", "rest")

    def __init__(self) -> None:
        self.first_tokens: tuple[float, float] | None = None
        """Their counter and the sum of their seconds, by the latest page that had them."""
        self.queued = 0.0
        """Requests in the queue by the latest page, and when it was read, monotonic seconds."""
        self.at = 0.0
        self.pending: dict[int, Ticket] = {}
        """Prompts that are not known to be done, by ticket id."""
        self.ended: dict[int, float] = {}
        """When those of them ended that have, monotonic seconds."""
        self.rest = 0.0
        """The part of a further prompt of ours that the engine counted."""
        self.own = self.ours = self.all = 0.0
        """Sums over the latest pages of requests in flight: this worker's, this picker's, all."""

    def share(
        self, in_flight: int, others: int, running: float | None, queued: float | None
    ) -> None:
        """Note how many of the engine's requests are ours."""
        if running is None:
            return
        keep = 1.0 - 1.0 / MEMORY
        whole = running + (queued or 0.0)
        self.own = keep * self.own + in_flight - others
        self.ours = keep * self.ours + in_flight
        self.all = keep * self.all + whole

    def waited_s(self, queued: float, at: float) -> float:
        """Return how long the first of the queue has waited, if it is ours; else 0."""
        share = min(1.0, self.own / self.all) if self.all else 0.0
        ours = int(queued * share)
        if not ours:
            return 0.0
        ended = self.ended
        sent = [each.at for each in self.pending.values() if each.at < at and each.id not in ended]
        return at - sent[-ours] if 0 < ours <= len(sent) else 0.0

    def done_before(self, at: float) -> list[Ticket]:
        """Take out the prompts that had ended by then."""
        found = [each for each, ended in self.ended.items() if ended < at]
        return [self.take(each) for each in found]

    def take(self, ticket_id: int) -> Ticket:
        """Take a prompt out."""
        self.ended.pop(ticket_id, None)
        return self.pending.pop(ticket_id)


class Progress:
    """The prompts that replicas have not computed yet, as far as their pages tell."""

    def __init__(self) -> None:
        self._pages: dict[str, _Page] = {}
        self.at = self.waited_s = 0.0
        self.told: Collection[str] = self._pages
        """Ids of endpoints whose pages tell; only their prompts are noted."""

    def sent(self, ticket: Ticket) -> None:
        """Note a prompt that was sent to a replica of ``told``."""
        page = self._pages[ticket.endpoint.id]
        page.pending[ticket.id] = ticket
        if len(page.pending) > MAX_PENDING:
            page.take(next(iter(page.pending)))

    def ended(self, ticket: Ticket, now: float, *, done: bool) -> None:
        """Note that a prompt ended: ``done``, or without an answer, or on another replica."""
        page = self._pages.get(ticket.endpoint.id)
        if page is None or ticket.id not in page.pending:
            return
        if done:
            page.ended[ticket.id] = now
        else:
            page.take(ticket.id)

    def forget(self, endpoint: str) -> None:
        """Forget a replica that is removed."""
        self._pages.pop(endpoint, None)

    def observe(
        self, endpoint: str, readings: Sequence[Reading], in_flight: int, others: int
    ) -> Computed | None:
        """Take the latest readings of a replica; ``None`` = they tell nothing new.

        Args:
            endpoint: Its id.
            readings: One for each model.
            in_flight: This picker's requests in flight on it.
            others: How many of them were sent by peer workers.
        """
        counted = [
            (each.first_tokens, each.first_tokens_s)
            for each in readings
            if each.first_tokens is not None and each.first_tokens_s is not None
        ]
        waiting = [each.queued - (each.deferred or 0.0) for each in readings if each.queued]
        queued = sum(waiting) if any(each.queued is not None for each in readings) else None
        if not counted and queued is None:
            self._pages.pop(endpoint, None)
            return None
        page = self._pages.get(endpoint)
        at = min(each.at for each in readings)
        if page is None:
            page = self._pages[endpoint] = _Page()
            page.at = at
        running = [each.running for each in readings if each.running is not None]
        page.share(in_flight, others, sum(running) if running else None, queued)
        self.waited_s = page.waited_s(queued or 0.0, at)
        self.at = at
        if counted:
            first_tokens = sum(each[0] for each in counted), sum(each[1] for each in counted)
            before, page.first_tokens = page.first_tokens, first_tokens
            return None if before is None else _by_counter(page, before, first_tokens, at)
        if queued is None or any(each.saturated for each in readings):
            page.queued = 0.0
            return None
        return _by_queue(page, queued, at)


def _by_counter(
    page: _Page, before: tuple[float, float], now: tuple[float, float], at: float
) -> Computed | None:
    grown, took = now[0] - before[0], now[1] - before[1]
    if grown <= 0.0 or took < 0.0:
        return None
    alone = not page.all or page.ours >= ALONE * page.all
    share = min(1.0, page.own / page.all) if page.all else 1.0
    page.rest += grown if share >= ALONE else grown * share
    done = page.done_before(at)
    for each in list(page.pending)[: max(0, int(page.rest) - len(done))]:
        done.append(page.take(each))
    page.rest = max(page.rest - len(done), 0.0) % 1.0
    if not done:
        return None
    known = alone and share >= LEAST_SHARE and ALONE <= len(done) / (grown * share) <= 1.0 / ALONE
    return Computed(done, took / grown if known else None)


def _by_queue(page: _Page, queued: float, at: float) -> Computed | None:
    share = min(1.0, page.own / page.all) if page.all else 0.0
    done = page.done_before(at)
    sent = [each.id for each in page.pending.values() if each.at < at]
    done += [page.take(each) for each in sent[: max(0, len(sent) - ceil(queued * share) - 1)]]
    busy = at - page.at if page.queued and queued and share >= LEAST_SHARE else 0.0
    page.queued, page.at = queued, at
    return Computed(done, busy_s=max(busy, 0.0), share=share) if done or busy > 0.0 else None
