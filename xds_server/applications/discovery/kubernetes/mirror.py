"""The copy of an API server's objects: what to ask next, and what each answer means. Pure.

Rules:

1. A whole list first, page by page; only a whole list replaces what is in force. It asks for no
   version, so that the server answers from its store and not from a replica that is behind.
2. Then a watch from the list's version; each event and each bookmark moves the version on. A watch
   that ends goes on from there, without a list.
3. A version that is not kept any more (410, as a status or as an event), or one that the server
   does not know yet, means a new list; what is in force stays until it is whole. A list whose
   continuation expires ``MAX_EXPIRED`` times is asked for in one page.
4. A store that was restored has lower versions, of which a watch from a higher one is told nothing
   at all. So there is a new list where the server could not be reached, after a watch without a
   word (bookmarks come each minute), and where a version goes back. Also after ``MAX_FAILED``
   watches in a row that were refused, and after ``LIST_AGAIN_S`` in any case: no loss is for ever.
5. At most ``MAX_SLICES`` slices and ``MAX_ENTRIES`` endpoints in all are kept, and as many of
   other objects as is said there; more are an error and change nothing in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from xds_server.applications.discovery.kubernetes.answers import ExpiredError
from xds_server.applications.discovery.kubernetes.slices import (
    Slice,
    TooManyError,
    name_of,
    observe,
    reduce,
)
from xds_server.applications.discovery.values import MAX_ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xds_server.applications.discovery.kubernetes.answers import Event, Page, Verb
    from xds_server.applications.discovery.kubernetes.slices import Sighting
    from xds_server.fleet.model.kubernetes import KubernetesSpec

PAGE: Final = 250
"""Slices of a page: each has up to 1,000 endpoints, most have up to 100."""
MAX_SLICES: Final = 2048
MAX_ENTRIES: Final = 4 * MAX_ENDPOINTS
"""A pod has an entry per address family, and one per Service."""
MAX_EXPIRED: Final = 2
MAX_FAILED: Final = 3
LIST_AGAIN_S: Final = 1800.0


_Item = TypeVar("_Item")


class MirrorBounds(NamedTuple):
    """Most objects that a copy keeps, and what to say of more."""

    items: int
    entries: int
    """Of all objects together."""
    sentence: str


class ObjectMirror(Generic[_Item]):
    """Follows the objects that a query selects; see the module's rules.

    Args:
        query: The selectors of each request.
        reduce: Returns what is kept of an object, ``None`` for one that does not count; raises
            ``BadAnswerError``.
        bounds: Most objects.
        size: Returns the number of entries of an object.
    """

    def __init__(
        self,
        query: Mapping[str, str],
        reduce: Callable[[Mapping[str, Any]], _Item | None],
        bounds: MirrorBounds,
        size: Callable[[_Item], int] = lambda _: 1,
    ) -> None:
        self._query = dict(query)
        self._reduce = reduce
        self._bounds = bounds
        self._size = size
        self._items: dict[str, _Item] = {}
        self._entries = 0
        self._listed: dict[str, _Item] = {}
        """Pages of the list that is not whole yet."""
        self._more = ""
        self._version = ""
        """Where the watch goes on; empty = list."""
        self._expired = 0
        self._failed = 0
        self._since = 0.0
        self.whole = False
        """There was a whole list."""

    @property
    def verb(self) -> Verb:
        """What to do next."""
        return "watch" if self._version else "list"

    @property
    def items(self) -> Mapping[str, _Item]:
        """The objects in force, by name."""
        return self._items

    def parameters(self) -> dict[str, str]:
        """Return the query of the next request."""
        asked = dict(self._query)
        if self._version:
            return {
                **asked,
                "watch": "1",
                "resourceVersion": self._version,
                "allowWatchBookmarks": "true",
            }
        if self._expired < MAX_EXPIRED:
            asked["limit"] = str(PAGE)
        if self._more:
            asked["continue"] = self._more
        return asked

    def page(self, page: Page, now: float) -> bool:
        """Take a page; return whether the list is whole.

        Args:
            page: The answer to a list.
            now: Monotonic time in seconds.

        Raises:
            BadAnswerError: An item is not what it should be; the list begins again.
            TooManyError: There are more objects than are kept; the list begins again.
        """
        try:
            for item in page.items:
                reduced = self._reduce(item)
                if reduced is not None:
                    self._listed[name_of(item)] = reduced
            self._check(len(self._listed), self._entries_of(self._listed))
        except Exception:
            self.again()
            raise
        self._more = page.more
        if page.more:
            return False
        self._items, self._entries = self._listed, self._entries_of(self._listed)
        self._version = page.version
        self._listed = {}
        self._expired = self._failed = 0
        self._since = now
        self.whole = True
        return True

    def change(self, event: Event) -> bool:
        """Take an event; return whether an object changed.

        Raises:
            ExpiredError: Its version is before the last one: the store is another.
            BadAnswerError: Its object is not what it should be; a new list follows.
            TooManyError: There are more objects than are kept; a new list follows.
        """
        self._failed = 0
        if _before(event.version, self._version):
            raise ExpiredError(f"version {event.version} follows {self._version}")
        if event.kind == "BOOKMARK":
            self._version = event.version
            return False
        try:
            name = name_of(event.object)
            reduced = None if event.kind == "DELETED" else self._reduce(event.object)
            before = self._items.get(name)
            grown = self._size_of(reduced) - self._size_of(before)
            more = int(before is None and reduced is not None)
            self._check(len(self._items) + more, self._entries + grown)
        except Exception:
            self.again()
            raise
        self._version = event.version
        if reduced == before:
            return False
        self._entries += grown
        if reduced is None:
            del self._items[name]
        else:
            self._items[name] = reduced
        return True

    def expired(self) -> None:
        """Begin a new list: the version or the continuation is not kept any more."""
        self._expired = self._expired + 1 if self._more else 0
        self.again()

    def failed(self) -> None:
        """Note that a request was refused for another reason."""
        self._failed += 1
        if not self._version or self._failed >= MAX_FAILED:
            self.again()

    def again(self) -> None:
        """Begin a new list; what is in force stays until it is whole."""
        self._version = self._more = ""
        self._listed = {}

    def aged(self, now: float) -> None:
        """Begin a new list if the last one is older than ``LIST_AGAIN_S``."""
        if self._version and now - self._since >= LIST_AGAIN_S:
            self.again()

    def _check(self, items: int, entries: int) -> None:
        if items > self._bounds.items or entries > self._bounds.entries:
            raise TooManyError(self._bounds.sentence)

    def _size_of(self, one: _Item | None) -> int:
        return 0 if one is None else self._size(one)

    def _entries_of(self, items: Mapping[str, _Item]) -> int:
        return sum(map(self._size, items.values()))


class Mirror(ObjectMirror[Slice]):
    """Follows the slices that a selector matches.

    Args:
        spec: Which slices, and what of them.
        max_slices: Most slices that are kept.
    """

    def __init__(self, spec: KubernetesSpec, max_slices: int = MAX_SLICES) -> None:
        sentence = (
            f"the selector {spec.label_selector!r} matches more than {max_slices} EndpointSlices "
            f"or {MAX_ENTRIES} endpoints in the namespace {spec.namespace!r}: narrow it"
        )
        super().__init__(
            {"labelSelector": spec.label_selector},
            lambda found: reduce(found, spec),
            MirrorBounds(max_slices, MAX_ENTRIES, sentence),
            lambda one: len(one.entries),
        )
        self._spec = spec

    @property
    def slices(self) -> Mapping[str, Slice]:
        """The slices in force, by name."""
        return self.items

    def seen(self) -> Sighting:
        """Return what the slices in force say.

        Raises:
            TooManyError: They have more endpoints than a pool can.
        """
        return observe(self.items, self._spec)


def _before(version: str, last: str) -> bool:
    """Return whether a version is before another; versions that are no numbers never are."""
    both = version.isascii() and version.isdigit() and last.isascii() and last.isdigit()
    return both and int(version) < int(last)
