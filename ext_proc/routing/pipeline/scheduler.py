"""One scheduling decision: filters and prices the candidates, and puts the priced ones in order.

Rules of the choice:

1. The order is: lease, variant, subset, version, constraints, placement of the model, the replica
   on which the request's origin fails, conditions, the care that a suspect needs, in-flight limit,
   sampling, prices, slow start of ramping replicas, preferences, silent replicas last.
2. Nothing is changed except the ``rng`` argument and that expired leases are dropped. An
   explanation therefore gets the same prices as a decision.

Rules for the time that the proxy waits for a replica's first sign before it tries another:

1. The route has a bound on the time to the headers of an answer (``timeouts.first_answer``). Here
   it is shortened for a request whose answer is streamed: there the headers come with the first
   token at the latest; the time of other answers depends on their unknown length. Engines that send
   headers at once always keep it: Envoy has no bound on the time to the first token.
2. The bound is ``FIRST_ANSWER_FACTOR`` times the larger of two values: the expected time of this
   prompt on the pick, behind the work before it, and the recent peak of the pick's times to the
   first byte, which rises with a queue. It is never below ``first_answer_least_s``.
3. Where either is unknown, nothing is shortened. gRPC streams have no bound: they may be idle.
4. Bounds are steps of 1.5, so that few different ones occur and replies can be cached.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.placement import Sent
from ext_proc.routing.pipeline.filters import (
    at_limits,
    below_burst,
    below_limit,
    below_slots,
    below_slots_low,
    draw_variant,
    eligible,
    having,
    in_subset,
    not_wrong,
    satisfying,
    with_holders,
)
from ext_proc.routing.pipeline.preferences import preferred_first
from ext_proc.routing.pipeline.sampling import SMALL, shortlist
from ext_proc.routing.pipeline.slow_start import factor, with_slow_start
from ext_proc.routing.policies import make_policy
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.state.candidates import FRESH_S, SchedulingContext
from ext_proc.routing.state.leases import LeaseKey
from ext_proc.routing.values.plain import Plain
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import GRPC_STREAM, NAMES_ADAPTER
from tidegate_api.names import POLICY_HEADER
from tidegate_api.pools import MAX_LISTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping, Sequence

    from ext_proc.routing.cache.prefix_table import PrefixTable, Steps
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.health.placement import Holders, Placement
    from ext_proc.routing.policies import Policy
    from ext_proc.routing.relief import Relief
    from ext_proc.routing.state.candidates import Candidate, PoolState
    from ext_proc.routing.state.hops import ZoneHops
    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.values.pool import EndpointKey, Pool, Protocol
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.ticket import Ticket


class Choice:
    """Candidates with their prices, before any state is changed.

    Args:
        policy: The policy that priced them.
        context: The scheduling context with the candidates.
        prices: Their prices.
        lease_key: The lease key of the request's sequence, ``None`` without one.
        leased: Whether a live lease determined the candidate.
        sampled: Whether the pool is large, so that the candidates are a sample.
        exceeds: Whether all candidates are at their own limits; ``None`` = these do not bound it.
        placed: Which replicas have the request's model; ``None`` = unknown, or a lease decided.
    """

    __slots__ = (
        "context",
        "exceeds",
        "experiment",
        "lease_key",
        "leased",
        "placed",
        "policy",
        "prices",
        "sampled",
    )

    def __init__(
        self,
        policy: Policy,
        context: SchedulingContext,
        prices: Sequence[float],
        lease_key: LeaseKey | None,
        leased: bool,
        sampled: bool,
        exceeds: bool | None = None,
        placed: Holders | None = None,
    ) -> None:
        self.policy = policy
        self.context = context
        self.prices = prices
        self.lease_key = lease_key
        self.leased = leased
        self.sampled = sampled
        self.exceeds = exceeds
        self.placed = placed
        self.experiment: tuple[object, ...] | None = None
        """The experiment that decides for a replica, set by the router (``experiments``)."""

    def prompted(self, reporting: Container[EndpointKey]) -> SchedulingContext | None:
        """Return the context of a request with a prompt whose candidates report their caches."""
        context = self.context
        if context.tokens is None or not self.policy.in_seconds:
            return None
        return context if context.candidates[0].key in reporting else None


class Scheduler:
    """Applies filters and policies to requests; the router keeps the inputs up to date.

    Args:
        index: Blocks that the replicas probably have cached.
        leases: Leases of sequences.
        conditions: Health conditions of the replicas.
        placement: Which replicas have which model.
        hops: Prices of picks in other zones than the picker's.
        waiting: Live view of what waits; where it is empty, requests without priority spare none.
        spares: Returns whether a request leaves the last place of a replica's own limit free.
        relief: What is left out while the picker's CPU does not suffice.
    """

    def __init__(
        self,
        index: PrefixTable,
        leases: Leases,
        conditions: Conditions,
        placement: Placement,
        hops: ZoneHops,
        *,
        spares: Callable[[Request], bool],
        waiting: Collection[object],
        relief: Relief,
    ) -> None:
        self._relief = relief
        self._waiting = waiting
        self._spares = spares
        self._placement = placement
        self._hops = hops
        self._conditions = conditions
        self._index = index
        self._leases = leases
        self._least = LeastInFlight()
        self.policies: Mapping[str, Mapping[str, Policy]] = {}
        """Policies by pool and name: the pool's own policy and those that a request may select."""

    def make_policies(self, pools: Mapping[str, Pool], rng: Rng) -> dict[str, dict[str, Policy]]:
        """Create and configure the policies of pools; existing ones are kept.

        Raises:
            ValueError: A pool names an unknown policy.
        """
        made = {
            name: {
                each: self.policies.get(name, {}).get(each) or make_policy(each, rng, pool=name)
                for each in {pool.policy, *pool.allow_override}
            }
            for name, pool in pools.items()
        }
        for name, policies in made.items():
            for policy in policies.values():
                policy.configure(pools[name])
        return made

    def choose(  # noqa: C901, PLR0912, PLR0915 - a function for a part costs each request a call
        self, pool_state: PoolState, request: Request, rng: Rng, now: float, unix_now: float
    ) -> Choice | Refusal:
        """Filter and price the candidates; changes nothing but ``rng`` and expired leases."""
        pool, features = pool_state.pool, request.features
        inference = features.is_inference
        policy = self.policies[pool.name][pool.policy] if inference else self._least
        if inference and POLICY_HEADER in request.headers:
            selected = self._selected(pool, request.headers[POLICY_HEADER])
            if isinstance(selected, Refusal):
                return selected
            policy = selected
        if self._relief.level and policy.in_seconds:
            policy = self._least
        lease_key: LeaseKey | None = None
        leased: tuple[str, Sequence[Candidate]] | None = None
        if inference and features.sequence_id is not None and (sequence := features.sequence):
            lease_key = LeaseKey(pool.name, sequence)
            found = self._leased(pool_state, request, lease_key, now)
            if isinstance(found, Refusal):
                return found
            leased = found
        candidates: Sequence[Candidate]
        placed: Holders | None = None
        if leased is not None:
            (variant, candidates), constrained = leased, False
        else:
            opened = self._open(pool_state, request, rng, now)
            if isinstance(opened, Refusal):
                return opened
            variant, candidates, constrained, placed = opened
            if self._conditions.failing:
                rest = self._conditions.elsewhere(pool.name, candidates, request, now)
                constrained, candidates = constrained or rest is not candidates, rest
        limit = pool.per_endpoint_in_flight if inference else 0
        own: str | None = None
        # A sequence that has begun has a slot already, and a stream's share of one is not known.
        if pool.limit != "none" and request.limited and inference and not limit and leased is None:
            own = None if features.form is GRPC_STREAM else features.model or ""
        exceeds = None if own is None else False
        low = (features.priority is not None or self._waiting) and self._spares(request)
        index, blocks = self._index, request.blocks
        steps = index.match(blocks) if blocks and not features.recomputed else []
        free: Sequence[Candidate] = ()
        matched: Sequence[int]
        anyone = request.subset is None and request.care is None
        sampled = anyone and len(candidates) > SMALL and not policy.everyone and not constrained
        if sampled:
            free, matched = self._sample(
                pool_state,
                request,
                variant,
                candidates,
                steps,
                limit,
                own,
                rng,
                now,
                placed,
                low=bool(low),
            )
        if not free:
            if leased is None and candidates:
                if placed is not None:
                    candidates = having(placed, candidates)
                candidates = self._conditions.keep(pool.name, candidates, now, request)
            allowed = candidates
            if limit or not anyone or not candidates:
                where, care = f"{pool.name}/{variant}", request.care
                kept = eligible(
                    candidates, subset=request.subset, limit=limit, where=where, care=care
                )
                if isinstance(kept, Refusal):
                    return kept
                allowed = kept
            free, matched = allowed, self._depths(pool_state, request.protocol, steps, allowed)
            if own is not None:
                free = below_slots_low(allowed, own) if low else below_slots(allowed, own)
                if free is not allowed:
                    holders = not (low and self._waiting)
                    if not free:
                        bursts = not low and pool.hold_s and (pool.name, own) not in self._waiting
                        if bursts and not pool_state.stands(variant, own, now):
                            free, exceeds, holders = below_burst(allowed, own), True, False
                        if not free:
                            return at_limits(allowed, own, f"{pool.name}/{variant}")
                    free, matched = with_holders(allowed, matched, free, own, holders=holders)
        if request.batch:
            matched = self._of_batch(pool_state, request, free)
            blocks = request.batch[0]
        shared = branched = 0
        if steps or request.batch:
            shared, branched = self._in_common(policy, blocks, matched, len(candidates))
        others = pool_state.others_at > now - FRESH_S
        pending = _with_others(free, now) if others else [each.load.in_flight for each in free]
        block_tokens = request.block_tokens or pool.block_chars / request.bytes_per_token
        ramp = _ramp(pool, free, unix_now) if pool.slow_start.window_s > 0.0 else None
        weighs = policy.weighs
        context = SchedulingContext(
            request,
            free,
            variant,
            pool_state.size,
            pending,
            [each.load.work for each in free] if weighs else (),
            [each.capacity for each in free] if weighs or ramp is not None else (),
            matched,
            len(request.blocks),
            shared,
            pool.load_factor,
            _tokens_of(request, block_tokens),
            block_tokens,
            pool_state.latency_model,
            now,
            rng,
            ramp,
            branched,
        )
        prices = self._prices(pool_state, policy, context, inference=inference)
        return Choice(
            policy, context, prices, lease_key, leased is not None, sampled, exceeds, placed
        )

    def _prices(
        self, pool_state: PoolState, policy: Policy, context: SchedulingContext, *, inference: bool
    ) -> Sequence[float]:
        """Return the policy's prices after slow start, preferences and silent replicas."""
        prices, features = policy.prices(context), context.request.features
        if inference:
            if context.ramp is not None:
                prices = with_slow_start(context, prices, context.rng, in_seconds=policy.in_seconds)
            if (
                pool_state.prefers
                or features.adapter is not None
                or features.model in self._conditions.adapters
            ):
                pool, zone = pool_state.pool, self._hops.zone
                if pool.prefer_zone and policy.in_seconds:
                    hops, zone = self._hops.seconds(pool, context.candidates), ""
                    prices = [price + hop for price, hop in zip(prices, hops, strict=True)]
                prices = preferred_first(
                    pool, features, context.candidates, prices, zone, context.now
                )
        return _silent_last(context, prices) if self._conditions.silent else prices

    def _sample(
        self,
        pool_state: PoolState,
        request: Request,
        variant: str,
        candidates: Sequence[Candidate],
        steps: Steps,
        limit: int,
        own: str | None,
        rng: Rng,
        now: float,
        placed: Holders | None,
        *,
        low: bool,
    ) -> tuple[Sequence[Candidate], Sequence[int]]:
        """Return a sample with the match depths.

        It is empty if all of it is at the in-flight limit, or lacks a model that others have.
        """
        group = (variant, request.protocol)
        by_key, known = pool_state.open_by_key.get(group, {}), pool_state.remembered.get(group, ())
        few, held = shortlist(candidates, by_key, known, self._index, steps, rng)
        allowed: Sequence[Candidate] = few
        if placed is not None and placed.barred:
            allowed = [each for each in few if each.key not in placed.barred]
        # Conditions come before the limit, because they never empty a choice.
        free = below_limit(self._conditions.keep(request.pool, allowed, now, request), limit)
        if free is not few:
            held = [held[few.index(candidate)] for candidate in free]
        if own is None:
            return free, held
        roomy = below_slots_low(free, own) if low else below_slots(free, own)
        if roomy is free:
            return free, held
        return with_holders(free, held, roomy, own, holders=not (low and self._waiting))

    def _open(
        self, pool_state: PoolState, request: Request, rng: Rng, now: float
    ) -> tuple[str, Sequence[Candidate], bool, Holders | None] | Refusal:
        """Draw the variant; return it, its candidates, whether some were removed, and placement."""
        pool, features = pool_state.pool, request.features
        drawn: str | Refusal | None = pool_state.only if not features.version else None
        if drawn is None:
            drawn = draw_variant(pool, features, request.headers, drawn=request.variant, rng=rng)
        if isinstance(drawn, Refusal):
            return drawn
        candidates = pool_state.open.get((drawn, request.protocol), ())
        named = candidates if request.subset is None else in_subset(candidates, request.subset)
        if not named:
            return drawn, candidates, False, None
        known = pool.name in self._placement.views
        placed = self._placed(pool_state, request, drawn) if known else None
        constrained = False
        needy = (pool.model_needs or features.adapter is not None) and features.is_inference
        if needy or (placed is not None and placed.wrong):
            fit: Sequence[Candidate] | Refusal = named
            where = f"{pool.name}/{drawn}"
            if placed is not None and placed.wrong:
                fit = not_wrong(placed, named, features.model, where)
            if needy and not isinstance(fit, Refusal):
                fit = satisfying(pool, features, fit, now, where)
            if isinstance(fit, Refusal):
                return fit
            constrained, named = len(fit) < len(named), fit
        if placed is None:
            return drawn, named, constrained, None
        if len(named) > SMALL and not self._conditions.failing:
            return drawn, named, constrained, placed  # the sample is filtered instead
        rest = having(placed, named)
        return drawn, rest, constrained or rest is not named, placed

    def _placed(self, pool_state: PoolState, request: Request, variant: str) -> Holders | None:
        """Return which replicas have a request's model; ``None`` = unknown.

        A request without a version is for that of its variant. Over HTTP Envoy writes it into the
        path, so a replica may have others too; over gRPC the replica must answer by it.
        """
        features, pool = request.features, pool_state.pool.name
        version = features.version or None
        own = None if version is not None else pool_state.versions.get(variant)
        if own is not None and request.protocol == "grpc":
            return self._placement.answering(pool, features.model, own)
        if features.model is None:
            return None
        return self._placement.holders(pool, features.model, version or own)

    def _depths(
        self,
        pool_state: PoolState,
        protocol: Protocol,
        steps: Steps,
        candidates: Sequence[Candidate],
    ) -> list[int]:
        """Return the match depth of each candidate."""
        if not steps:
            return [0] * len(candidates)
        key = self._index.sole_holder(steps)
        if key is None:
            return self._index.depths(steps, candidates)
        depths, holder = [0] * len(candidates), pool_state.candidate(key, protocol)
        if holder in candidates:
            _, depths[candidates.index(holder)] = steps[-1]
        return depths

    def _of_batch(
        self, pool_state: PoolState, request: Request, candidates: Sequence[Candidate]
    ) -> list[int]:
        """Return how many blocks of a batch each candidate need not compute.

        They are those that it holds, and those that several prompts of the batch share: they are
        computed once.
        """
        seen: set[int] = set()
        total = [0] * len(candidates)
        for chain in request.batch:
            again = next((at for at, block in enumerate(chain) if block not in seen), len(chain))
            seen.update(chain)
            steps = [] if request.features.recomputed else self._index.match(chain)
            depths = self._depths(pool_state, request.protocol, steps, candidates)
            total = [count + max(depth, again) for count, depth in zip(total, depths, strict=True)]
        return total

    def _in_common(
        self, policy: Policy, blocks: tuple[int, ...], matched: Sequence[int], candidates: int
    ) -> tuple[int, int]:
        """Return the number of leading blocks that are shared, and that are branched."""
        deepest = min(max(matched), len(blocks))
        if not deepest:
            return 0, 0
        branched = self._index.branched_depth(blocks, deepest) if policy.copies else 0
        if policy.stepwise:  # one more copy than there are
            candidates = min(candidates, 1 + len(matched) - matched.count(0))
        return self._index.shared_depth(blocks, deepest, candidates), branched

    def _selected(self, pool: Pool, selected: str) -> Policy | Refusal:
        """Return the policy that a request selects, if the pool allows it."""
        if selected == pool.policy or selected in pool.allow_override:
            return self.policies[pool.name][selected]
        allowed = ", ".join(sorted(pool.allow_override)) or "none"
        return Refusal(
            RefusalKind.BAD_REQUEST,
            f"{POLICY_HEADER}: pool {pool.name!r} does not let a request choose the policy"
            f" {selected[:64]!r}; it allows: {allowed}",
        )

    def _leased(
        self, pool_state: PoolState, request: Request, key: LeaseKey, now: float
    ) -> tuple[str, Sequence[Candidate]] | Refusal | None:
        """Return variant and candidate of a live lease; ``None`` if the sequence may be moved.

        A replica that answers by another version by now has the sequence's state no more.
        """
        lease = self._leases.find(key, now)
        if lease is None:
            return None
        if lease.endpoint not in pool_state.keys:  # removed from this pool, maybe not from others
            self._leases.release(key)
            return None
        candidate = pool_state.candidate(lease.endpoint, request.protocol)
        if candidate is None:  # only this replica has the state, but it lacks the protocol
            return lease.variant, ()
        start = request.features.sequence_start
        if candidate.draining and start:
            return None
        found = candidate.variant, (candidate,)
        placed = (
            self._placed(pool_state, request, candidate.variant) if pool_state.versions else None
        )
        if placed is None or candidate.key not in placed.wrong:
            return found
        where = f"{pool_state.pool.name}/{candidate.variant}"
        right = not_wrong(placed, found[1], request.features.model, where)
        return None if start or not isinstance(right, Refusal) else right


