"""Limits of the requests in flight of a replica's model, from how many it runs at once. Pure.

Rules:

1. A limit is its slots and a quarter of them more, at least one (``limit_of``): what an engine has
   waiting when a slot gets free costs it no idle time. It is kept where the pool has ``limit:
   auto``. ``per_endpoint_in_flight`` overrides it, and counts all requests of the replica.
2. Slots are the first that is known: *declared* by the engine (``Reading.slots``), or *observed*:
   the requests that run while others wait for room, in two fresh readings in a row. Of such
   readings the highest of the last ``KEPT`` counts, since a cache full of long prompts runs fewer.
3. An engine that serves by itself has one batch for all names of its model, so its limit is that
   of the replica, and so is that of a replica whose pools list one model. Otherwise each model has
   its own.
4. Requests for a model that no pool lists and no reading names count for the replica as a whole.
   At most ``MAX_NAMES`` names are known, and the slots of ``MAX_READINGS`` models of a replica.
5. A restart forgets what was observed; a removed replica is forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.replica import FRESH_S, MAX_READINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.state.replica import Replica
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading

SET: Final = "set"
DECLARED: Final = "declared"
OBSERVED: Final = "observed"
LEARNED: Final = "learned"

WHOLE: Final = ""
"""In place of a model's name: the replica as a whole."""
KEPT: Final = 8
MAX_NAMES: Final = 4096
MAX_SLOTS: Final = 2**20
"""More slots than this are no limit."""


class Limit(NamedTuple):
    """Most requests in flight for a model of a replica."""

    most: int
    """At least 1."""
    source: str
    """``set``, ``declared``, ``observed`` or ``learned``."""


class Known(NamedTuple):
    """How many requests of a model a replica runs at once."""

    slots: int
    source: str


