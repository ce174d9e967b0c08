"""The router: one request in, an ordered choice or a refusal out.

Rules:

1. A decision draws the variant, filters, asks the pool's policy for prices, and only then
   changes state: ledger, index, lease. A refusal changes nothing.
2. Time and chance are arguments. The same calls with the same ``rng`` give the same decisions.
3. An endpoint is removed when it is gone from all pools: its tickets settle, its blocks and
   leases go. A change of policy, weights or limits keeps all three.
4. Each change of ledger and index is an event; ``on_event`` hears all of them, in order.
5. Not safe for threads: one event loop owns a router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ext_proc.routing.candidates import SMALL, shortlist
from ext_proc.routing.conditions import Conditions
from ext_proc.routing.draw import Rng, draw_variant
from ext_proc.routing.explain import Recent, describe
from ext_proc.routing.filters import below_limit, eligible
from ext_proc.routing.leases import Lease, LeaseKey, Leases
from ext_proc.routing.ledger import (
    MAX_TICKETS,
    Charged,
    EndpointRemoved,
    Ledger,
    LedgerEvent,
    Settled,
)
from ext_proc.routing.offers import cheapest, make_offer, scores, silent_last, work_of
from ext_proc.routing.pace import FleetPace
from ext_proc.routing.policies import Offer, Policy, make_policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.prefix_index import IndexEvent, Inserted, PrefixIndex, Purged
from ext_proc.routing.roster import Directory, Replica, Roster, Seat
from ext_proc.routing.turns import with_turns
from ext_proc.routing.types import (
    Decision,
    EndpointKey,
    Features,
    Outcome,
    Pool,
    Protocol,
    Reading,
    Refusal,
    RefusalKind,
    Request,
    Ticket,
)
from protos.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Router"]


class Choice(NamedTuple):
    """Seats with their prices, before anything has changed."""

    policy: Policy
    offer: Offer
    prices: Sequence[float]
    lease_key: LeaseKey | None
    leased: bool
    """A live lease left no choice."""


class Router:
    """Chooses replicas for requests.

    Args:
        rng: Chance, e.g. ``random.Random()``.
        max_tickets: Most requests counted as in flight at one time.
        on_event: Hears each change of ledger and index, for followers and replay.
    """

    def __init__(
        self,
        rng: Rng,
        *,
        max_tickets: int = MAX_TICKETS,
        on_event: Callable[[LedgerEvent | IndexEvent], None] | None = None,
    ) -> None:
        self._rng = rng
        self._on_event = on_event
        self.pools: Mapping[str, Pool] = {}
        """The pools as last set, by name."""
        self.ledger = Ledger(max_tickets)
        self.index = PrefixIndex()
        self.leases = Leases()
        self.conditions = Conditions()
        """Who must not get new work although it is a member."""
        self._moved: dict[int, Ticket] = {}
        """Moved tickets by the id that their holder knows."""
        self._rosters: dict[str, Roster] = {}
        self._policies: dict[str, dict[str, Policy]] = {}
        self._paces: dict[str, FleetPace] = {}
        self._replicas: dict[EndpointKey, Replica] = {}
        self._by_id: dict[str, list[Replica]] = {}
        self._silent = 0
        """Replicas that stopped telling their numbers."""
        self.recent = Recent()
        """Some of the latest decisions."""
        self._directory = Directory(())
        self._least = LeastInFlight()
        self._last_ticket = 0

    def __repr__(self) -> str:
        return f"<Router pools={len(self.pools)} open={len(self.ledger)} {self.index!r}>"

    # --- Membership -----------------------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool], now: float) -> None:
        """Take new pools in place of the present ones.

        Args:
            pools: All pools, by name.
            now: Monotonic seconds.

        Raises:
            ValueError: A pool names an unknown policy; then nothing has changed.
        """
        policies = {
            name: {
                each: self._policies.get(name, {}).get(each)
                or make_policy(each, self._rng, pool=name)
                for each in {pool.policy, *pool.allow_override}
            }
            for name, pool in pools.items()
        }
        limits: dict[EndpointKey, tuple[int, float]] = {}
        for pool in pools.values():
            for endpoint in pool.endpoints:
                blocks, ttl = limits.get(endpoint.key, (0, 0.0))
                limits[endpoint.key] = (max(blocks, pool.index_blocks), max(ttl, pool.index_ttl_s))
        for key in [each for each in self._replicas if each not in limits]:
            self._remove(key)
        for key, (blocks, ttl) in limits.items():
            self.index.limit(key, blocks, ttl)
            if key not in self._replicas:
                self._replicas[key] = Replica(key, self.ledger.load(key))
        self.pools = dict(pools)
        self._policies = policies
        self._paces = {name: self._paces.get(name) or FleetPace() for name in pools}
        self._rosters = {
            name: Roster(pool, self._replicas, self._paces[name]) for name, pool in pools.items()
        }
        self._directory = Directory(tuple(pools.values()))
        self._by_id = {}
        for replica in self._replicas.values():
            self._by_id.setdefault(replica.key.id, []).append(replica)
        self._silent = sum(replica.silent for replica in self._replicas.values())
        self.conditions.set_pools(pools)
        self.index.expire(now)

    def _remove(self, key: EndpointKey) -> None:
        del self._replicas[key]
        self._change_ledger(EndpointRemoved(key))
        self._change_index(Purged(key))
        self.index.forget(key)
        self.leases.drop_endpoint(key)

    def pool_for(self, features: Features, path: str, protocol: Protocol) -> str | Refusal:
        """Name the pool of a request that no route named.

        The order: the pool that a header names; the pool that serves the model (on the paths of
        ``match.paths`` only one that lists the path); where nothing names a model, the pool that
        is the default for the path or for gRPC. Of a call about a model that no pool serves, the
        default's replicas say so themselves, as Triton does.
        """
        return self._directory.find(features, path, protocol)

    # --- Deciding -------------------------------------------------------------------------------

    def decide(self, request: Request, now: float, unix_now: float) -> Decision | Refusal:
        """Choose the replicas of one request, and charge the first of them with it.

        Args:
            request: What is known of it.
            now: Monotonic seconds, never less than in an earlier call.
            unix_now: Wall clock, for ramps.

        Returns:
            The pick with its fallbacks and its ticket, to be settled once; or a refusal.
        """
        roster = self._rosters.get(request.pool)
        if roster is None:
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {request.pool!r}")
        self.index.expire(now)
        choice = self._choose(roster, request, self._rng, now, unix_now)
        if isinstance(choice, Refusal):
            return choice
        offer, pool = choice.offer, roster.pool
        if not request.features.is_inference:
            return self._unpriced(choice, pool)
        lease_key = choice.lease_key
        wanted = 1 if lease_key is not None else 1 + pool.fallbacks
        order = cheapest(choice.prices, wanted, self._rng)
        picked = order[0]
        reason = choice.policy.picked(offer, picked)
        if choice.leased:
            reason = "sequence"
        seats = offer.seats
        seat, matched = seats[picked], offer.matched[picked]
        self.conditions.picked(pool.name, seat.key, now)
        if request.blocks:
            self._change_index(Inserted(seat.key, request.blocks, now))
        if lease_key is not None:
            if request.features.sequence_end:
                self.leases.release(lease_key)
            else:
                lease = Lease(seat.key, offer.variant, now + pool.sequence_idle_s)
                self.leases.keep(lease_key, lease, now)
        decision = Decision(
            self._charge(offer, picked, pool.name),
            tuple([seats[index].address for index in order]),
            pool.name,
            offer.variant,
            reason,
            lease_key is None,
            matched,
            scores(offer, choice.prices),
        )
        self.recent.note(request, decision, now)
        return decision

    def _choose(
        self, roster: Roster, request: Request, rng: Rng, now: float, unix_now: float
    ) -> Choice | Refusal:
        """Filter and price, changing nothing but ``rng`` and leases that have run out."""
        pool, features = roster.pool, request.features
        inference = features.is_inference
        policy = self._least if not inference else self._policy(pool, request)
        if isinstance(policy, Refusal):
            return policy
        sequence = features.sequence if inference else None
        lease_key = None if sequence is None else LeaseKey(pool.name, sequence)
        leased = None if lease_key is None else self._leased(roster, request, lease_key, now)
        seats: Sequence[Seat]
        if leased is not None:
            variant, seats = leased
        else:
            drawn = draw_variant(
                pool, features, request.headers, leased=None, drawn=request.variant, rng=rng
            )
            if isinstance(drawn, Refusal):
                return drawn
            variant, seats = drawn, roster.open_seats(drawn, request.protocol)
            seats = self.conditions.keep(pool.name, seats, now)
        limit = pool.per_endpoint_in_flight if inference else 0
        index, blocks = self.index, request.blocks
        steps = index.match(blocks) if blocks else []
        free: Sequence[Seat] = ()
        matched: Sequence[int] = ()
        if len(seats) > SMALL and not policy.everyone and request.subset is None:
            by_key = roster.open_by_key(variant, request.protocol)
            few, held = shortlist(seats, by_key, index, steps, rng)
            free = below_limit(self.conditions.keep(pool.name, few, now), limit)
            matched = held if free is few else [held[few.index(seat)] for seat in free]
        if not free:
            where = f"{pool.name}/{variant}"
            allowed = eligible(seats, subset=request.subset, limit=limit, where=where)
            if isinstance(allowed, Refusal):
                return allowed
            free = allowed
            matched = index.depths(steps, free) if steps else [0] * len(free)
        shared = index.shared_depth(blocks, max(matched), len(seats)) if steps else 0
        offer = make_offer(roster, request, variant, free, matched, shared, rng, now, unix_now)
        prices = policy.prices(offer)
        if inference and offer.ramp is not None:
            prices = with_turns(offer, prices, rng)
        if self._silent:
            prices = silent_last(offer, prices)
        return Choice(policy, offer, prices, lease_key, leased is not None)

    def _policy(self, pool: Pool, request: Request) -> Policy | Refusal:
        """Return the pool's policy, or the one that the request asks for and the pool allows."""
        policies = self._policies[pool.name]
        asked = request.headers.get(POLICY_HEADER)
        if asked is None:
            return policies[pool.policy]
        if asked == pool.policy or asked in pool.allow_override:
            return policies[asked]
        allowed = ", ".join(sorted(pool.allow_override)) or "none"
        return Refusal(
            RefusalKind.BAD_REQUEST,
            f"{POLICY_HEADER}: pool {pool.name!r} does not let a request choose the policy"
            f" {asked[:64]!r}; it allows: {allowed}",
        )

    def _leased(
        self, roster: Roster, request: Request, key: LeaseKey, now: float
    ) -> tuple[str, Sequence[Seat]] | None:
        """Return variant and seat of a live lease, ``None`` where the sequence is free to move."""
        lease = self.leases.find(key, now)
        if lease is None:
            return None
        if lease.endpoint not in roster.keys:  # it left this pool, though another may have it
            self.leases.release(key)
            return None
        seat = roster.seat(lease.endpoint, request.protocol)
        if seat is None:  # only there can the sequence go on, but not in this protocol
            return lease.variant, ()
        if seat.draining and request.features.sequence_start:
            return None
        return seat.variant, (seat,)

    def _unpriced(self, choice: Choice, pool: Pool) -> Decision:
        """Send what is not inference to the least loaded; it leaves no trace in the state."""
        offer = choice.offer
        order = cheapest(choice.prices, 1 + pool.fallbacks, self._rng)
        return Decision(
            ticket=None,
            addresses=tuple([offer.seats[index].address for index in order]),
            pool=pool.name,
            variant=offer.variant,
            reason="other",
            scores=scores(offer, choice.prices),
        )

    def _charge(self, offer: Offer, index: int, pool: str) -> Ticket | None:
        self._last_ticket += 1
        seat, now, work = offer.seats[index], offer.now, work_of(offer, index)
        per_token = offer.pace.seconds_per_token * seat.pace.slowness
        replica, prompted = seat.replica, offer.tokens is not None
        drain = replica.drain_s(now, per_token)
        ticket = Ticket(
            self._last_ticket, seat.key, pool, work, now, prompted, drain, seat.load.in_flight
        )
        if not self._change_ledger(Charged(ticket)):
            return None
        if prompted:
            replica.busy_until = now + drain + work * per_token
        return ticket

    # --- What happens afterwards ----------------------------------------------------------------

    def served(self, ticket: Ticket, address: str, now: float) -> Ticket:
        """Move a charge to the replica that served the request, after the proxy's retry.

        Args:
            ticket: The open ticket.
            address: ``ip:port`` at which the pool knows the replica.
            now: Monotonic seconds.

        Returns:
            The ticket that is open now: a new one, or the same where the pick itself served, the
            pool does not know the address, or the ticket is settled already.
        """
        ticket = self._moved.pop(ticket.id, ticket)
        found = self.at(ticket.pool, address)
        if found is None or found == ticket.endpoint:
            return ticket
        if not self._change_ledger(Settled(ticket.id, Outcome.MOVED)):
            return ticket
        self._last_ticket += 1
        moved = Ticket(self._last_ticket, found, ticket.pool, ticket.work, now)
        self._change_ledger(Charged(moved))
        return moved

    def at(self, pool: str, address: str) -> EndpointKey | None:
        """Return who of a pool listens on an ``ip:port``, ``None`` where it is nobody."""
        roster = self._rosters.get(pool)
        return None if roster is None else roster.at(address)

    def told(self, ticket_id: int, address: str, now: float) -> bool:
        """Hear, while a request runs, which replica serves it; the ticket's holder need not know.

        Returns:
            Whether the charge moved. Its holder settles it with the ticket that it has.
        """
        known = self._moved.get(ticket_id) or self.ledger.ticket(ticket_id)
        if known is None:
            return False
        moved = self.served(known, address, now)
        if moved is known:
            return False
        self._moved[ticket_id] = moved
        return True

    def settle(self, ticket: Ticket, outcome: Outcome, now: float) -> bool:
        """End a request.

        Args:
            ticket: From its decision.
            outcome: How it ended.
            now: Monotonic seconds.

        Returns:
            False where it was settled before, by this or by its endpoint's removal.
        """
        self.index.expire(now)
        if self._moved:
            ticket = self._moved.pop(ticket.id, ticket)
        if not self._change_ledger(Settled(ticket.id, outcome)):
            return False
        if outcome is Outcome.DONE and ticket.drain_s is not None:
            pace = self._replicas[ticket.endpoint].paces.get(ticket.pool)
            if pace is not None:
                tokens = ticket.work if ticket.prompted else None
                pace.learn(tokens, ticket.drain_s, ticket.ahead, now - ticket.at, now)
        return True

    def observe(self, endpoint_id: str, readings: Sequence[Reading]) -> None:
        """Take what an endpoint says about itself; an unknown endpoint is ignored."""
        for replica in self._by_id.get(endpoint_id, ()):
            self._silent -= replica.silent
            replica.observe(readings)

    def silent(self, endpoint_id: str) -> None:
        """Note that an endpoint that told its numbers does not answer any more.

        It is chosen last, not never: its metrics port may be all that fails. The next reading
        ends this. An endpoint that was never heard of is not judged.
        """
        for replica in self._by_id.get(endpoint_id, ()):
            self._silent += replica.heard - replica.silent
            replica.silent = replica.heard

    def restarted(self, endpoint_id: str, unix_now: float) -> None:
        """Note that an endpoint's process is a new one.

        Its cache and its sequences are gone and its ramp starts again. Requests in flight settle
        by themselves, as Envoy ends their streams.
        """
        self.observe(endpoint_id, ())
        for replica in self._by_id.get(endpoint_id, ()):
            replica.restarted_unix_s = unix_now
            replica.busy_until = float("-inf")
            self.conditions.restarted(replica.key)
            self._change_index(Purged(replica.key))
            self.leases.drop_endpoint(replica.key)

    def _change_ledger(self, event: LedgerEvent) -> bool:
        changed = self.ledger.apply(event)
        if changed and self._on_event is not None:
            self._on_event(event)
        return changed

    def _change_index(self, event: IndexEvent) -> None:
        self.index.apply(event)
        if self._on_event is not None:
            self._on_event(event)

    # --- Showing --------------------------------------------------------------------------------

    def in_flight(self) -> dict[str, int]:
        """Return the requests in flight by endpoint id, each known endpoint included."""
        total: dict[str, int] = {}
        for key, load in self.ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight
        return total

    def state(self, now: float) -> dict[str, object]:
        """Return everything a person may want to see, ready for JSON."""
        return {
            "pools": {
                name: describe(roster.pool, self._replicas, self.index, self.conditions, now)
                for name, roster in self._rosters.items()
            },
            "recent": self.recent.describe(now),
            "counters": {
                "open_tickets": len(self.ledger),
                "settled": {str(each): count for each, count in self.ledger.outcomes.items()},
                "unmatched_settles": self.ledger.unmatched,
                "overflowed_charges": self.ledger.overflowed,
                "leases": len(self.leases),
                "evicted_leases": self.leases.evicted,
                "index_blocks": self.index.blocks,
            },
        }
