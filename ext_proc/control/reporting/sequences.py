"""Open sequences on draining replicas, for reports: in use although nothing is in flight.

Counted again when the pools change, and every ``EVERY_S`` seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.values.pool import Pool

EVERY_S: Final = 1.0


class OpenSequences:
    """Counts the sequences that live on draining replicas.

    Args:
        leases: The leases of sequences.
        pools: Returns the pools in force; another object after each change.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        leases: Leases,
        pools: Callable[[], Mapping[str, Pool]],
        clock: Callable[[], float],
    ) -> None:
        self._leases = leases
        self._pools = pools
        self._clock = clock
        self._seen: Mapping[str, Pool] | None = None
        self._due = 0.0
        self._last: dict[str, int] = {}

    def __call__(self) -> Mapping[str, int]:
        """Return endpoint id -> open sequences; endpoints without any are absent."""
        now, pools = self._clock(), self._pools()
        if pools is self._seen and now < self._due:
            return self._last
        self._seen, self._due = pools, now + EVERY_S
        held = self._leases.endpoints()
        draining = {
            each.key
            for pool in (pools.values() if held else ())
            for each in pool.endpoints
            if each.draining and each.key in held
        }
        self._last = {}
        for key in draining:
            count = self._leases.open_on(key, now)
            if count:
                self._last[key.id] = self._last.get(key.id, 0) + count
        return self._last
