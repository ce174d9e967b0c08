"""Choosing: from a request to its seats with their prices, before anything changes.

Rules:

1. The order is: lease, variant, subset, needs, conditions, in-flight limit, candidates, prices,
   turns of ramping replicas, wishes, silent ones last.
2. Nothing changes but the ``rng`` that is passed in, and leases that have run out are dropped. So
   an explanation asks the same question as a decision and gets the same prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.candidates import SMALL, shortlist
from ext_proc.routing.draw import draw_variant
from ext_proc.routing.filters import below_limit, eligible, in_subset
from ext_proc.routing.leases import LeaseKey
from ext_proc.routing.narrowing import able, wished_first
from ext_proc.routing.offers import make_offer, silent_last
from ext_proc.routing.policies.least_in_flight import LeastInFlight
from ext_proc.routing.turns import with_turns
from ext_proc.routing.types import Refusal, RefusalKind
from protos.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.conditions import Conditions
    from ext_proc.routing.draw import Rng
    from ext_proc.routing.leases import Leases
    from ext_proc.routing.policies import Offer, Policy
    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.prefix_table import Steps
    from ext_proc.routing.roster import Roster, Seat
    from ext_proc.routing.types import Pool, Request


class Choice:
    """Seats with their prices, before anything has changed.

    Args:
        policy: Who priced them.
        offer: The seats.
        prices: The prices.
        lease_key: The request's sequence.
        leased: A live lease left no choice.
        sampled: The pool is large: not all were looked at.
    """

    __slots__ = ("lease_key", "leased", "offer", "policy", "prices", "sampled")

    def __init__(
        self,
        policy: Policy,
        offer: Offer,
        prices: Sequence[float],
        lease_key: LeaseKey | None,
        leased: bool,
        sampled: bool,
    ) -> None:
        self.policy = policy
        self.offer = offer
        self.prices = prices
        self.lease_key = lease_key
        self.leased = leased
        self.sampled = sampled


class Chooser:
    """Asks filters and policies; the router keeps what it reads up to date.

    Args:
        index: What the replicas probably have cached.
        leases: Where sequences live.
        conditions: What keeps replicas from new work.
        zone: Where this picker stands; empty = unknown.
    """

    def __init__(
        self, index: PrefixIndex, leases: Leases, conditions: Conditions, zone: str = ""
    ) -> None:
        self._zone = zone
        self._conditions = conditions
        self._index = index
        self._leases = leases
        self._least = LeastInFlight()
        self.policies: Mapping[str, Mapping[str, Policy]] = {}
        """By pool and name: the pool's own one and those that a request may ask for."""
        self.silent = 0
        """Replicas that stopped telling their numbers."""

    def choose(
        self, roster: Roster, request: Request, rng: Rng, now: float, unix_now: float
    ) -> Choice | Refusal:
        """Filter and price, changing nothing but ``rng`` and leases that have run out."""
        pool, features = roster.pool, request.features
        inference = features.is_inference
        policy = self._least if not inference else self._allowed(pool, request)
        if isinstance(policy, Refusal):
            return policy
        sequence = features.sequence if inference else None
        lease_key = None if sequence is None else LeaseKey(pool.name, sequence)
        leased = None if lease_key is None else self._leased(roster, request, lease_key, now)
        seats: Sequence[Seat]
        if leased is not None:
            (variant, seats), picky = leased, False
        else:
            opened = self._open(roster, request, rng, now)
            if isinstance(opened, Refusal):
                return opened
            variant, seats, picky = opened
        limit = pool.per_endpoint_in_flight if inference else 0
        index, blocks = self._index, request.blocks
        steps = index.match(blocks) if blocks else []
        free: Sequence[Seat] = ()
        matched: Sequence[int] = ()
        sampled = (
            len(seats) > SMALL and not policy.everyone and request.subset is None and not picky
        )
        if sampled:
            free, matched = self._sample(roster, request, variant, seats, steps, limit, rng, now)
        if not free:
            where = f"{pool.name}/{variant}"
            if leased is None and seats:
                seats = self._conditions.keep(pool.name, seats, now)
            allowed = eligible(seats, subset=request.subset, limit=limit, where=where)
            if isinstance(allowed, Refusal):
                return allowed
            free = allowed
            matched = index.depths(steps, free) if steps else [0] * len(free)
        shared, branched = self._in_common(policy, blocks, matched, len(seats))
        offer = make_offer(
            roster, request, variant, free, matched, shared, rng, now, unix_now, branched
        )
        prices = self._prices(pool, policy, offer, inference=inference)
        return Choice(policy, offer, prices, lease_key, leased is not None, sampled)

    def _prices(
        self, pool: Pool, policy: Policy, offer: Offer, *, inference: bool
    ) -> Sequence[float]:
        """Return the policy's prices after ramps, wishes and silence."""
        prices, features = policy.prices(offer), offer.request.features
        if inference:
            if offer.ramp is not None:
                prices = with_turns(offer, prices, offer.rng, in_seconds=policy.in_seconds)
            if pool.prefer_zone or pool.model_needs or features.adapter is not None:
                prices = wished_first(pool, features, offer.seats, prices, self._zone, offer.now)
        return silent_last(offer, prices) if self.silent else prices

    def _sample(
        self,
        roster: Roster,
        request: Request,
        variant: str,
        seats: Sequence[Seat],
        steps: Steps,
        limit: int,
        rng: Rng,
        now: float,
    ) -> tuple[Sequence[Seat], Sequence[int]]:
        """Return candidates out of many seats with what each holds; none where all are full."""
        door = (variant, request.protocol)
        by_key, known = roster.open_by_key(*door), roster.remembered.get(door, ())
        few, held = shortlist(seats, by_key, known, self._index, steps, rng)
        # Within the able: conditions never empty a choice.
        free = below_limit(self._conditions.keep(request.pool, few, now), limit)
        return free, held if free is few else [held[few.index(seat)] for seat in free]

    def _open(
        self, roster: Roster, request: Request, rng: Rng, now: float
    ) -> tuple[str, Sequence[Seat], bool] | Refusal:
        """Draw the variant; return it, who may be chosen, and whether needs kept anyone out."""
        pool, features = roster.pool, request.features
        drawn: str | Refusal | None = roster.only if not features.version else None
        if drawn is None:
            drawn = draw_variant(
                pool, features, request.headers, leased=None, drawn=request.variant, rng=rng
            )
        if isinstance(drawn, Refusal):
            return drawn
        seats = roster.open_seats(drawn, request.protocol)
        named = in_subset(seats, request.subset)
        if not named:
            return drawn, seats, False
        picky = False
        if features.is_inference and (pool.model_needs or features.adapter is not None):
            fit = able(pool, features, named, now, f"{pool.name}/{drawn}")
            if isinstance(fit, Refusal):
                return fit
            picky, named = fit is not named, fit
        return drawn, named, picky

    def _in_common(
        self, policy: Policy, blocks: tuple[int, ...], matched: Sequence[int], seats: int
    ) -> tuple[int, int]:
        """Return how much of a prompt is common property, and how much belongs to several."""
        deepest = max(matched)
        if not deepest:
            return 0, 0
        branched = self._index.branched_depth(blocks, deepest) if policy.copies else 0
        if policy.stepwise:  # one copy more than there are
            seats = min(seats, 1 + len(matched) - matched.count(0))
        return self._index.shared_depth(blocks, deepest, seats), branched

    def _allowed(self, pool: Pool, request: Request) -> Policy | Refusal:
        """Return the pool's policy, or the one that the request asks for and the pool allows."""
        policies = self.policies[pool.name]
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
        lease = self._leases.find(key, now)
        if lease is None:
            return None
        if lease.endpoint not in roster.keys:  # it left this pool, though another may have it
            self._leases.release(key)
            return None
        seat = roster.seat(lease.endpoint, request.protocol)
        if seat is None:  # only there can the sequence go on, but not in this protocol
            return lease.variant, ()
        if seat.draining and request.features.sequence_start:
            return None
        return seat.variant, (seat,)