def _with_others(candidates: Sequence[Candidate], now: float) -> list[float]:
    """Return the requests on each replica, with those of other clients where they are known."""
    stale = now - FRESH_S
    return [
        each.load.in_flight + (each.replica.others if each.replica.others_at > stale else 0.0)
        for each in candidates
    ]


def _tokens_of(request: Request, block_tokens: float) -> float | None:
    """Return the tokens of a request's prompt, estimated if unknown; ``None`` = no prompt."""
    tokens: float | None = request.tokens
    if tokens is None:
        prompt, scale = request.features.prompt, request.bytes_per_token
        tokens = len(request.blocks) * block_tokens
        if prompt is not None and len(prompt) > tokens * scale:
            tokens = len(prompt) / scale
    return float(int(tokens)) if tokens else None


def _ramp(pool: Pool, candidates: Sequence[Candidate], unix_now: float) -> list[float] | None:
    ramp: list[float] | None = None
    for number, candidate in enumerate(candidates):
        joined, restarted = candidate.joined_unix_s, candidate.replica.restarted_unix_s
        if restarted is not None:
            joined = restarted if joined is None else max(joined, restarted)
        if joined is not None and (risen := factor(pool.slow_start, joined, unix_now)) < 1.0:
            if ramp is None:
                ramp = [1.0] * len(candidates)
            ramp[number] = risen
    return ramp


