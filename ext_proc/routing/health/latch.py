"""Latch: a condition with hysteresis, set by several bad results in a row and ended by one good."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ext_proc.routing.values.pool import EndpointKey

MAX_WHY_CHARS = 200


class Latch:
    """The replicas that have a condition, by pool.

    Args:
        name: The condition's name.
        after: Number of bad results in a row that set it.
    """

    __slots__ = ("_after", "_bad_in_row", "_set", "name")

    def __init__(self, name: str, after: int) -> None:
        self.name = name
        self._after = after
        self._bad_in_row: dict[tuple[str, EndpointKey], int] = {}
        self._set: dict[str, dict[EndpointKey, str]] = {}

    def bad(self, pool: str, key: EndpointKey, why: str = "") -> bool:
        """Note a bad result; return whether this has set the condition."""
        count = self._bad_in_row[pool, key] = min(
            self._bad_in_row.get((pool, key), 0) + 1, self._after
        )
        if count < self._after:
            return False
        known = self._set.setdefault(pool, {})
        fresh = key not in known
        known[key] = why[:MAX_WHY_CHARS]
        return fresh

    def good(self, pool: str, key: EndpointKey) -> bool:
        """Note a good result; return whether this has ended the condition."""
        self._bad_in_row.pop((pool, key), None)
        known = self._set.get(pool)
        if known is None or known.pop(key, None) is None:
            return False
        if not known:
            del self._set[pool]
        return True

    def of(self, pool: str) -> Collection[EndpointKey]:
        """Return the replicas of a pool that have the condition."""
        return self._set.get(pool, {}).keys()

    def why(self, pool: str, key: EndpointKey) -> str:
        """Return the reason of a replica's condition; empty if it has none or gave none."""
        return self._set.get(pool, {}).get(key, "")

    def keep(self, present: Collection[tuple[str, EndpointKey]]) -> None:
        """Drop all replicas but these."""
        self._bad_in_row = {one: count for one, count in self._bad_in_row.items() if one in present}
        self._set = {
            pool: left
            for pool, keys in self._set.items()
            if (left := {key: why for key, why in keys.items() if (pool, key) in present})
        }
