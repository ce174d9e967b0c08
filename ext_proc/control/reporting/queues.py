"""Queues beyond the knee: variants with more waiting than they will soon work off. Pure.

Rules:

1. What waits in a replica is what its readings say of the pool's models (``queued`` without
   ``deferred``); where they say only how many run, it is what this picker has in flight beyond
   them. A replica without fresh readings is not known, and does not count.
2. A variant queues if, over its usable replicas, at least ``LEAST`` requests wait in all, and
   ``EACH`` at a replica, and a quarter of those that run, at each look for ``LASTS_S``. It ends
   below half of that. At 80 % of what they can do, replicas with one slot or hundreds have less:
   the more slots, the rarer any queue (Erlang's C formula).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.candidates import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.values.pool import EndpointKey, Pool

LEAST: Final = 40.0
EACH: Final = 8.0
RUNNING_SHARE: Final = 0.25
LASTS_S: Final = 5.0
_ENDS: Final = 0.5


class Waiting(NamedTuple):
    """What waits in a replica, and what runs."""

    waiting: float
    running: float | None
    """``None`` = unknown."""

    def __str__(self) -> str:
        """Return it in words."""
        running = "" if self.running is None else f", {self.running:.0f} run"
        return f"{self.waiting:.0f} requests wait{running}"


class Queues:
    """The variants that queue; see the module's rules."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        """When each variant that may queue was first seen to, monotonic seconds."""
        self._told: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, EndpointKey], Waiting] = {}

    def look(
        self,
        now: float,
        pools: Mapping[str, Pool],
        members: Mapping[EndpointKey, Replica],
        unwell: Container[tuple[str, EndpointKey]],
    ) -> None:
        """Judge all variants; call about once a second.

        Args:
            now: Monotonic seconds.
            pools: The pools, by name.
            members: The replicas that are registered.
            unwell: Pool and replica, where it has a condition.
        """
        before, self._since, self._found = self._since, {}, {}
        told, self._told = self._told, set()
        for pool in pools.values():
            known: dict[str, dict[EndpointKey, Waiting]] = {}
            for endpoint in pool.endpoints:
                key = endpoint.key
                if endpoint.draining or (pool.name, key) in unwell:
                    continue
                waits = waiting_at(members[key], pool.models, now)
                if waits is not None:
                    known.setdefault(endpoint.variant, {})[key] = waits
            for variant, replicas in known.items():
                place = pool.name, variant
                total = sum(each.waiting for each in replicas.values())
                running = sum(each.running or 0.0 for each in replicas.values())
                least = max(LEAST, EACH * len(replicas), RUNNING_SHARE * running)
                if total < (least * _ENDS if place in told else least):
                    continue
                since = self._since[place] = before.get(place, now)
                if now - since >= LASTS_S:
                    self._told.add(place)
                    self._found.update(
                        ((pool.name, key), each) for key, each in replicas.items() if each.waiting
                    )

    def found(self) -> Iterator[tuple[tuple[str, EndpointKey], Waiting]]:
        """Yield the replicas of variants that queue, and what waits there."""
        yield from self._found.items()


def waiting_at(replica: Replica, models: Container[str], now: float) -> Waiting | None:
    """Return what waits in a replica; ``None`` = it is not known (rule 1).

    Args:
        replica: The replica.
        models: The pool's models; empty = any.
        now: Monotonic seconds.
    """
    waiting = running = 0.0
    queued = runs = False
    for each in replica.readings:
        if now - each.at >= FRESH_S or (models and each.model and each.model not in models):
            continue
        if each.queued is not None:
            queued, waiting = True, waiting + max(each.queued - (each.deferred or 0.0), 0.0)
        if each.running is not None:
            runs, running = True, running + each.running
    if queued:
        return Waiting(waiting, running if runs else None)
    if runs:
        return Waiting(max(replica.load.in_flight - running, 0.0), running)
    return None