def limit_of(slots: int) -> int:
    """Return the limit of so many slots."""
    return slots + max(1, slots // 4)


class _Slots:
    """What is known of the slots of one model of a replica, or of the replica."""

    __slots__ = ("declared", "full", "full_at", "seen_at")

    def __init__(self) -> None:
        self.declared: int | None = None
        self.full: deque[int] = deque(maxlen=KEPT)
        """What ran in the latest readings with requests that waited."""
        self.full_at: float | None = None
        """When the reading before had some, monotonic seconds; ``None`` = it had none."""
        self.seen_at = float("-inf")

    def read(self, at: float, slots: float | None, running: float | None, waits: float) -> None:
        """Take a reading (rule 2)."""
        if slots is not None and 1 <= slots <= MAX_SLOTS:
            self.declared = int(slots)
        if at <= self.seen_at:
            return
        self.seen_at = at
        before, self.full_at = self.full_at, None
        if running is None or not 1 <= running <= MAX_SLOTS:
            return
        if waits >= 1:
            self.full_at = at
            if before is not None and at - before <= FRESH_S:
                self.full.append(int(running))
        elif self.full and running > max(self.full):
            self.full.append(int(running))

    def known(self) -> Known | None:
        """Return the first that is known."""
        if self.declared is not None:
            return Known(self.declared, DECLARED)
        if self.full:
            return Known(max(self.full), OBSERVED)
        return None


class Limits:
    """The limits of all replicas; see the module's rules.

    Args:
        members: Live view of the registered replicas.
    """

    def __init__(self, members: Mapping[EndpointKey, Replica]) -> None:
        self._members = members
        self._slots: dict[EndpointKey, dict[str, _Slots]] = {}
        self._listed: dict[EndpointKey, frozenset[str]] = {}
        """Models that the pools of a replica list."""
        self._engines: set[EndpointKey] = set()
        """Replicas that are one engine."""
        self.names: set[str] = set()
        """Models under which requests count."""

    def __repr__(self) -> str:
        return f"<Limits replicas={len(self._slots)}>"

    # --- What teaches them ----------------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Follow these pools; what is known of replicas that stay is kept."""
        listed: dict[EndpointKey, frozenset[str]] = {}
        self.names = set()
        for pool in pools.values():
            self.names.update(pool.models)
            for endpoint in pool.endpoints:
                listed[endpoint.key] = listed.get(endpoint.key, frozenset()) | pool.models
        before, self._listed = self._listed, listed
        for key in [each for each in self._slots if before.get(each) != listed.get(each)]:
            self.removed(key)
        for slots in self._slots.values():
            self.names.update(slots.keys() - {WHOLE})
        for key in listed:
            self._apply(key)

    def removed(self, key: EndpointKey) -> None:
        """Forget a replica."""
        self._slots.pop(key, None)
        self._engines.discard(key)

    def restarted(self, key: EndpointKey) -> None:
        """Forget what was observed of a replica's earlier process."""
        self.removed(key)
        self._apply(key)

    def read(self, key: EndpointKey, readings: Sequence[Reading]) -> None:
        """Take the latest readings of a replica; one that is not registered is ignored."""
        if key not in self._listed:
            return
        slots = self._slots.setdefault(key, {})
        before = {name: each.known() for name, each in slots.items()}
        found = self._named(key, readings)
        if len(slots) >= MAX_READINGS:
            kept = {WHOLE, *(name for name, _ in found)}
            for gone in slots.keys() - kept:
                del slots[gone]
        for name, each in found:
            if name in slots or len(slots) < MAX_READINGS:
                waits = (each.queued or 0.0) - (each.deferred or 0.0)
                slots.setdefault(name, _Slots()).read(each.at, each.slots, each.running, waits)
        if before != {name: each.known() for name, each in slots.items()}:
            self._apply(key)

    def _named(self, key: EndpointKey, readings: Sequence[Reading]) -> list[tuple[str, Reading]]:
        """Return the readings that tell of slots, by the model whose limit they teach (rule 3)."""
        runs = [each for each in readings if each.model is not None and each.running is not None]
        if len(runs) == 1 and runs[0].version is None:
            self._engines.add(key)
        engine, listed = key in self._engines, self._listed[key]
        found: list[tuple[str, Reading]] = []
        for each in readings:
            name = each.model
            if name is None or engine:
                if each.slots is not None or each.running is not None:
                    found.append((WHOLE, each))
            elif len(listed) == 1:
                if name in listed:
                    found.append((WHOLE, each))
            else:
                found.append((name, each))
                if len(self.names) < MAX_NAMES:
                    self.names.add(name)
        return found

    def _apply(self, key: EndpointKey) -> None:
        """Set what decisions read of a replica's limits."""
        replica = self._members.get(key)
        if replica is None:
            return
        most = {
            name: limit_of(known.slots)
            for name, each in self._slots.get(key, {}).items()
            if (known := each.known()) is not None
        }
        replica.most = most.pop(WHOLE, None)
        replica.most_of = most

    # --- What they are --------------------------------------------------------------------------

    def known(self, key: EndpointKey, model: str | None) -> Known | None:
        """Return the slots of a replica's model; ``None`` = not known."""
        slots = self._slots.get(key, {})
        found = slots.get(WHOLE) or slots.get(model or WHOLE)
        return None if found is None else found.known()

    def of(self, key: EndpointKey) -> Iterator[tuple[str, Known]]:
        """Yield all that is known of a replica, by model; ``WHOLE`` = of the replica."""
        for name, each in self._slots.get(key, {}).items():
            known = each.known()
            if known is not None:
                yield name, known

    def limit(self, pool: Pool, key: EndpointKey, model: str | None) -> Limit | None:
        """Return the limit in force for a model of a replica; ``None`` = no limit."""
        if pool.per_endpoint_in_flight:
            return Limit(pool.per_endpoint_in_flight, SET)
        known = None if pool.limit == "none" else self.known(key, model)
        return None if known is None else Limit(limit_of(known.slots), known.source)

    def room(self, pool: Pool, candidate: Candidate, model: str | None) -> int | None:
        """Return how many further requests for a model a candidate takes; 0 or less: it is full.

        ``None`` = no limit. Counted are the requests of this worker and its peers, and abandoned
        work that the engine has not ended.
        """
        load = candidate.load
        if pool.per_endpoint_in_flight:
            return pool.per_endpoint_in_flight - load.in_flight
        if pool.limit == "none":
            return None
        replica = candidate.replica
        if replica.most is not None:
            return replica.most - load.limited
        most = replica.most_of.get(model or WHOLE)
        return None if most is None else most - load.by_model.get(model or WHOLE, 0)
