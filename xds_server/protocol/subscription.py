"""What one client asked for of one type (xDS protocol, "How the client specifies what resources").

Rules:

1. An empty first request is the legacy wildcard, where the type allows it; ``*`` is the explicit
   one, alone or beside names. Names alone end a wildcard in the state-of-the-world variant, and
   are added to it in the delta variant.
2. Once a state-of-the-world client gave any name, an empty list means "nothing".
3. Names of resources that do not exist stay subscribed.
4. A client holds at most ``MAX_NAMES`` names per type; a request above that changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xds_server.protocol.messages import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

WILDCARD: Final = "*"
MAX_NAMES: Final = 65_536
"""Names that one client may hold per type."""

MAX_NAME_CHARS: Final = 2048
"""Characters of one name."""


class Subscription:
    """One client's subscription to one type.

    Attributes:
        wildcard: The client wants every resource of the type.
        names: The names that it asked for, ``*`` not among them.
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
        """Nothing is wanted."""
        return not self.wildcard and not self.names

    def wants(self, name: str) -> bool:
        """Tell whether the client wants the resource of this name."""
        return self.wildcard or name in self.names

    def replace(self, names: Collection[str]) -> None:
        """Take a state-of-the-world request's whole list.

        Raises:
            ProtocolError: The list exceeds a bound; nothing has changed.
        """
        wanted = _checked(names)
        if wanted:
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
            The names that the client expects an answer for, whatever the server believes it
            holds (those subscribed now, and those unsubscribed by name that a wildcard still
            covers), and whether a wildcard began.

        Raises:
            ProtocolError: The lists exceed a bound; nothing has changed.
        """
        added, dropped = _checked(subscribe), _checked(unsubscribe)
        legacy = not self._started and self._legacy and not added
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
    found = frozenset(names)
    if len(found) > MAX_NAMES:
        raise ProtocolError(f"more than {MAX_NAMES} names in one request; use the wildcard *")
    for name in found:
        if not name or len(name) > MAX_NAME_CHARS:
            raise ProtocolError(f"a resource name must have 1 to {MAX_NAME_CHARS} characters")
    return found
