"""The router's state, explanations of choices and a sample of them, as JSON-ready values.

Rules of the sample:

1. Every ``EVERY``-th decision is sampled, starting with the first, and each one that comes
   ``QUIET_S`` or more after the previous sample; none that comes within ``GAP_S`` of it. An
   explanation costs as much as several decisions, so the sample must stay cheap at any request
   rate.
2. The explanation is taken before the decision changes any state: it shows the prices and terms
   on which the decision was based.
3. At most ``KEPT`` decisions are kept, with bodies of up to ``MAX_BODY`` bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.pipeline.filters import unmet
from ext_proc.routing.pipeline.preferences import preferences
from ext_proc.routing.values.refusal import Refusal
from tidegate_api.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence, Sized

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.limits import Limits
    from ext_proc.routing.pipeline.scheduler import Choice, Decision, Scheduler
    from ext_proc.routing.state.candidates import PoolState, Replica
    from ext_proc.routing.state.hops import ZoneHops
    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.state.ledger import Ledger
    from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.request import Request


NOT_DRAWN: Final = "not-drawn"
"""Eligible, but not sampled as a candidate in a large pool (``sampling``)."""
EXPLAINED: Final = 64
"""Maximum number of candidates in one explanation, the cheapest first."""
ROUNDING: Final = 1e-9


class Fixed:
    """A constant in place of randomness, so that explanations do not advance the real ``rng``."""

    def random(self) -> float:
        """Return one half."""
        return 0.5


class Explainer:
    """Explains decisions, with the state of one router.

    Args:
        scheduler: Prices the candidates.
        limits: Limits of the requests in flight.
        conditions: Health conditions of the replicas.
        hops: Prices of picks in other zones than this picker's.
    """

    def __init__(
        self, scheduler: Scheduler, limits: Limits, conditions: Conditions, hops: ZoneHops
    ) -> None:
        self._scheduler = scheduler
        self._known = limits, conditions, hops

    def would(
        self, pool_state: PoolState, request: Request, now: float, unix_now: float
    ) -> dict[str, object]:
        """Explain how a request would be decided now; random choices are shown for one number.

        The result has all candidates with their prices and the terms of each price, and for each
        other endpoint of the pool the filter that removed it; or the refusal.
        """
        choice = self._scheduler.choose(pool_state, request, Fixed(), now, unix_now)
        return explain(pool_state, request, choice, *self._known, now)

    def sample(
        self, pool_state: PoolState, request: Request, choice: Choice, now: float
    ) -> dict[str, object]:
        """Explain a decision that is being made; shorter in a large pool."""
        return explain(pool_state, request, choice, *self._known, now, most=MOST_ENDPOINTS)


def explain(
    pool_state: PoolState,
    request: Request,
    choice: Choice | Refusal,
    limits: Limits,
    conditions: Conditions,
    hops: ZoneHops,
    now: float,
    *,
    most: int | None = None,
) -> dict[str, object]:
    """Explain the decision of a request.

    Args:
        pool_state: The state of its pool.
        request: The request.
        choice: The priced candidates, or the refusal.
        limits: Limits of the requests in flight.
        conditions: Health conditions of the replicas.
        hops: Prices of picks in other zones than this picker's.
        now: Monotonic seconds.
        most: In a pool with more endpoints than this, the reasons why endpoints are no candidates
            are left out; ``None`` = no limit.
    """
    pool = pool_state.pool
    if isinstance(choice, Refusal):
        verdicts = {
            each.key.id: _verdict(pool_state, each, None, request, limits, conditions, now)
            for each in pool.endpoints
        }
        return {"refused": str(choice.kind), "why": choice.message, "removed": verdicts}
    context, prices = choice.context, choice.prices
    order = sorted(range(len(prices)), key=prices.__getitem__)
    candidates = {candidate.key for candidate in context.candidates}
    wrong = () if choice.placed is None else choice.placed.wrong
    left: dict[str, str] | None = None
    if most is None or len(pool.endpoints) <= most:
        left = {
            each.key.id: _verdict(
                pool_state, each, context.variant, request, limits, conditions, now, wrong
            )
            for each in pool.endpoints
            if each.key not in candidates
        }
    priced = pool.prefer_zone and choice.policy.in_seconds
    zone = "" if priced else hops.zone
    preferred = preferences(pool, request.features, context.candidates, zone, now)
    added = hops.seconds(pool, context.candidates) if priced else [0.0] * len(prices)
    return {
        "pool": pool.name,
        "variant": context.variant,
        "policy": request.headers.get(POLICY_HEADER, pool.policy),
        "leased": choice.leased,
        "blocks": context.blocks,
        "shared_blocks": context.shared,
        "tokens": context.tokens,
        "bytes_per_token": round(request.bytes_per_token, 3),
        "candidates": [
            _candidate(choice, index, prices[order[0]], preferred, added[index], pool, limits)
            for index in order[:EXPLAINED]
        ],
        "removed": None
        if left is None
        else {name: why for name, why in left.items() if why != NOT_DRAWN},
        "not_drawn": None if left is None else sum(why == NOT_DRAWN for why in left.values()),
    }


def _candidate(
    choice: Choice,
    index: int,
    cheapest: float,
    preferred: Sequence[tuple[str, Sequence[bool]]],
    hop: float,
    pool: Pool,
    limits: Limits,
) -> dict[str, object]:
    context, price = choice.context, choice.prices[index]
    candidate = context.candidates[index]
    parts = dict(choice.policy.parts(context, index))
    if hop:
        parts["hop_s"] = hop
    moved = price - sum(parts.values())
    if parts and abs(moved) > ROUNDING * max(1.0, abs(price)):
        parts["order"] = moved
    limit = limits.limit(pool, candidate.key, context.request.features.model)
    return {
        "id": candidate.key.id,
        "limit": None if limit is None else limit.most,
        "limit_by": None if limit is None else limit.source,
        "price": price,
        "behind": price - cheapest,
        "parts": parts,
        "lacks": [name for name, has in preferred if not has[index]],
        "matched_blocks": context.matched[index],
        "pending": context.pending[index],
        "slowness": candidate.latency_model.slowness,
        "ramp": 1.0 if context.ramp is None else context.ramp[index],
        "silent": candidate.replica.silent,
    }


def _verdict(
    pool_state: PoolState,
    endpoint: Endpoint,
    variant: str | None,
    request: Request,
    limits: Limits,
    conditions: Conditions,
    now: float,
    wrong: Container[EndpointKey] = (),
) -> str:
    """Return the first reason why an endpoint is no candidate."""
    pool = pool_state.pool
    address = endpoint.address(request.protocol)
    if variant is not None and endpoint.variant != variant:
        return "variant"
    if address is None:
        return "protocol"
    subset, host = request.subset, address.rpartition(":")[0]
    candidate = pool_state.candidate(endpoint.key, request.protocol)
    model = request.features.model
    low = limits.spares(request)
    room = None if candidate is None else limits.room(pool, candidate, model, low=low)
    reasons = (
        "draining" if endpoint.draining else None,
        "subset" if subset is not None and not subset & {address, host, host.strip("[]")} else None,
        "wrong-version" if endpoint.key in wrong else None,
        None if candidate is None else unmet(pool, request.features, candidate, now),
        "at-limit" if room is not None and room <= 0 else None,
        *conditions.of(pool.name, endpoint.key),
    )
    return next(filter(None, reasons), NOT_DRAWN)


def describe(
    pool: Pool,
    replicas: Mapping[EndpointKey, Replica],
    index: PrefixIndex,
    conditions: Conditions,
    limits: Limits,
    now: float,
) -> dict[str, object]:
    """Describe a pool with its variants and endpoints, ready for JSON.

    Args:
        pool: The pool.
        replicas: The state of its endpoints.
        index: The probable contents of their caches.
        conditions: Their health conditions.
        limits: Limits of their requests in flight.
        now: Monotonic seconds, for the ages.
    """
    return {
        "policy": pool.policy,
        "variants": {
            each.name: {"weight": each.weight, "model_version": each.model_version}
            for each in pool.variants
        },
        "endpoints": {
            each.key.id: {
                **_endpoint(each, replicas[each.key], index, now),
                "limits": limits.describe(pool, each.key),
                "answers": replicas[each.key].served[pool.name].describe(),
                **conditions.describe(pool.name, each.key, now, silent=replicas[each.key].silent),
            }
            for each in pool.endpoints
        },
    }


def counters(
    ledger: Ledger, peers: Sized, leases: Leases, index: PrefixIndex, trials: Sized
) -> dict[str, object]:
    """Return a router's counters, ready for JSON.

    Args:
        ledger: This worker's requests in flight.
        peers: Requests in flight of peer workers.
        leases: Leases of sequences.
        index: Probable contents of the caches.
        trials: Prompts in it whose answers have not begun.
    """
    return {
        "open_tickets": len(ledger),
        "open_tickets_of_siblings": len(peers),
        "settled": {str(each): count for each, count in ledger.outcomes.items()},
        "unmatched_settles": ledger.unmatched,
        "overflowed_charges": ledger.overflowed,
        "leases": len(leases),
        "evicted_leases": leases.evicted,
        "index_blocks": index.blocks,
        "provisional_prompts": len(trials),
    }


def _endpoint(
    endpoint: Endpoint, replica: Replica, index: PrefixIndex, now: float
) -> dict[str, object]:
    return {
        "incarnation": endpoint.key.incarnation,
        "variant": endpoint.variant,
        "http": endpoint.http,
        "grpc": endpoint.grpc,
        "capacity": endpoint.capacity,
        "draining": endpoint.draining,
        "joined_unix_s": endpoint.joined_unix_s,
        "restarted_unix_s": replica.restarted_unix_s,
        "in_flight": replica.load.in_flight,
        "work_tokens": replica.load.work,
        "others_queued": replica.others_queued(now),
        "slowed": round(replica.first_bytes.slowdown.factor(now), 2),
        "index_blocks": index.held(endpoint.key),
        "index_bound": index.bound(endpoint.key),
        "provisional_blocks": index.provisional.count(endpoint.key),
        "readings": [_reading(each, now) for each in replica.readings],
    }


def _reading(reading: Reading, now: float) -> dict[str, object]:
    return {
        "age_s": round(now - reading.at, 3),
        "model": reading.model,
        "version": reading.version,
        "queued": reading.queued,
        "running": reading.running,
        "slots": reading.slots,
        "deferred": reading.deferred,
        "asleep": reading.asleep,
        "saturated": reading.saturated,
        "kv_used": reading.kv_used,
        "reused_blocks": reading.reused_blocks,
        "prompt_tokens": reading.prompt_tokens,
        "prompts": reading.prompts,
        "first_tokens": reading.first_tokens,
        "first_tokens_s": reading.first_tokens_s,
        "iterations": reading.iterations,
        "cpu_used": reading.cpu_used,
        "memory_used": reading.memory_used,
        "rps": reading.rps,
        "gpu_memory_used": reading.gpu_memory_used,
    }


EVERY: Final = 32
GAP_S: Final = 0.25
QUIET_S: Final = 1.0
KEPT: Final = 64
MAX_BODY: Final = 32_768
BODIES: Final = 16
MOST_ENDPOINTS: Final = 256
"""In a larger pool a sample omits why the other endpoints were no candidates."""


class _Sample(NamedTuple):
    at: float
    client: str | None
    body: bytes | None
    model: str | None
    decision: Decision
    explained: Mapping[str, object]


class Recent:
    """The ring of sampled decisions."""

    __slots__ = ("_kept", "last", "seen")

    def __init__(self) -> None:
        self._kept: deque[_Sample] = deque(maxlen=KEPT)
        self.seen = 0
        """Decisions; the router counts them."""
        self.last = float("-inf")
        """When the latest sample was taken, monotonic seconds."""

    def due(self, now: float) -> bool:
        """Return whether a decision ``GAP_S`` or more after that is to be sampled (rule 1)."""
        if now - self.last < QUIET_S and self.seen % EVERY != 1:
            return False
        self.last = now
        return True

    def keep(
        self, request: Request, decision: Decision, explained: Mapping[str, object], now: float
    ) -> None:
        """Keep a decision with the explanation that was taken before it."""
        body = request.body
        if body is not None and len(body) > MAX_BODY:
            body = None
        confined = request.care is not None and request.care.member
        client = None if confined else request.client  # it must not become usual by that
        sample = _Sample(now, client, body, request.features.model, decision, explained)
        self._kept.append(sample)

    def bodies(self, pool: str) -> list[tuple[str | None, bytes | None]]:
        """Return models and bodies of a pool's ``BODIES`` latest samples.

        ``None`` = unknown, or longer than ``MAX_BODY``.
        """
        latest = [(each.model, each.body) for each in self._kept if each.decision.pool == pool]
        return latest[-BODIES:]

    def shares(self, pool: str) -> dict[str, float]:
        """Return each known client's share of a pool's sampled decisions.

        Samples are far apart, so no client raises its share by many requests at one time.
        """
        clients = [each.client for each in self._kept if each.decision.pool == pool]
        counts = Counter(client for client in clients if client is not None)
        return {client: count / len(clients) for client, count in counts.items()}

    def describe(self, now: float) -> list[dict[str, object]]:
        """Return the sampled decisions, the oldest first, ready for JSON."""
        return [
            {
                **each.explained,
                "age_s": round(now - each.at, 3),
                "model": each.model,
                "picked": next(
                    candidate.key.id
                    for candidate in each.decision.candidates
                    if candidate.address == each.decision.addresses[0]
                ),
                "reason": each.decision.reason,
                "addresses": list(each.decision.addresses),
                "matched_blocks": each.decision.matched_blocks,
                "scores": dict(each.decision.scores),
            }
            for each in self._kept
        ]