def _silent_last(context: SchedulingContext, prices: Sequence[float]) -> Sequence[float]:
    """Return the prices with silent replicas last."""
    if not any(candidate.replica.silent for candidate in context.candidates):
        return prices
    behind = max(prices) - min(prices) + 1.0
    return [
        price + behind if candidate.replica.silent else price
        for candidate, price in zip(context.candidates, prices, strict=True)
    ]


DRAWN: Final = 3
"""Places of an order for which equal prices are drawn singly."""
SHARED_MEMORY: Final = b"shared_memory_region"
"""In the body of a request that names a region, in JSON and in protobuf: Triton answers 404 to one
that it does not know, whatever it has of the model."""


class Decision(Plain):
    """An ordered choice of replicas with its reason.

    Args:
        ticket: The charge of the pick; ``None`` for non-inference requests.
        addresses: The pick, followed by its fallbacks.
        pool: The pool's name.
        variant: The variant's name.
        reason: Short label from a fixed set, e.g. ``prefix``, ``least``, ``sequence``.
        retriable: False if only the pick can serve it, because it has the sequence's state.
        matched_blocks: Blocks of the prompt that the pick probably holds.
        candidates: The candidates.
        prices: Their prices, lower is better.
        repeatable: False for sequences, and for requests that several replicas died with: a second
            replica must not read the request.
        first_answer_s: Bound on the time to the headers of the answer; ``None`` = the route's own.
        repeat_missing: A 404 may be repeated on the fallbacks: some replica has the model.
    """

    __slots__ = (
        "addresses",
        "candidates",
        "first_answer_s",
        "matched_blocks",
        "pool",
        "prices",
        "reason",
        "repeat_missing",
        "repeatable",
        "retriable",
        "ticket",
        "variant",
    )

    def __init__(
        self,
        ticket: Ticket | None,
        addresses: tuple[str, ...],
        pool: str,
        variant: str,
        reason: str,
        retriable: bool = True,
        matched_blocks: int = 0,
        candidates: Sequence[Candidate] = (),
        prices: Sequence[float] = (),
        repeatable: bool = True,
        first_answer_s: float | None = None,
        repeat_missing: bool = False,
    ) -> None:
        self.ticket = ticket
        self.addresses = addresses
        self.pool = pool
        self.variant = variant
        self.reason = reason
        self.retriable = retriable
        self.matched_blocks = matched_blocks
        self.candidates = candidates
        self.prices = prices
        self.repeatable = repeatable
        self.first_answer_s = first_answer_s
        self.repeat_missing = repeat_missing

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Endpoint id and price of each candidate, for explanations."""
        return [
            (candidate.key.id, price)
            for candidate, price in zip(self.candidates, self.prices, strict=True)
        ]


def cheapest(
    prices: Sequence[float], count: int, rng: Rng, prompted: SchedulingContext | None = None
) -> list[int]:
    """Return the indices of the ``count`` lowest prices, equal ones in random order.

    Behind the first ``DRAWN`` equal ones follow each other as they are, from a random one on.

    Args:
        prices: Prices by index.
        count: How many.
        rng: Source of randomness.
        prompted: The context of a request with a prompt whose candidates report their caches. If
            several idle ones have the lowest price, the one that was sent the fewest tokens to
            compute then comes first: a prompt evicts others, and so the caches of an idle fleet
            are under equal pressure. Of equal ones it is the one whose last prefill ended first.
    """
    price_of = prices.__getitem__
    ranked = sorted(range(len(prices)), key=price_of)
    if len(set(prices)) == len(ranked):  # nothing to draw
        return ranked[:count]
    wanted = min(count, len(ranked))
    drawn = min(DRAWN, wanted)
    order: list[int] = []
    begin, random = 0, rng.random
    while begin < wanted:
        end = bisect_right(ranked, prices[ranked[begin]], begin + 1, key=price_of)
        ties = ranked[begin:end]
        left = end - begin
        if left > 1:
            if prompted is not None and not begin and not prompted.pending[ties[0]]:
                left -= _least_sent(prompted, ties, order)
            least = max(left - drawn + len(order), 1)
            order += [ties.pop(int(random() * many)) for many in range(left, least, -1)]
            left = len(ties)
            if left > 1 and len(order) < wanted:
                at = int(random() * left)
                ties = ties[at:] + ties[:at]
        order += ties
        begin = end
    return order[:wanted]


def _least_sent(prompted: SchedulingContext, ties: list[int], order: list[int]) -> int:
    """Move the one that was sent the fewest tokens from ``ties`` to ``order``; return how many."""
    candidates = prompted.candidates
    sent = [
        (candidates[index].replica.prefilled, candidates[index].replica.busy_until)
        for index in ties
    ]
    least = min(sent)
    if sent.count(least) > 1:
        return 0
    order.append(ties.pop(sent.index(least)))
    return 1


def listed(
    choice: Choice,
    order: Sequence[int],
    pool_state: PoolState,
    failed: Mapping[EndpointKey, float],
) -> tuple[str, ...]:
    """Return the addresses of a pick and its fallbacks, at most ``MAX_LISTED``.

    Rules:

    1. Where replicas share a host, or are in several zones, no host comes again before all others,
       nor a zone: what fails together is not all that is tried. Else the order is that of prices.
    2. Replicas whose latest sign was a failure come behind the others, the latest one last.
    3. Behind those that may have the model come those that may have it since (``Holders.maybe``).

    Args:
        choice: The candidates.
        order: Indices of the pick and of fallbacks, by price: more than are listed, where hosts or
            zones are mixed.
        pool_state: The pool.
        failed: Replicas whose latest sign was a failed connection, and when (``Conditions``).
    """
    candidates, placed = choice.context.candidates, choice.placed
    if choice.leased or not pool_state.pool.fallbacks:
        return (candidates[order[0]].address,)
    if pool_state.mixes and len(candidates) > 1:
        order = _mixed(candidates, order)
    if failed:
        last = sorted(order[1:], key=lambda index: failed.get(candidates[index].key, 0.0))
        order = [order[0], *last]
    addresses = [candidates[index].address for index in order]
    if placed is not None and placed.maybe and len(addresses) < MAX_LISTED:
        request = choice.context.request
        open_ = pool_state.open_by_key.get((choice.context.variant, request.protocol), {})
        if request.care is None and request.subset is None:
            maybe = [open_[each].address for each in placed.maybe if each in open_]
            addresses += [each for each in maybe if each not in addresses]
    return tuple(addresses[:MAX_LISTED])


def _mixed(candidates: Sequence[Candidate], order: Sequence[int]) -> list[int]:
    """Return the indices with hosts and zones in turn; the pick stays the first."""
    hosts: dict[str, int] = {}
    zones: dict[str, int] = {}
    turns: list[tuple[int, int, int, int]] = []
    for place, index in enumerate(order):
        candidate = candidates[index]
        host = hosts[candidate.host] = hosts.get(candidate.host, -1) + 1
        zone = zones[candidate.zone] = zones.get(candidate.zone, -1) + 1
        turns.append((host, zone, place, index))
    turns.sort()
    return [turn[3] for turn in turns]


def repeats(
    placement: Placement,
    holders: Holders | None,
    context: SchedulingContext,
    picked: int,
    ticket: Ticket | None,
) -> bool:
    """Note a pick that has the model READY; return whether a 404 may be repeated.

    Args:
        placement: The table.
        holders: Which replicas have the request's model.
        context: The candidates.
        picked: Index of the pick.
        ticket: The pick's ticket, ``None`` if it has none.
    """
    if holders is None:
        return False
    candidates, model = context.candidates, context.request.features.model
    if holders.version and ticket is not None:
        pool, variant = ticket.pool, context.variant
        sent = Sent(pool, variant, model or "", holders.version)
        placement.sent(candidates[picked].key, sent)
    request = context.request
    if model is None or not holders.repeats or placement.is_own(holders, model, request.client):
        return False
    if request.body is not None and SHARED_MEMORY in request.body:
        return False
    features = request.features
    if features.adapter is not None and features.form in NAMES_ADAPTER:
        return False  # an engine answers 404 to an adapter that it does not know
    if ticket is not None and candidates[picked].key in holders.ready:
        placement.note(ticket.id, model, request.client, context.now)
    return True


def unpriced(
    choice: Choice,
    pool_state: PoolState,
    rng: Rng,
    placement: Placement,
    failed: Mapping[EndpointKey, float],
) -> Decision:
    """Send a non-inference request to the least loaded replica; changes no state but ``rng``."""
    context = choice.context
    order = cheapest(choice.prices, SMALL if pool_state.mixes else MAX_LISTED, rng)
    addresses = listed(choice, order, pool_state, failed)
    missing = repeats(placement, choice.placed, context, order[0], None)
    return Decision(
        ticket=None,
        addresses=addresses,
        pool=pool_state.pool.name,
        variant=context.variant,
        reason="other",
        candidates=context.candidates,
        prices=choice.prices,
        repeat_missing=missing and len(addresses) > 1,
    )


FIRST_ANSWER_FACTOR: Final = 5.0
FIRST_ANSWER_STEP: Final = 1.5


def first_answer_s(
    context: SchedulingContext, picked: int, pool: Pool, ticket: Ticket | None
) -> float | None:
    """Return the bound for a request, ``None`` for the route's own.

    Args:
        context: The context of its decision.
        picked: Position of the pick among the candidates.
        pool: Its pool.
        ticket: Its ticket.
    """
    features = context.request.features
    if not features.streaming or ticket is None:
        return None
    least, most = pool.first_answer_least_s, pool.first_answer_s
    if not 0.0 < least < most:
        return None
    candidate = context.candidates[picked]
    expected = candidate.latency_model.expects(ticket.work + ticket.coming)
    served = candidate.replica.served.get(pool.name)
    peak = None if served is None else served.peak.value(context.now)
    if expected is None or peak is None or features.form is GRPC_STREAM:
        return None
    expected += ticket.drain_s or 0.0
    wanted = FIRST_ANSWER_FACTOR * max(expected, peak)
    while least < wanted:
        least *= FIRST_ANSWER_STEP
    return least if least < most else None
