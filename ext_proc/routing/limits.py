"""Limits of the requests in flight of a replica's model, from how many it runs at once. Pure.

Rules:

1. A limit is its slots (``state.slots``) and what it takes at once when it has room: one request,
   or a batch of Triton's dynamic batcher. So an engine has work at hand when a slot gets free, and
   all else waits where it can be ordered and moved. It is kept where the pool has ``limit: auto``.
   ``per_endpoint_in_flight`` overrides it, and counts all requests of the replica.
2. An engine that serves by itself has one batch for all names of its model, so its limit is that
   of the replica, and so is that of a replica whose pools list one model. Otherwise each model has
   its own.
3. Requests for a model that no pool lists and no reading names count for the replica as a whole.
   At most ``MAX_NAMES`` names are known, and the slots of ``MAX_READINGS`` models of a replica.
4. Slots are learned where no pool of the replica sets a limit and one has ``limit: auto``, and the
   engine does not tell what runs and what waits: one that does has no limit before it has a queue.
5. Requests of the band ``LOW`` fill a limit but for its last place, and so do all while some of
   that band wait (``spares``). A limit of 2 or less (one slot) spares none.
6. A restart, and a change of the models that the replica's pools list, forgets what is known.
7. A burst may exceed the limits of all replicas, up to twice, where nothing of its pool and model
   waits and all could: it is over before it matters where it waits. Once they have been exceeded
   for ``BURST_S`` without a request that found room, more comes than replicas can do, and requests
   wait, until none has waited for ``CALM_S`` (``state.candidates``). Those of rule 5 exceed none.
   Limits from answers under way, of which less is known, are exceeded by a quarter or ``FEW``, and
   learned ones that are loose not at all.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.candidates import BY_MODEL, MAX_READINGS, NO_LIMIT, most_of_low
from ext_proc.routing.state.slots import Known, Slots
from ext_proc.routing.values.request import LOW, band_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ext_proc.routing.state.candidates import Candidate, Replica
    from ext_proc.routing.state.ledger import Load
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.ticket import Ticket

SET: Final = "set"
WHOLE: Final = ""
"""In place of a model's name: the replica as a whole."""
MAX_NAMES: Final = 4096
TARGET: Final = 0.7
"""Utilisation of slots for which a pool should have replicas."""


class Limit(NamedTuple):
    """Most requests in flight for a model of a replica."""

    most: int
    """At least 1."""
    source: str
    """``set``, ``declared``, ``observed`` or ``learned``."""


class LimitUsage(NamedTuple):
    """Slots of a pool's replicas for one model, and what they have to do."""

    in_flight: int
    """Requests in flight that count against limits."""
    slots: int
    replicas: int
    """Replicas that have these slots: those that do not drain and of which slots are known."""

    @property
    def utilisation(self) -> float:
        """Return the requests in flight per slot; above 1, requests wait in engines."""
        return self.in_flight / self.slots

    def needed(self, waiting: int) -> int:
        """Return how many such replicas would be at ``TARGET``, with requests that wait."""
        each = self.slots / self.replicas
        return max(1, ceil((self.in_flight + waiting) / (TARGET * each)))


