"""The router: one request in, an ordered choice or a refusal out.

Rules:

1. A decision draws the variant, filters, asks the pool's policy for prices, and only then
   changes state: ledger, index, lease. A refusal changes nothing.
2. Time and chance are arguments. The same calls with the same ``rng`` give the same decisions.
3. An endpoint is removed when it is gone from all pools: its tickets settle, its blocks and
   leases go. A change of policy, weights or limits keeps all three.
4. Each change of ledger, index and leases by a request is an event; ``on_event`` hears all of
   them, in order. What ``siblings`` did is no event here.
5. Not safe for threads: one event loop owns a router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.candidates import worth_remembering
from ext_proc.routing.choosing import Choice, Chooser
from ext_proc.routing.conditions import Conditions
from ext_proc.routing.credit import Credit
from ext_proc.routing.exact_index import CacheEvent, ExactIndex, IndexEvent
from ext_proc.routing.explain import Fixed, describe, explain
from ext_proc.routing.leases import Lease, Leased, LeaseEvent, Leases, Released
from ext_proc.routing.ledger import (
    MAX_TICKETS,
    Charged,
    EndpointRemoved,
    Ledger,
    LedgerEvent,
    Settled,
)
from ext_proc.routing.offers import cheapest, work_of
from ext_proc.routing.pace import FleetPace
from ext_proc.routing.policies import make_policy
from ext_proc.routing.prefix_index import Inserted, Purged
from ext_proc.routing.recent import MOST_ENDPOINTS, Recent
from ext_proc.routing.reuse import Reuse
from ext_proc.routing.roster import Directory, Replica, Roster
from ext_proc.routing.siblings import Siblings
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
from ext_proc.routing.unanswered import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ext_proc.routing.draw import Rng
    from ext_proc.routing.leases import LeaseKey
    from ext_proc.routing.policies import Offer, Policy

__all__ = ["Router"]


class Router:
    """Chooses replicas for requests.

    Args:
        rng: Chance, e.g. ``random.Random()``.
        max_tickets: Most requests counted as in flight at one time.
        zone: Where this picker stands, for pools that prefer its zone; empty = unknown.
        on_event: Hears each change of ledger, index and leases, for followers and replay.
        on_sequence: Called before a request of a sequence is decided, so that leases which others
            have granted are known.
    """

    def __init__(
        self,
        rng: Rng,
        *,
        max_tickets: int = MAX_TICKETS,
        zone: str = "",
        on_event: Callable[[LedgerEvent | IndexEvent | LeaseEvent], None] | None = None,
        on_sequence: Callable[[], None] | None = None,
    ) -> None:
        self._on_sequence = on_sequence
        self._rng = rng
        self._zone = zone
        self._on_event = on_event
        self._learners: Mapping[str, tuple[Policy, ...]] = {}
        """Policies that learn, by pool."""
        self.pools: Mapping[str, Pool] = {}
        """The pools as last set, by name."""
        self.ledger = Ledger(max_tickets)
        self.index = ExactIndex()
        self.leases = Leases()
        self.conditions = Conditions()
        """Who must not get new work although it is a member."""
        self._chooser = Chooser(self.index, self.leases, self.conditions, zone)
        self._credit = Credit()
        self._unanswered = Unanswered()
        self._moved: dict[int, Ticket] = {}
        """Moved tickets by the id that their holder knows."""
        self._rosters: dict[str, Roster] = {}
        self._paces: dict[str, FleetPace] = {}
        self._replicas: dict[EndpointKey, Replica] = {}
        self._by_id: dict[str, list[Replica]] = {}
        self.siblings = Siblings(
            self.ledger,
            self.index,
            self.leases,
            self.conditions,
            self._replicas,
            self._per_token,
            self._teach,
        )
        """What other workers of this machine did."""
        self.reuse = Reuse()
        """What replicas say that they took from their caches."""
        self.recent = Recent()
        """Some of the latest decisions."""
        self._directory = Directory(())
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
                each: self._chooser.policies.get(name, {}).get(each)
                or make_policy(each, self._rng, pool=name)
                for each in {pool.policy, *pool.allow_override}
            }
            for name, pool in pools.items()
        }
        for name, made in policies.items():
            for policy in made.values():
                policy.configure(pools[name])
        self._learners = {
            name: learners
            for name, made in policies.items()
            if (learners := tuple([each for each in made.values() if each.learns]))
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
        self._chooser.policies = policies
        self._paces = {name: self._paces.get(name) or FleetPace() for name in pools}
        self._rosters = {
            name: Roster(pool, self._replicas, self._paces[name]) for name, pool in pools.items()
        }
        self._directory = Directory(tuple(pools.values()))
        self._by_id = {}
        for replica in self._replicas.values():
            self._by_id.setdefault(replica.key.id, []).append(replica)
        self._chooser.silent = sum(replica.silent for replica in self._replicas.values())
        self.conditions.set_pools(pools)
        self.reuse.keep(self._by_id)
        self.index.expire(now)

    def _remove(self, key: EndpointKey) -> None:
        del self._replicas[key]
        if self.ledger.apply(EndpointRemoved(key)) and self._on_event is not None:
            self._on_event(EndpointRemoved(key))
        self.siblings.removed(key)
        self._purge(key)
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
        if self._on_sequence is not None and request.features.sequence_id is not None:
            self._on_sequence()
        choice = self._chooser.choose(roster, request, self._rng, now, unix_now)
        if isinstance(choice, Refusal):
            return choice
        offer, pool = choice.offer, roster.pool
        if not request.features.is_inference:
            return self._unpriced(choice, pool)
        lease_key = choice.lease_key
        wanted = 1 if lease_key is not None else 1 + pool.fallbacks
        order = cheapest(choice.prices, wanted, self._rng)
        picked = order[0]
        if choice.sampled:
            roster.remembered[offer.variant, request.protocol] = worth_remembering(
                offer, choice.prices, picked
            )
        sample = self._explained(roster, request, choice, now) if self.recent.due(now) else None
        said = choice.policy.picked(offer, picked)
        reason = "sequence" if choice.leased else said
        seats = offer.seats
        seat, matched = seats[picked], offer.matched[picked]
        self.conditions.picked(pool.name, seat.key, now)
        if request.blocks:
            self._inserted(seat.key, request.blocks, now)
        if lease_key is not None:
            lease = Lease(seat.key, offer.variant, now + pool.sequence_idle_s)
            ended = request.features.sequence_end
            self._leased(lease_key, None if ended else lease, now, fresh=not choice.leased)
        ticket = self._charge(offer, picked, pool.name)
        if choice.policy.learns and ticket is not None:
            choice.policy.charged(ticket)
        decision = Decision(
            ticket,
            tuple([seats[index].address for index in order]),
            pool.name,
            offer.variant,
            reason,
            lease_key is None,
            matched,
            seats,
            choice.prices,
        )
        if sample is not None:
            self.recent.keep(request, decision, sample, now)
        return decision

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
            seats=offer.seats,
            prices=choice.prices,
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
        if not self._charged(ticket):
            return None
        if offer.request.blocks:
            self._credit.note(ticket.id, offer.request.blocks)
        if prompted and offer.request.features.streaming:
            self._unanswered.note(ticket)
        if prompted:
            replica.busy_until = now + drain + work * per_token
        return ticket

    def explain(self, request: Request, now: float, unix_now: float) -> dict[str, object]:
        """Say how a request would be decided now and why, ready for JSON; nothing changes.

        Args:
            request: The request.
            now: Monotonic seconds.
            unix_now: Wall clock, for ramps.

        Returns:
            The pick and its rivals with their prices and parts, and for each other endpoint of
            the pool the filter that kept it out; or the refusal. What chance would decide is
            shown for one throw of it.
        """
        roster = self._rosters.get(request.pool)
        if roster is None:
            return {"refused": "unknown-pool", "why": f"no pool is named {request.pool!r}"}
        choice = self._chooser.choose(roster, request, Fixed(), now, unix_now)
        return explain(roster, request, choice, self.ledger, self.conditions, self._zone, now)

    def _explained(
        self, roster: Roster, request: Request, choice: Choice, now: float
    ) -> dict[str, object]:
        known = self.ledger, self.conditions, self._zone, now
        return explain(roster, request, choice, *known, most=MOST_ENDPOINTS)

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
        if not self._settled(ticket.id, Outcome.MOVED):
            return ticket
        self._last_ticket += 1
        moved = Ticket(self._last_ticket, found, ticket.pool, ticket.work, now)
        self._charged(moved)
        self.credit(ticket.id, found, now)
        return moved

    def credit(self, ticket_id: int, endpoint: EndpointKey, now: float) -> None:
        """Note in the prefix index who really served a request, after the proxy's retry.

        Args:
            ticket_id: The request's; it may be settled already.
            endpoint: Who served it.
            now: Monotonic seconds.
        """
        blocks = self._credit.take(ticket_id)
        if blocks and endpoint in self._replicas:
            self._inserted(endpoint, blocks, now)

    def answered(
        self,
        pool: str,
        endpoint: EndpointKey,
        first_byte_s: float | None,
        bytes_per_s: float | None,
    ) -> None:
        """Take how fast a replica answered, as the proxy saw it; see ``Served``."""
        replica = self._replicas.get(endpoint)
        if replica is not None and pool in replica.served:
            replica.served[pool].put(first_byte_s, bytes_per_s)

    def began(self, ticket_id: int, endpoint: EndpointKey, seconds: float) -> None:
        """Learn the speed of prefill from when the answer to a streamed request began.

        Args:
            ticket_id: The request's; it may be settled already.
            endpoint: Who answered; of a request that was retried nothing is learned.
            seconds: From dispatch to the first byte of the answer.
        """
        ticket = self._unanswered.take(ticket_id)
        if ticket is None or ticket.drain_s is None or ticket.endpoint != endpoint:
            return
        replica = self._replicas.get(endpoint)
        pace = None if replica is None else replica.paces.get(ticket.pool)
        if pace is not None:
            pace.answered(ticket.work, ticket.drain_s, seconds)

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
        if not self._settled(ticket.id, outcome):
            return False
        for policy in self._learners.get(ticket.pool, ()):
            policy.settled(ticket, outcome, now)
        if outcome is Outcome.DONE:
            self._teach(ticket, now)
        return True

    def _teach(self, ticket: Ticket, now: float) -> None:
        """Learn from a request that ended now as it should."""
        if ticket.drain_s is None:
            return
        pace = self._replicas[ticket.endpoint].paces.get(ticket.pool)
        if pace is not None:
            tokens = ticket.work if ticket.prompted else None
            pace.learn(tokens, ticket.drain_s, ticket.ahead, now - ticket.at, now)

    def _per_token(self, ticket: Ticket) -> float:
        """Return the seconds of prefill per token on a ticket's replica, 0 where unknown."""
        fleet = self._paces.get(ticket.pool)
        pace = self._replicas[ticket.endpoint].paces.get(ticket.pool)
        return 0.0 if fleet is None or pace is None else fleet.seconds_per_token * pace.slowness

    def observe(self, endpoint_id: str, readings: Sequence[Reading]) -> None:
        """Take what an endpoint says about itself; an unknown endpoint is ignored."""
        for replica in self._by_id.get(endpoint_id, ()):
            self._chooser.silent -= replica.silent
            self.conditions.heard(replica.key, replica.readings, readings)
            replica.observe(readings)
        if endpoint_id in self._by_id:
            self.reuse.told(endpoint_id, readings)

    def cached(self, event: CacheEvent) -> None:
        """Take what an engine says of its cache; one of an unknown endpoint is ignored."""
        if event.endpoint in self._replicas:
            self.index.apply(event)
            if self._on_event is not None:
                self._on_event(event)

    def silent(self, endpoint_id: str) -> None:
        """Note that an endpoint that told its numbers does not answer any more.

        It is chosen last, not never: its metrics port may be all that fails. The next reading
        ends this. An endpoint that was never heard of is not judged.
        """
        for replica in self._by_id.get(endpoint_id, ()):
            self._chooser.silent += replica.heard - replica.silent
            replica.silent = replica.heard

    def sweep(self, now: float) -> None:
        """Look who stands still with work in flight; about once a second."""
        ours = {key: load.in_flight - load.others for key, load in self.ledger.loads()}
        self.conditions.sweep(ours, now)

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
            for served in replica.served.values():
                served.clear()
            if self.index.is_exact(replica.key) is None:  # else its engines tell, and sooner
                self._purge(replica.key)
            self.leases.drop_endpoint(replica.key)

    # Events are made for those who hear them only: this is the hot path.

    def _charged(self, ticket: Ticket) -> bool:
        changed = self.ledger.charge(ticket)
        if changed and self._on_event is not None:
            self._on_event(Charged(ticket))
        return changed

    def _settled(self, ticket_id: int, outcome: Outcome) -> bool:
        changed = self.ledger.settle(ticket_id, outcome)
        if changed and self._on_event is not None:
            self._on_event(Settled(ticket_id, outcome))
        return changed

    def _inserted(self, key: EndpointKey, blocks: tuple[int, ...], now: float) -> None:
        self.index.insert(key, blocks, now)
        if self._on_event is not None:
            self._on_event(Inserted(key, blocks, now))

    def _leased(self, key: LeaseKey, lease: Lease | None, now: float, *, fresh: bool) -> None:
        if lease is None:
            self.leases.release(key)
        else:
            self.leases.keep(key, lease, now)
        if self._on_event is not None:
            self._on_event(Released(key) if lease is None else Leased(key, lease, fresh))

    def _purge(self, key: EndpointKey) -> None:
        self.index.purge(key)
        if self._on_event is not None:
            self._on_event(Purged(key))

    # --- Showing --------------------------------------------------------------------------------

    def replicas(self) -> Iterable[Replica]:
        """Return what is known of each replica; to be read at once, as the membership changes."""
        return self._replicas.values()

    def in_flight(self) -> dict[str, int]:
        """Return our requests in flight by endpoint id, each known endpoint included."""
        total: dict[str, int] = {}
        for key, load in self.ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight - load.others
        return total

    def loads(self) -> dict[str, int]:
        """Return the requests in flight by endpoint id, those of siblings included."""
        total: dict[str, int] = {}
        for key, load in self.ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight
        return total

    def state(self, now: float) -> dict[str, object]:
        """Return everything a person may want to see, ready for JSON."""
        return {
            "pools": {
                name: describe(roster.pool, self._replicas, self.index, self.conditions, now)
                | {"pace": self._paces[name].describe()}
                | {"learning": [each.describe(now) for each in self._learners.get(name, ())]}
                for name, roster in self._rosters.items()
            },
            "recent": self.recent.describe(now),
            "counters": {
                "open_tickets": len(self.ledger),
                "open_tickets_of_siblings": len(self.siblings),
                "settled": {str(each): count for each, count in self.ledger.outcomes.items()},
                "unmatched_settles": self.ledger.unmatched,
                "overflowed_charges": self.ledger.overflowed,
                "leases": len(self.leases),
                "evicted_leases": self.leases.evicted,
                "index_blocks": self.index.blocks,
            },
        }
