"""The router: one request in, an ordered choice or a refusal out.

Who there is to choose from, and what they say of themselves, lies in ``members``.

Rules:

1. A decision draws the variant, filters, asks the pool's policy for prices, and only then
   changes state: ledger, index, lease. A refusal changes nothing.
2. Time and chance are arguments. The same calls with the same ``rng`` give the same decisions.
3. Each change of ledger, index and leases by a request is an event; ``on_event`` hears all of
   them, in order. What ``peers`` did is no event here.
4. Not safe for threads: one event loop owns a router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.cache.credit import Credit
from ext_proc.routing.cache.prefix_index import Inserted
from ext_proc.routing.explain import Fixed, describe, explain
from ext_proc.routing.latency.pending_tickets import PendingTickets
from ext_proc.routing.pipeline.context import cheapest, work_of
from ext_proc.routing.pipeline.decision import Decision
from ext_proc.routing.pipeline.sampling import worth_remembering
from ext_proc.routing.recent import MOST_ENDPOINTS, Recent
from ext_proc.routing.registry import EndpointRegistry
from ext_proc.routing.state.leases import Lease, Leased, LeaseEvent, Released
from ext_proc.routing.state.ledger import MAX_TICKETS, Charged, LedgerEvent, Settled
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.ticket import DONE, Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.cache.exact_index import IndexEvent
    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.state.leases import LeaseKey
    from ext_proc.routing.state.pool_state import PoolState
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng

__all__ = ["Router"]


class Router(EndpointRegistry):
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
        super().__init__(rng, max_tickets=max_tickets, zone=zone, on_event=on_event)
        self._on_sequence = on_sequence
        self._credit = Credit()
        self._pending_tickets = PendingTickets()
        self._moved: dict[int, Ticket] = {}
        """Moved tickets by the id that their holder knows."""
        self.recent = Recent()
        """Some of the latest decisions."""
        self._last_ticket = 0

    def __repr__(self) -> str:
        return f"<Router pools={len(self.pools)} open={len(self.ledger)} {self.index!r}>"

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
        pool_state = self._pool_states.get(request.pool)
        if pool_state is None:
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {request.pool!r}")
        self.index.expire(now)
        if self._on_sequence is not None and request.features.sequence_id is not None:
            self._on_sequence()
        choice = self._scheduler.choose(pool_state, request, self._rng, now, unix_now)
        if isinstance(choice, Refusal):
            return choice
        context, pool = choice.context, pool_state.pool
        if not request.features.is_inference:
            return self._unpriced(choice, pool)
        lease_key = choice.lease_key
        wanted = 1 if lease_key is not None else 1 + pool.fallbacks
        order = cheapest(choice.prices, wanted, self._rng)
        picked = order[0]
        if choice.sampled:
            pool_state.remembered[context.variant, request.protocol] = worth_remembering(
                context, choice.prices, picked
            )
        sample = self._explained(pool_state, request, choice, now) if self.recent.due(now) else None
        said = choice.policy.picked(context, picked)
        reason = "sequence" if choice.leased else said
        candidates = context.candidates
        candidate, matched = candidates[picked], context.matched[picked]
        self.conditions.picked(pool.name, candidate.key, now)
        if request.blocks:
            self._inserted(candidate.key, request.blocks, now)
        if lease_key is not None:
            lease = Lease(candidate.key, context.variant, now + pool.sequence_idle_s)
            ended = request.features.sequence_end
            self._leased(lease_key, None if ended else lease, now)
        ticket = self._charge(context, picked, pool.name)
        if choice.policy.learns and ticket is not None:
            choice.policy.charged(ticket)
        decision = Decision(
            ticket,
            tuple([candidates[index].address for index in order]),
            pool.name,
            context.variant,
            reason,
            lease_key is None,
            matched,
            candidates,
            choice.prices,
        )
        if sample is not None:
            self.recent.keep(request, decision, sample, now)
        return decision

    def _unpriced(self, choice: Choice, pool: Pool) -> Decision:
        """Send what is not inference to the least loaded; it leaves no trace in the state."""
        context = choice.context
        order = cheapest(choice.prices, 1 + pool.fallbacks, self._rng)
        return Decision(
            ticket=None,
            addresses=tuple([context.candidates[index].address for index in order]),
            pool=pool.name,
            variant=context.variant,
            reason="other",
            candidates=context.candidates,
            prices=choice.prices,
        )

    def _charge(self, context: SchedulingContext, index: int, pool: str) -> Ticket | None:
        self._last_ticket += 1
        candidate, now, work = context.candidates[index], context.now, work_of(context, index)
        per_token = context.latency_model.seconds_per_token * candidate.latency_model.slowness
        replica, prompted = candidate.replica, context.tokens is not None
        drain = replica.drain_s(now, per_token)
        ticket = Ticket(
            self._last_ticket,
            candidate.key,
            pool,
            work,
            now,
            prompted,
            drain,
            candidate.load.in_flight,
        )
        if not self._charged(ticket):
            return None
        if context.request.blocks:
            self._credit.note(ticket.id, context.request.blocks)
        if context.tokens is not None:
            expected = drain + work * per_token
            replica.busy_until = now + expected
            if context.request.features.streaming:
                self._pending_tickets.note(ticket)
                replica.first_bytes.note(ticket, expected, context.tokens * per_token)
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
        pool_state = self._pool_states.get(request.pool)
        if pool_state is None:
            return {"refused": "unknown-pool", "why": f"no pool is named {request.pool!r}"}
        choice = self._scheduler.choose(pool_state, request, Fixed(), now, unix_now)
        return explain(pool_state, request, choice, self.ledger, self.conditions, self._zone, now)

    def _explained(
        self, pool_state: PoolState, request: Request, choice: Choice, now: float
    ) -> dict[str, object]:
        known = self.ledger, self.conditions, self._zone, now
        return explain(pool_state, request, choice, *known, most=MOST_ENDPOINTS)

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
        self._replicas[ticket.endpoint].first_bytes.gone(ticket.id, now)
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

    def began(self, ticket_id: int, endpoint: EndpointKey, seconds: float) -> None:
        """Learn the speed of prefill from when the answer to a streamed request began.

        Args:
            ticket_id: The request's; it may be settled already.
            endpoint: Who answered; of a request that was retried nothing is learned.
            seconds: From dispatch to the first byte of the answer.
        """
        ticket = self._pending_tickets.take(ticket_id)
        if ticket is None or ticket.drain_s is None or ticket.endpoint != endpoint:
            return
        replica = self._replicas.get(endpoint)
        latency_model = None if replica is None else replica.latency_models.get(ticket.pool)
        fleet = self._latency_models.get(ticket.pool)
        if replica is not None and latency_model is not None and fleet is not None:
            replica.first_bytes.began(ticket, ticket.at + seconds, latency_model)
            fleet.heard(ticket.at)
            latency_model.answered(ticket.work, ticket.drain_s, seconds)

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
        done = outcome is DONE
        if ticket.prompted:
            first_bytes = self._replicas[ticket.endpoint].first_bytes
            if first_bytes.work:
                first_bytes.answered(ticket.id, now) if done else first_bytes.gone(ticket.id, now)
        if done:
            self._teach(ticket, now)
        return True

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

    def _leased(self, key: LeaseKey, lease: Lease | None, now: float) -> None:
        if lease is None:
            self.leases.release(key)
        else:
            self.leases.keep(key, lease, now)
        if self._on_event is not None:
            self._on_event(Released(key) if lease is None else Leased(key, lease))

    # --- Showing --------------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, object]:
        """Return everything a person may want to see, ready for JSON."""
        return {
            "pools": {
                name: describe(pool_state.pool, self._replicas, self.index, self.conditions, now)
                | {"pace": self._latency_models[name].describe()}
                | {"learning": [each.describe(now) for each in self._learners.get(name, ())]}
                for name, pool_state in self._pool_states.items()
            },
            "recent": self.recent.describe(now),
            "counters": {
                "open_tickets": len(self.ledger),
                "open_tickets_of_siblings": len(self.peers),
                "settled": {str(each): count for each, count in self.ledger.outcomes.items()},
                "unmatched_settles": self.ledger.unmatched,
                "overflowed_charges": self.ledger.overflowed,
                "leases": len(self.leases),
                "evicted_leases": self.leases.evicted,
                "index_blocks": self.index.blocks,
            },
        }
