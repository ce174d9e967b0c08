"""One client's subscription to one type.

Source: xDS protocol, "How the client specifies what resources to return".

Rules:

1. An empty first request is the legacy wildcard if the type allows it. ``*`` is the explicit
   wildcard, alone or together with names. A list of names alone ends a wildcard in the
   state-of-the-world variant; in the delta variant the names are added to it.
2. After a state-of-the-world client has sent any name, an empty list means no resources.
3. Names of resources that do not exist stay subscribed.
4. A client subscribes to at most ``MAX_NAMES`` names per type; a request above this bound changes
   nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xds_server.protocol.messages import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

WILDCARD: Final = "*"
MAX_NAMES: Final = 65_536
"""Most names to which one client may subscribe per type."""

MAX_NAME_CHARS: Final = 2048
"""Most characters in a name."""


class Subscription:
    """One client's subscription to one type.

    Attributes:
        wildcard: The client subscribes to every resource of the type.
        names: The names to which it subscribes, without ``*``.
    """

    __slots__ = ("_legacy", "_named_before", "_started", "names", "wildcard")

    def __init__(self, *, legacy_wildcard: bool) -> None:
        self.wildcard = False
        self.names: frozenset[str] = frozenset()
        self._legacy = legacy_wildcard
        self._named_before = False
        self._started = False

    @property
    def empty(self) -> bool:
        """No resource is subscribed."""
        return not self.wildcard and not self.names

    def wants(self, name: str) -> bool:
        """Return whether the client subscribes to this name."""
        return self.wildcard or name in self.names

    def replace(self, names: Collection[str]) -> None:
        """Replace the subscription by the list of a state-of-the-world request.

        Raises:
            ProtocolError: The list exceeds a bound; nothing has changed.
        """
        wanted = _checked(names)
        if names:
            self._named_before = True
            self.wildcard = WILDCARD in wanted
        else:
            self.wildcard = self._legacy and not self._named_before
        self.names = wanted - {WILDCARD}
        self._started = True

    def change(
        self, subscribe: Collection[str], unsubscribe: Collection[str]
    ) -> tuple[frozenset[str], bool]:
        """Apply a delta request.

        Returns:
            The names for which the client expects an answer, even if the server believes that it
            holds them (names subscribed by this request, and names unsubscribed by it that a
            wildcard still covers), and whether a wildcard began with this request.

        Raises:
            ProtocolError: The lists exceed a bound; nothing has changed.
        """
        added, dropped = _checked(subscribe), _checked(unsubscribe)
        legacy = not self._started and self._legacy and not subscribe
        names = (self.names | added) - dropped - {WILDCARD}
        if len(names) > MAX_NAMES:
            raise ProtocolError(f"more than {MAX_NAMES} names subscribed; use the wildcard *")
        before = self.wildcard
        self.wildcard = (before or legacy or WILDCARD in added) and WILDCARD not in dropped
        expected = (added - dropped) | (dropped & self.names if self.wildcard else frozenset())
        self.names = names
        self._started = True
        return expected - {WILDCARD}, self.wildcard and not before


def _checked(names: Iterable[str]) -> frozenset[str]:
    """Return the names; an empty one names nothing, and is ignored.

    Raises:
        ProtocolError: The names exceed a bound.
    """
    found = frozenset(names) - {""}
    if len(found) > MAX_NAMES:
        raise ProtocolError(f"more than {MAX_NAMES} names in one request; use the wildcard *")
    for name in found:
        if len(name) > MAX_NAME_CHARS:
            raise ProtocolError(f"a resource name must have at most {MAX_NAME_CHARS} characters")
    return found
