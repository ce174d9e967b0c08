"""The request router: takes one request and returns an ordered choice of replicas or a refusal.

It is composed of the endpoint registry (pools and replicas), the scheduler (choice), the ledger
(requests in flight) and the learner (speed of replicas).

Rules:

1. A decision draws the variant, filters the candidates, gets their prices from the pool's policy,
   and only then changes state: ledger, index, lease. A refusal changes nothing.
2. Time and randomness are arguments. The same calls with the same ``rng`` give the same decisions.
3. Each change of ledger, index or leases by a request is an event; ``on_event`` is called with
   all of them, in order. Changes made by peer workers raise no events here.
4. Not thread-safe: one event loop owns a router.
5. A request that may wait joins the queue if no replica has room, or if others of its pool and
   model wait. ``on_room`` is called when a request has ended, here or at a peer, or a limit has
   changed while others wait; ``pump`` lets them go. What else makes room (a replica, the end of
   abandoned work) is found by calling ``pump`` now and then.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Final

from ext_proc.blame.origins import SentRequests
from ext_proc.canary import session_digest
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import tenant_of
from ext_proc.routing.cache.reuse import Reuse
from ext_proc.routing.cache.trials import Trials
from ext_proc.routing.explain import GAP_S, Explainer, Recent, counters, describe
from ext_proc.routing.health.conditions import Conditions
from ext_proc.routing.health.slowness import Slowness
from ext_proc.routing.learner import Learner
from ext_proc.routing.peers import PeerWorkers
from ext_proc.routing.pipeline.experiments import assigned
from ext_proc.routing.pipeline.filters import is_drawn
from ext_proc.routing.pipeline.sampling import SMALL, worth_remembering
from ext_proc.routing.pipeline.scheduler import (
    Decision,
    Scheduler,
    cheapest,
    first_answer_s,
    listed,
    repeats,
    unpriced,
)
from ext_proc.routing.queue.queue import Queue
from ext_proc.routing.queue.waiting import lane_of
from ext_proc.routing.registry import EndpointRegistry
from ext_proc.routing.relief import NAMES, Relief
from ext_proc.routing.scales import Scales, prompt_bytes
from ext_proc.routing.state.hops import ZoneHops
from ext_proc.routing.state.leases import Lease, Leased, LeaseEvent, LeaseKey, Leases, Released
from ext_proc.routing.state.ledger import MAX_TICKETS, Ledger, LedgerEvent
from ext_proc.routing.state.starts import SequenceStarts
from ext_proc.routing.suspicion import Suspicion
from ext_proc.routing.values.proposal import Proposal
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import GRPC_STREAM
from ext_proc.routing.values.ticket import DONE, Outcome, Ticket
from tidegate_api.pools import MAX_LISTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.canary import CanarySessions
    from ext_proc.routing.cache.index_events import IndexEvent
    from ext_proc.routing.cache.trials import Verdict
    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.queue.waiting import QueuedRequest
    from ext_proc.routing.state.candidates import PoolState
    from ext_proc.routing.state.leases import SequenceOwners, Told
    from ext_proc.routing.suspicion import SuspicionEvent
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng

MAX_CHATS: Final = 4096
WAITS_FOR: Final = frozenset({RefusalKind.SATURATED, RefusalKind.NO_ENDPOINTS})
"""What may pass while a request waits. Without a replica at all it does not begin to wait."""
UNPLACED: Final = RefusalKind.UNPLACED  # see `exchange.machine`
_UNPLACED_TEXT: Final = (
    "the picker that places this sequence does not answer, and another one might choose another"
    " replica; send the request again"
)
__all__ = ["Router"]


class Router:
    """Chooses replicas for requests.

    Args:
        rng: Source of randomness, e.g. ``random.Random()``.
        max_tickets: Maximum number of requests counted as in flight at one time.
        zone: Zone of this picker, for pools with ``prefer_zone``; empty = unknown.
        on_event: Called with each change of ledger, index and leases, for followers and replay.
        on_sequence: Called before a request of a sequence is decided, so that leases granted by
            peer workers can be read first.
    """

    owners: SequenceOwners | None
    """The group of pickers, of which one places each new sequence; ``None`` = this picker does."""

    def __init__(
        self,
        rng: Rng,
        *,
        max_tickets: int = MAX_TICKETS,
        zone: str = "",
        on_event: Callable[[LedgerEvent | IndexEvent | Verdict | LeaseEvent | SuspicionEvent], None]
        | None = None,
        on_sequence: Callable[[], None] | None = None,
    ) -> None:
        self._rng = rng
        self._on_event = on_event
        self.uploads: dict[str, int] = {}
        """Uploads under way, by client; each has one or more."""
        self.ledger = Ledger(max_tickets, on_event)
        self.index = PrefixIndex()
        self.leases = Leases()
        self.conditions = Conditions()
        """Health conditions that keep registered replicas from new work."""
        self.reuse = Reuse()
        """Prompt tokens that replicas report as reused from their caches."""
        self.scales = Scales(self._rescaled)
        """Bytes per token of each pool's text."""
        self.registry = EndpointRegistry(
            self.ledger,
            self.index,
            self.leases,
            self.conditions,
            self.reuse,
            self.scales,
            on_event=on_event,
            on_removed=self._removed,
            on_read=lambda replica, readings: self.learner.read(replica, readings),  # noqa: PLW0108 - made below
        )
        self.placement = self.registry.placement
        self.limits = self.registry.limits
        self.learner = Learner(self.registry.members)
        self.slowness = Slowness()
        """Which replicas take much longer than their peers."""
        self.recent = Recent()
        """A sample of the latest decisions."""
        self.suspicion = Suspicion(self.ledger.ticket, on_event, on_sequence, self.recent)
        """Bodies of requests without a verdict, and what is held against them."""
        self.queue, self.relief = Queue(rng), Relief()
        """Requests that wait for a replica with room, and what is left out where the CPU does not
        suffice."""
        self.limits.on_change, self.limits.low_waits = self._may_have_room, self.queue.low_waits
        self.on_room: Callable[[], None] = lambda: None
        self.trials = Trials(self.index, self.registry.members, on_event)
        """Prompts in the index whose answers have not begun."""
        # Read with each request.
        self._deaths, self._proposed = self.suspicion.deaths, self.trials.open
        self._reporting, self._dead = self.index.table.reporting, self.index.table.dead
        self.peers = PeerWorkers(
            self.ledger,
            self.index,
            self.trials,
            self.leases,
            self.conditions,
            self.registry.members,
            self.learner.seconds_per_token,
            self.learner.finished,
            self.suspicion,
            self.limits,
        )
        """Folds the replication events of the other workers on this machine."""
        self.hops = ZoneHops(zone)
        """Prices of picks in other zones than this picker's."""
        self._scheduler = Scheduler(
            self.index.table,
            self.leases,
            self.conditions,
            self.placement,
            self.hops,
            spares=self.limits.spares,
            waiting=self.queue.lines,
            relief=self.relief,
        )
        self._explainer = Explainer(self._scheduler, self.limits, self.conditions, self.hops)
        self.pools = self.registry.pools
        """The pools as last set, by name; copied from the registry because each exchange reads
        them."""
        self._pool_states = self.registry.pool_states
        self._members = self.registry.members
        self._on_sequence, self.owners = on_sequence, None
        self.sent = SentRequests()
        """The latest requests that were sent, and on whose behalf."""
        self.starts = SequenceStarts(self.leases, self.registry.at, self._leased)
        self._moved: dict[int, Ticket] = {}
        """The current ticket of each moved charge, by the id of the caller's ticket."""
        self._last_ticket = 0
        self.chat_tokens: dict[int, int] = {}
        """Exact tokens of the latest chats whose engines tell theirs, by ticket; at most
        ``MAX_CHATS``."""

    def _may_have_room(self, _: EndpointKey) -> None:
        if self.queue.count:
            self.on_room()

    def __repr__(self) -> str:
        return f"<Router pools={len(self.pools)} open={len(self.ledger)} {self.index!r}>"

    # --- Membership -----------------------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool], now: float) -> None:
        """Replace all pools.

        Args:
            pools: All pools, by name.
            now: Monotonic seconds.

        Raises:
            ValueError: A pool names an unknown policy; nothing is changed then.
        """
        policies = self._scheduler.make_policies(pools, self._rng)
        self._scheduler.policies = policies
        self.learner.set_pools(pools, policies)
        self.scales.set_pools(pools)
        self.registry.set_pools(pools, self.learner.models, now)
        self.suspicion.set_pools(pools)
        self.slowness.set_pools(pools)
        self.pools = self.registry.pools

    def _removed(self, key: EndpointKey) -> None:
        self.peers.removed(key)
        self.learner.progress.forget(key.id)

    def _rescaled(self, pool: str, factor: float) -> None:
        """Convert what is measured in tokens of a pool's text."""
        self.learner.rescale(pool, factor, self._last_ticket)
        self.registry.bound()

    # --- Deciding -------------------------------------------------------------------------------

    def decide(  # noqa: C901, PLR0912, PLR0915 - a function for a part costs each request a call
        self, request: Request, now: float, unix_now: float, granted: Proposal | None = None
    ) -> Decision | Refusal:
        """Choose the replicas for one request and charge it to the first of them.

        Args:
            request: The request.
            now: Monotonic seconds, not less than in any earlier call.
            unix_now: Wall-clock seconds, for ramps.
            granted: The new lease of the request's sequence, which no replica has seen yet.

        Returns:
            The pick with its fallbacks and its ticket, which must be settled once; or a refusal.
        """
        pool_state = self._pool_states.get(request.pool)
        if pool_state is None:
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {request.pool!r}")
        if now >= self.index.retention.next_expiry or self._dead:
            self.index.expire(now)
        if self._deaths.active and (refusal := self.suspicion.admit(request, now)) is not None:
            return refusal
        before: Lease | None = None
        if self._on_sequence is not None and request.features.sequence_id is not None:
            before = self._read_leases(self._on_sequence, request, now)
        choice = self._scheduler.choose(pool_state, request, self._rng, now, unix_now)
        if isinstance(choice, Refusal):
            if choice.kind is RefusalKind.SATURATED:
                pool_state.waits(request.features.model or "", now)
            return choice
        context, pool = choice.context, pool_state.pool
        if not request.features.is_inference:
            return unpriced(choice, pool_state, self._rng, self.placement, self.conditions.failed)
        if choice.exceeds or pool_state.exceeded:
            self._note_burst(pool_state, choice, now)
        lease_key = choice.lease_key
        count = 1 if choice.leased else SMALL if pool_state.mixes else MAX_LISTED
        prompted = choice.prompted(self._reporting) if self._reporting else None
        order = cheapest(choice.prices, count, self._rng, prompted)
        if (
            lease_key is not None
            and self.owners is not None
            and (
                self.owners.unsure(lease_key)
                if choice.leased
                else not self.owners.places(lease_key)
            )
        ):
            before = None if choice.leased else before
            return self._unplaced(lease_key, choice, order, pool_state, before)
        if self.conditions.failing:
            order = assigned(choice, order, self.conditions, self._rng)
        picked = order[0]
        if choice.sampled:
            pool_state.remembered[context.variant, request.protocol] = worth_remembering(
                context, choice.prices, picked
            )
        recent = self.recent
        recent.seen += 1
        due = now - recent.last >= GAP_S and recent.due(now)
        sample = self._explainer.sample(pool_state, request, choice, now) if due else None
        label = choice.policy.picked(context, picked)
        candidates = context.candidates
        candidate, matched = candidates[picked], context.matched[picked]
        self.conditions.picked(pool.name, candidate.key, now)
        ticket = self._charge(choice, picked, pool_state)
        if ticket is not None and pool_state.canary is not None:
            self._count(pool_state.canary, ticket, choice, pool, matched, unix_now)
        addresses = listed(choice, order, pool_state, self.conditions.failed)
        fresh = False
        if lease_key is not None:
            if granted is not None and choice.leased and granted.endpoint == candidate.key:
                addresses, fresh = granted.addresses, True
            lease = Lease(candidate.key, context.variant, now + pool.sequence_idle_s)
            self._leased(lease_key, None if request.features.sequence_end else lease, now)
            if fresh or not choice.leased:
                self.starts.note(ticket, lease_key, addresses)
        confined = request.care is not None and request.care.member
        decision = Decision(
            ticket,
            addresses,
            pool.name,
            context.variant,
            "sequence" if choice.leased else label,
            (not choice.leased or fresh) and not confined,
            matched,
            candidates,
            choice.prices,
            lease_key is None and request.repeatable and not confined,
            first_answer_s(context, picked, pool, ticket) if request.features.streaming else None,
            repeats(self.placement, choice.placed, context, picked, ticket) and len(addresses) > 1,
        )
        if sample is not None:
            recent.keep(request, decision, sample, now)
        return decision

    def _note_burst(self, pool_state: PoolState, choice: Choice, now: float) -> None:
        """Note a request that exceeds limits, or has found room while none of its model wait."""
        context, model = choice.context, choice.context.request.features.model or ""
        if choice.exceeds:
            pool_state.exceeds(context.variant, model, now)
        elif choice.exceeds is False and not self.queue.waits(pool_state.pool.name, model):
            pool_state.has_room(context.variant, model)

    def _read_leases(self, read: Callable[[], None], request: Request, now: float) -> Lease | None:
        """Read what peers have leased; in a group, return the lease of a request's sequence."""
        read()
        sequence = request.features.sequence
        if self.owners is None or sequence is None:
            return None
        return self.leases.find(LeaseKey(request.pool, sequence), now)

    def _unplaced(
        self,
        key: LeaseKey,
        choice: Choice,
        order: Sequence[int],
        pool_state: PoolState,
        before: Lease | None,
    ) -> Refusal:
        """Return what is to be asked of the owner of a sequence, as a refusal without an answer."""
        proposal = Proposal(
            key.pool,
            key.sequence,
            choice.context.candidates[order[0]].key,
            choice.context.variant,
            pool_state.pool.sequence_idle_s,
            None if before is None else before.endpoint,
            listed(choice, order, pool_state, self.conditions.failed),
        )
        return Refusal(UNPLACED, _UNPLACED_TEXT, proposed=proposal)

    def place(self, proposal: Proposal, told: Told, latest: float = inf) -> Callable[[], None]:
        """Ask the picker that places a sequence; return what takes the question back.

        The answer comes by ``latest``, monotonic seconds, and within ``PLACED_S``.
        """
        if self.owners is None:
            raise RuntimeError("there is no group of pickers")
        return self.owners.ask(proposal, told, latest)

    def _charge(  # noqa: C901, PLR0912 - a function for a part costs each request a call
        self, choice: Choice, index: int, pool_state: PoolState
    ) -> Ticket | None:
        self._last_ticket += 1
        context, pool = choice.context, pool_state.pool
        candidate, now, tokens = context.candidates[index], context.now, context.tokens
        per_token = context.latency_model.seconds_per_token * candidate.latency_model.slowness
        replica, ahead, prompted = candidate.replica, candidate.load.in_flight, tokens is not None
        drain = replica.drain_s(now, per_token) if replica.busy_until > now else 0.0
        number, key, matched = self._last_ticket, candidate.key, context.matched[index]
        work = 1.0 if tokens is None else max(1.0, tokens - matched * context.block_tokens)
        request = context.request
        features = request.features
        coming = 0.0
        if matched and not request.batch:
            coming = self.index.coming(key, request.blocks, matched) * context.block_tokens
        kind = None if features.form is GRPC_STREAM else features.model or ""
        most = features.max_tokens or 0
        counts = kind if kind is None or kind in self.limits.names else ""
        ticket = Ticket(
            number, key, pool.name, work, now, prompted, drain, ahead, coming, kind, most, counts
        )
        if not self.ledger.charge(ticket):
            return None
        replica.sent += work
        self.sent.note(ticket, request, choice.experiment)
        if request.blocks:
            whose = tenant_of(features, pool.seed)
            if request.batch:
                self.trials.propose_all(
                    number, key, request.batch, whose, now, recomputed=features.recomputed
                )
            else:
                self.trials.propose(
                    number, key, request.blocks, whose, matched, now, recomputed=features.recomputed
                )
        if pool.refuse_deadly:
            self.suspicion.picked(number, key.id, request, now)
        if tokens is not None:
            if pool.usage or key.id in self.scales.counting:
                self.scales.sent(
                    number,
                    pool.name,
                    features.model,
                    key.id,
                    prompt_bytes(request),
                    request.tokens,
                    request.blocks,
                )
            if key.id in self.learner.progress.told:
                self.learner.progress.sent(ticket)
            expected = drain + work * per_token
            replica.busy(now + expected, per_token)
            pool_state.prefilled = replica.prompted(work, pool_state.prefilled)
            if features.streaming:
                self.learner.sent(ticket, expected + coming * per_token, tokens * per_token)
        if choice.policy.learns:
            choice.policy.charged(ticket)
        if request.chat and pool.usage and request.tokens is not None:
            if len(self.chat_tokens) >= MAX_CHATS:
                del self.chat_tokens[next(iter(self.chat_tokens))]
            self.chat_tokens[number] = request.tokens
        return ticket

    def _count(
        self,
        sessions: CanarySessions,
        ticket: Ticket,
        choice: Choice,
        pool: Pool,
        matched: int,
        unix_now: float,
    ) -> None:
        """Note a pick of a pool in which a rollout runs, or may begin."""
        context, arms = choice.context, sessions.arms
        request, features = context.request, context.request.features
        digest = session_digest(request, pool)
        if arms is None:
            if digest is not None:
                sessions.seen(digest, ticket.at)
            return
        listed = features.model in pool.models and features.adapter is None
        number, variant, at = ticket.id, context.variant, ticket.at
        if digest is not None and sessions.goes_on(number, digest, variant, at, listed=listed):
            return
        cached = matched * context.block_tokens - ticket.coming if matched else 0.0
        sessions.begins(
            number,
            digest,
            variant,
            at,
            unix_now,
            drawn=not choice.leased and is_drawn(pool, request, arms),
            listed=listed,
            form=features.form,
            streams=features.streaming,
            uncached=int(ticket.work) if ticket.prompted else 0,
            predicted=int(cached),
        )

    def explain(self, request: Request, now: float, unix_now: float) -> dict[str, object]:
        """Explain, without changing state, how a request would be decided now; ready for JSON."""
        pool_state = self._pool_states.get(request.pool)
        if pool_state is None:
            return {"refused": "unknown-pool", "why": f"no pool is named {request.pool!r}"}
        told = self._explainer.would(pool_state, request, now, unix_now)
        if pool_state.pool.hold_s:
            told["queue"] = self.queue.line(request.pool, request.features.model, now)
        return told

    # --- Waiting for a replica with room --------------------------------------------------------

    def wait(
        self, waiting: QueuedRequest, now: float, unix_now: float
    ) -> Decision | Refusal | None:
        """Let a request wait for a replica with room; ``None`` = it waits, and will be told.

        Args:
            waiting: The request; its lane is set here.
            now: Monotonic seconds.
            unix_now: Wall-clock seconds, for ramps.
        """
        request, pool_state = waiting.request, self._pool_states.get(waiting.pool)
        if pool_state is None:
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {request.pool!r}")
        waiting.lane = lane_of(request, pool_state.pool, self.leases, now)
        if not self.queue.blocks(waiting):
            decision = self.decide(request, now, unix_now)
            if not isinstance(decision, Refusal) or decision.kind is not RefusalKind.SATURATED:
                return decision
            waiting.refusal = decision
        return self.queue.join(waiting, now)

    def pump(self, now: float, unix_now: float) -> int:
        """Let go what can go of the requests that wait; return how many were told."""

        def attempt(waiting: QueuedRequest) -> Decision | Refusal | None:
            decision = self.decide(waiting.request, now, unix_now)
            if isinstance(decision, Refusal) and decision.kind in WAITS_FOR:
                waiting.refusal = decision
                return None
            return decision

        return sum(self.queue.pump(pool, attempt, now) for pool in self.queue.pools())

    # --- After the decision ---------------------------------------------------------------------

    def served(self, ticket: Ticket, address: str, now: float) -> Ticket:
        """Move a charge to the replica that served the request after a retry by the proxy.

        Args:
            ticket: The open ticket.
            address: ``ip:port`` of the replica in the pool.
            now: Monotonic seconds.

        Returns:
            The ticket that is open now. It is a new one, unless the pick itself served, the pool
            does not know the address, or the ticket is settled already.
        """
        first = ticket.id
        ticket = self._moved.pop(ticket.id, ticket)
        found = self.registry.at(ticket.pool, address)
        if found is None or found == ticket.endpoint:
            return ticket
        if not self.ledger.settle(ticket.id, Outcome.MOVED):
            return ticket
        self.learner.moved(ticket, now)
        self.scales.ended(ticket.id, ticket.endpoint.id)
        self._last_ticket += 1
        moved = Ticket(self._last_ticket, found, ticket.pool, ticket.work, now, model=ticket.model)
        self.ledger.charge(moved)
        self.starts.served(first, found, now)
        self.trials.move(first, found, now)
        return moved

    def note_serving(self, ticket_id: int, address: str, now: float) -> bool:
        """Move the charge of a running request to the replica at ``address`` that serves it.

        The caller that holds the original ticket still settles the request with that ticket.

        Returns:
            Whether the charge moved.
        """
        known = self._moved.get(ticket_id) or self.ledger.ticket(ticket_id)
        if known is None:
            return False
        moved = self.served(known, address, now)
        if moved is known:
            return False
        self._moved[ticket_id] = moved
        self.trials.move(ticket_id, moved.endpoint, now)
        return True

    def began(self, ticket_id: int, endpoint: EndpointKey, seconds: float) -> None:
        """Learn from the first byte of an answer.

        Args:
            ticket_id: Ticket of the request; it may be settled already.
            endpoint: The replica that answered.
            seconds: Time from dispatch to the first byte.
        """
        self.limits.began(endpoint, ticket_id, self.ledger.ticket(ticket_id), seconds)
        self.learner.began(ticket_id, endpoint, seconds)

    def settle(  # noqa: C901 - a function for a part costs each request a call
        self, ticket: Ticket, outcome: Outcome, now: float
    ) -> bool:
        """Settle a request that ended.

        Args:
            ticket: The ticket of its decision.
            outcome: How it ended.
            now: Monotonic seconds.

        Returns:
            False if it was settled before, by this method or by the removal of its endpoint.
        """
        done = outcome is DONE
        if now >= self.index.retention.next_expiry or self._dead:
            self.index.expire(now)
        if self._proposed:
            self.trials.ended(ticket.id, now, done=done)
        if self._deaths.active:
            self.suspicion.settled(ticket.id, now)
        if self._moved:
            ticket = self._moved.pop(ticket.id, ticket)
        if not self.ledger.settle(ticket.id, outcome):
            return False
        if self.queue.count:
            self.on_room()
        if ticket.prompted and (self.scales.held or self.scales.prompts):
            self.scales.ended(ticket.id, ticket.endpoint.id)
            if done:
                self.scales.began(ticket.id, ticket.endpoint.id)
            else:
                self.scales.failed(ticket.id)
        if ticket.model is not None and ticket.endpoint in self.limits.learns:
            self.limits.ended(ticket, ticket.model, now, done=done)
        self.learner.settled(ticket, outcome, now)
        if done and now >= self.slowness.due:
            self.slowness.took(ticket, now)
        return True

    # --- What the proxy's log says of attempts --------------------------------------------------

    def confirmed(self, ticket_id: int, endpoint: EndpointKey) -> None:
        """Note that a request's answer began on a replica with a status below 400."""
        self.scales.began(ticket_id, endpoint.id)
        self.trials.confirm(ticket_id, endpoint)

    def rejected(self, ticket_id: int) -> None:
        """Note that a request ended without an answer below 400."""
        self.trials.reject(ticket_id)

    def _leased(self, key: LeaseKey, lease: Lease | None, now: float) -> None:
        if lease is None:
            self.leases.release(key)
        else:
            self.leases.keep(key, lease, now)
        if self._on_event is not None:
            self._on_event(Released(key) if lease is None else Leased(key, lease))

    def leaving(self) -> Mapping[tuple[str, str], int]:
        """Return the requests in flight for models that leave replicas, by endpoint id and model.

        Requests whose model is not known count for each; gRPC streams, which their clients keep
        open, for none.
        """
        leaving = self.placement.leaving
        found: Counter[tuple[str, str]] = Counter()
        for ticket in self.ledger if leaving else ():
            for model in leaving.get(ticket.endpoint, ()):
                if ticket.kind is not None and ticket.kind in {model, ""}:
                    found[ticket.endpoint.id, model] += 1
        return found

    # --- State for debugging --------------------------------------------------------------------

    def state(self, now: float) -> dict[str, object]:
        """Return pools, endpoints, recent decisions and counters for ``/debug``, ready for JSON."""
        return {
            "pools": {
                name: describe(
                    pool_state.pool,
                    self._members,
                    self.index,
                    self.conditions,
                    self.limits,
                    now,
                )
                | self.learner.describe(name, now)
                | {"text": self.scales.describe(name)}
                for name, pool_state in self._pool_states.items()
            },
            "recent": self.recent.describe(now),
            "deaths": self.suspicion.deaths.describe(now),
            "abandoned": self.registry.abandoned.describe(),
            "queue": self.queue.describe(now),
            "relief": NAMES[self.relief.level],
            "hops": self.hops.describe(),
            "canaries": self.registry.canaries.describe(),
            "counters": counters(self.ledger, self.peers, self.leases, self.index, self.trials),
        }
