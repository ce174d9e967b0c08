"""Leases of which others told this member, and that it has not told all others itself. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ext_proc.routing.state.leases import LeaseKey

FEW: Final = 1024
"""So many are kept without a look at which have ended."""


class Untold:
    """The keys of such leases: at most ``FEW`` or twice those in force."""

    def __init__(self) -> None:
        self._keys: dict[LeaseKey, None] = {}
        self._most = FEW

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: LeaseKey, lasts: Callable[[LeaseKey], bool]) -> None:
        """Note a lease; ``lasts`` returns whether one is in force."""
        self._keys[key] = None
        if len(self._keys) > self._most:
            self._keys = {each: None for each in self._keys if lasts(each)}
            self._most = max(FEW, 2 * len(self._keys))

    def take(self) -> Iterable[LeaseKey]:
        """Return the leases and forget them, in the order in which they were noted first."""
        keys, self._keys = self._keys, {}
        return keys
