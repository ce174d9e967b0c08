"""An accepted difference between a call to the gateway and one to a replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Difference:
    """An accepted difference.

    It explains a differing facet if ``gateway`` has it, and both sides have the values given: a
    callable checks a value, ``...`` is any.
    """

    name: str
    what: str
    """What the gateway does, for the documentation."""
    why: str
    gateway: Mapping[str, Any]
    """The gateway's values of the facets that may differ."""
    calls: tuple[str, ...]
    """Names of the calls whose answers have it, as patterns with ``*``."""
    direct: Mapping[str, Any] = field(default_factory=dict)
    """The replica's values, where they matter."""

    @property
    def is_general(self) -> bool:
        """Whether any call may have it."""
        return self.calls == ("*",)

    def concerns(self, call: str) -> bool:
        """Return whether a call is named."""
        return any(fnmatchcase(call, pattern) for pattern in self.calls)

    def explains(self, facet: str, direct: Any, gateway: Any) -> bool:
        """Return whether it explains these values of a facet."""
        if facet not in self.gateway:
            return False
        return _is(self.gateway[facet], gateway) and _is(self.direct.get(facet, ...), direct)


def _is(wanted: Any, value: Any) -> bool:
    if wanted is ...:
        return True
    return bool(wanted(value)) if callable(wanted) else bool(wanted == value)
