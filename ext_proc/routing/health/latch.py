"""A named condition of replicas with hysteresis: several noes in a row set it, one yes ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ext_proc.routing.values.pool import EndpointKey

MAX_WHY_CHARS = 200


class Latch:
    """Who has the condition, by pool.

    Args:
        name: The condition's name.
        after: Noes in a row that set it.
    """

    __slots__ = ("_after", "_noes", "_set", "name")

    def __init__(self, name: str, after: int) -> None:
        self.name = name
        self._after = after
        self._noes: dict[tuple[str, EndpointKey], int] = {}
        self._set: dict[str, dict[EndpointKey, str]] = {}

    def no(self, pool: str, key: EndpointKey, why: str = "") -> bool:
        """Note what speaks for the condition; return whether that has set it now."""
        count = self._noes[pool, key] = min(self._noes.get((pool, key), 0) + 1, self._after)
        if count < self._after:
            return False
        known = self._set.setdefault(pool, {})
        fresh = key not in known
        known[key] = why[:MAX_WHY_CHARS]
        return fresh

    def yes(self, pool: str, key: EndpointKey) -> bool:
        """Note that the replica is well; return whether that has ended the condition now."""
        self._noes.pop((pool, key), None)
        known = self._set.get(pool)
        if known is None or known.pop(key, None) is None:
            return False
        if not known:
            del self._set[pool]
        return True

    def of(self, pool: str) -> Collection[EndpointKey]:
        """Return who of a pool has the condition."""
        return self._set.get(pool, {}).keys()

    def why(self, pool: str, key: EndpointKey) -> str:
        """Return what the replica said; empty where it said nothing, or is well."""
        return self._set.get(pool, {}).get(key, "")

    def keep(self, present: Collection[tuple[str, EndpointKey]]) -> None:
        """Forget everybody but these."""
        self._noes = {one: count for one, count in self._noes.items() if one in present}
        self._set = {
            pool: left
            for pool, keys in self._set.items()
            if (left := {key: why for key, why in keys.items() if (pool, key) in present})
        }
