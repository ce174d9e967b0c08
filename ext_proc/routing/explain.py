"""What the router knows, as plain values for people: the body of ``/debug/state``."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ext_proc.routing.types import Refusal
from protos.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.choosing import Choice
    from ext_proc.routing.conditions import Conditions
    from ext_proc.routing.ledger import Ledger
    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.roster import Replica
    from ext_proc.routing.types import Decision, Endpoint, EndpointKey, Pool, Reading, Request

RECENT_EVERY: Final = 32
RECENT_KEPT: Final = 64
NOT_DRAWN: Final = "not-drawn"
"""Eligible, but no candidate in a large pool (``candidates``)."""
EXPLAINED: Final = 64
"""Most candidates that one explanation lists, the cheapest first."""


class Recent:
    """A sample of the latest decisions: each ``RECENT_EVERY``-th, ``RECENT_KEPT`` at most."""

    __slots__ = ("_kept", "_seen")

    def __init__(self) -> None:
        self._kept: deque[tuple[float, str | None, int, Decision]] = deque(maxlen=RECENT_KEPT)
        self._seen = 0

    def note(self, request: Request, decision: Decision, now: float) -> None:
        """Keep the decision where its turn has come."""
        if self._seen % RECENT_EVERY == 0:
            self._kept.append((now, request.features.model, len(request.blocks), decision))
        self._seen += 1

    def describe(self, now: float) -> list[dict[str, object]]:
        """Return the kept decisions, the oldest first, ready for JSON."""
        return [
            {
                "age_s": round(now - at, 3),
                "model": model,
                "pool": decision.pool,
                "variant": decision.variant,
                "reason": decision.reason,
                "addresses": list(decision.addresses),
                "matched_blocks": decision.matched_blocks,
                "blocks": blocks,
                "scores": dict(decision.scores),
            }
            for at, model, blocks, decision in self._kept
        ]


class Fixed:
    """Chance for explanations: one throw, always the same, so that asking moves no real one."""

    def random(self) -> float:
        """Return one half."""
        return 0.5


def explain(
    pool: Pool,
    request: Request,
    choice: Choice | Refusal,
    ledger: Ledger,
    conditions: Conditions,
) -> dict[str, object]:
    """Return why a request is decided as it is.

    Args:
        pool: Its pool.
        request: The request.
        choice: What was chosen from, or the refusal.
        ledger: Who has how much in flight, for the filters' verdicts.
        conditions: What keeps replicas from new work.
    """
    if isinstance(choice, Refusal):
        verdicts = {
            each.key.id: _verdict(pool, each, None, request, ledger, conditions)
            for each in pool.endpoints
        }
        return {"refused": str(choice.kind), "why": choice.message, "removed": verdicts}
    offer, prices = choice.offer, choice.prices
    order = sorted(range(len(prices)), key=prices.__getitem__)
    cheapest = prices[order[0]]
    offered = {seat.key for seat in offer.seats}
    left = {
        each.key.id: _verdict(pool, each, offer.variant, request, ledger, conditions)
        for each in pool.endpoints
        if each.key not in offered
    }
    return {
        "pool": pool.name,
        "variant": offer.variant,
        "policy": request.headers.get(POLICY_HEADER, pool.policy),
        "leased": choice.leased,
        "blocks": offer.blocks,
        "shared_blocks": offer.shared,
        "tokens": offer.tokens,
        "candidates": [
            {
                "id": offer.seats[index].key.id,
                "price": prices[index],
                "behind": prices[index] - cheapest,
                "parts": dict(choice.policy.parts(offer, index)),
                "matched_blocks": offer.matched[index],
                "pending": offer.pending[index],
                "slowness": offer.seats[index].pace.slowness,
                "ramp": 1.0 if offer.ramp is None else offer.ramp[index],
                "silent": offer.seats[index].replica.silent,
            }
            for index in order[:EXPLAINED]
        ],
        "removed": {name: why for name, why in left.items() if why != NOT_DRAWN},
        "not_drawn": sum(why == NOT_DRAWN for why in left.values()),
    }


def _verdict(
    pool: Pool,
    endpoint: Endpoint,
    variant: str | None,
    request: Request,
    ledger: Ledger,
    conditions: Conditions,
) -> str:
    """Name the first thing that keeps an endpoint from being a candidate."""
    address = endpoint.address(request.protocol)
    limit = pool.per_endpoint_in_flight
    if variant is not None and endpoint.variant != variant:
        return "variant"
    if address is None:
        return "protocol"
    if endpoint.draining:
        return "draining"
    subset = request.subset
    host = address.rpartition(":")[0]
    if subset is not None and not subset & {address, host, host.strip("[]")}:
        return "subset"
    if limit and ledger.load(endpoint.key).in_flight >= limit:
        return "at-limit"
    return next(iter(conditions.of(pool.name, endpoint.key)), NOT_DRAWN)


def describe(
    pool: Pool,
    replicas: Mapping[EndpointKey, Replica],
    index: PrefixIndex,
    conditions: Conditions,
    now: float,
) -> dict[str, object]:
    """Return a pool with its variants and endpoints.

    Args:
        pool: The pool.
        replicas: What is known of its endpoints.
        index: Their probable caches.
        conditions: What keeps them from new work.
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
                "answers": replicas[each.key].served[pool.name].describe(),
                **conditions.describe(pool.name, each.key, now, silent=replicas[each.key].silent),
            }
            for each in pool.endpoints
        },
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
        "index_blocks": index.held(endpoint.key),
        "readings": [_reading(each, now) for each in replica.readings],
    }


def _reading(reading: Reading, now: float) -> dict[str, object]:
    return {
        "age_s": round(now - reading.at, 3),
        "model": reading.model,
        "version": reading.version,
        "queued": reading.queued,
        "running": reading.running,
        "saturated": reading.saturated,
        "kv_used": reading.kv_used,
        "reused_blocks": reading.reused_blocks,
        "iterations": reading.iterations,
        "gpu_memory_used": reading.gpu_memory_used,
    }