class Limits:
    """The limits of all replicas; see the module's rules.

    Args:
        members: Live view of the registered replicas.
    """

    def __init__(self, members: Mapping[EndpointKey, Replica]) -> None:
        self._members = members
        self._slots: dict[EndpointKey, dict[str, Slots]] = {}
        self._listed: dict[EndpointKey, frozenset[str]] = {}
        """Models that the pools of a replica list."""
        self._silent: set[EndpointKey] = set()
        """Replicas whose slots may be learned."""
        self.learns: dict[EndpointKey, tuple[Slots, Load] | None] = {}
        """Those of them that tell nothing, with the slots that all their requests share, once an
        answer has ended; ``None`` = none, or not yet."""
        self._engines: set[EndpointKey] = set()
        """Replicas that are one engine."""
        self._shared: set[EndpointKey] = set()
        """Replicas whose models share their slots (rule 2)."""
        self.names: set[str] = set()
        """Models under which requests count."""
        self.on_change: Callable[[EndpointKey], None] = lambda _: None
        """Called with a replica whose limits have changed, or that answered a peer's request."""
        self.low_waits: Callable[[str, str | None], bool] = lambda _pool, _model: False
        """Returns whether requests of the band ``LOW`` of a pool and model wait."""

    def __repr__(self) -> str:
        return f"<Limits replicas={len(self._slots)}>"

    # --- What teaches them ----------------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Follow these pools; what is known of replicas that stay is kept."""
        listed: dict[EndpointKey, frozenset[str]] = {}
        learns: set[EndpointKey] = set()
        fixed: set[EndpointKey] = set()
        self.names = set()
        for pool in pools.values():
            self.names.update(pool.models)
            for endpoint in pool.endpoints:
                listed[endpoint.key] = listed.get(endpoint.key, frozenset()) | pool.models
                if pool.per_endpoint_in_flight:
                    fixed.add(endpoint.key)
                elif pool.limit != "none":
                    learns.add(endpoint.key)
        self._silent = learns - fixed
        self.learns = dict.fromkeys(each for each in self._silent if not self._tells(each))
        before, self._listed = self._listed, listed
        for key in [each for each in self._slots if before.get(each) != listed.get(each)]:
            self.removed(key)
        self._shared = {key for key, models in listed.items() if len(models) == 1}
        self._shared |= self._engines & listed.keys()
        for slots in self._slots.values():
            self.names.update(slots.keys() - {WHOLE})
        for key in listed:
            self._apply(key)

    def removed(self, key: EndpointKey) -> None:
        """Forget a replica."""
        self._slots.pop(key, None)
        self._engines.discard(key)
        if len(self._listed.get(key, ())) != 1:
            self._shared.discard(key)
        if key in self._silent:
            self.learns[key] = None

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
                queued = each.queued
                waits = None if queued is None else queued - (each.deferred or 0.0)
                slots.setdefault(name, Slots()).read(
                    each.at,
                    each.slots,
                    each.running,
                    waits,
                    each.batch,
                    each.first_tokens,
                    each.kv_used,
                )
        if self._tells(key):
            self.learns.pop(key, None)
        if before != {name: each.known() for name, each in slots.items()}:
            self._apply(key)

    def _tells(self, key: EndpointKey) -> bool:
        """Return whether nothing is to be learned of a replica."""
        whole = self._slots.get(key, {}).get(WHOLE)
        return whole is not None and whole.tells

    def began(
        self, key: EndpointKey, ticket_id: int, ticket: Ticket | None, seconds: float
    ) -> None:
        """Note the first byte of an answer.

        Args:
            key: The replica that answers.
            ticket_id: The request's ticket.
            ticket: The same; ``None`` = it is settled.
            seconds: Time from dispatch to the first byte.
        """
        if key not in self.learns:
            return
        if ticket is None:
            for each in self._slots.get(key, {}).values():
                if each.streams.answers.began(ticket_id, None, seconds):
                    return
        elif ticket.endpoint == key and ticket.model is not None:
            learning = self._learning(key, ticket.model)
            if learning is not None:
                learning[0].streams.answers.began(ticket_id, ticket.at, seconds)

    def ended(self, ticket: Ticket, model: str, now: float, *, done: bool) -> None:
        """Note a request that has ended, normally if ``done``, and is not in flight any more.

        Args:
            ticket: Its ticket, of a replica in ``learns``.
            model: The model as which it counted.
            now: Monotonic seconds.
            done: Whether it ended normally.
        """
        key = ticket.endpoint
        shared = self.learns[key]
        if shared is not None:  # as ``_learning`` found it, which costs each answer a call
            slots, left = shared[0], shared[1].limited
        elif (learning := self._learning(key, model)) is not None:
            slots, left = learning
        else:
            return
        slots.streams.answers.ended(ticket.id, ticket.at, now)
        if done and slots.answered(left + 1, 1, now):
            self._apply(key)

    def answered(self, key: EndpointKey, model: str, count: int, now: float) -> None:
        """Note answers to peer workers that have ended and are not in flight any more.

        Args:
            key: The replica.
            model: The model as which they counted (``Ticket.model``).
            count: How many.
            now: Monotonic seconds.
        """
        if key not in self.learns:
            return
        learning = self._learning(key, model)
        if learning is not None:
            slots, left = learning
            if slots.answered(left + count, count, now, own=False):
                self._apply(key)

    def _learning(self, key: EndpointKey, model: str) -> tuple[Slots, int] | None:
        """Return what is learned for a model of a replica, and the requests that share its slots.

        ``None`` = nothing can be learned.
        """
        replica = self._members.get(key)
        if replica is None:
            return None
        if key in self._shared:
            model, left = WHOLE, replica.load.limited
        elif not model and self._listed[key]:
            return None  # of a name that no pool lists; it must not bound the listed models
        else:
            left = replica.load.by_model.get(model, 0)
        slots = self._slots.setdefault(key, {})
        known = slots.get(model)
        if known is None:
            if len(slots) >= MAX_READINGS:
                return None
            known = slots[model] = Slots()
        if model == WHOLE and key in self._shared:
            self.learns[key] = known, replica.load
        return known, left

    def _named(self, key: EndpointKey, readings: Sequence[Reading]) -> list[tuple[str, Reading]]:
        """Return the readings that tell of slots, by the model whose limit they teach (rule 3)."""
        runs = [each for each in readings if each.model is not None and each.running is not None]
        if len(runs) == 1 and runs[0].version is None:
            self._engines.add(key)
            self._shared.add(key)
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
        found = dict(self.of(key))
        replica.bursts = min((known.bursts for known in found.values()), default=0.0)
        most = {name: known.limit for name, known in found.items()}
        whole = most.pop(WHOLE, BY_MODEL if most else NO_LIMIT)
        if (whole, most) != (replica.most, replica.most_of):
            replica.most, replica.most_of = whole, most
            self.on_change(key)

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
        return None if known is None else Limit(known.limit, known.source)

    def in_force(self, pool: Pool, key: EndpointKey) -> Iterator[tuple[str, Limit]]:
        """Yield the limits in force of a replica, by model; ``WHOLE`` = of the replica."""
        fixed = pool.per_endpoint_in_flight
        for name in (WHOLE,) if fixed else [name for name, _ in self.of(key)]:
            limit = self.limit(pool, key, name)
            if limit is not None:
                yield name, limit

    def room(
        self, pool: Pool, candidate: Candidate, model: str | None, *, low: bool = False
    ) -> int | None:
        """Return how many further requests for a model a candidate takes; 0 or less: it is full.

        ``None`` = no limit. Counted are the requests of this worker and its peers, and abandoned
        work that the engine has not ended. Where ``low``, rule 5 applies.
        """
        load = candidate.load
        if pool.per_endpoint_in_flight:
            return pool.per_endpoint_in_flight - load.in_flight
        if pool.limit == "none":
            return None
        replica = candidate.replica
        most: int | None = replica.most
        used = load.limited
        if most == BY_MODEL:
            most = replica.most_of.get(model or WHOLE)
            used = load.by_model.get(model or WHOLE, 0)
        if most is None or most == NO_LIMIT:
            return None
        return (most_of_low(most) if low else most) - used

    def spares(self, request: Request) -> bool:
        """Return whether a request leaves the last place of a replica's own limit free.

        What waits in an engine is before both bands. So requests of ``LOW`` leave that place free,
        and all do while some of them wait: the next slot of any replica comes earlier than that of
        one replica.
        """
        features = request.features
        low = features.priority is not None and band_of(features.priority) == LOW
        return low or self.low_waits(request.pool, features.model)

    def usage(self, pool: Pool) -> dict[str, LimitUsage]:
        """Return the use of a pool's slots by model; ``WHOLE`` = of all its models."""
        found: dict[str, LimitUsage] = {}
        for endpoint in pool.endpoints:
            replica = self._members.get(endpoint.key)
            if replica is None or endpoint.draining:
                continue
            for name, known in self.of(endpoint.key):
                if name and pool.models and name not in pool.models:
                    continue
                in_flight, slots, replicas = found.get(name, (0, 0, 0))
                in_flight += replica.load.by_model.get(name, 0) if name else replica.load.limited
                found[name] = LimitUsage(in_flight, slots + known.slots, replicas + 1)
        return found

    def describe(self, pool: Pool, key: EndpointKey) -> dict[str, dict[str, object]]:
        """Return the slots of a replica and its limits in a pool, by model, ready for JSON."""
        replica = self._members[key]
        load = replica.load
        found: dict[str, Known | None] = dict(self.of(key))
        if pool.per_endpoint_in_flight:
            found.setdefault(WHOLE, None)
        told: dict[str, dict[str, object]] = {}
        for name, known in found.items():
            limit = self.limit(pool, key, name)
            told[name] = {
                "slots": None if known is None else known.slots,
                "slots_by": None if known is None else known.source,
                "limit": None if limit is None else limit.most,
                "limit_by": None if limit is None else limit.source,
                "in_flight": load.by_model.get(name, 0) if name else load.limited,
            }
        return told
