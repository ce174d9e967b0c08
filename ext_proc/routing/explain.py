"""What the router knows and why it chose, as plain values for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.narrowing import unmet, wishes
from ext_proc.routing.types import Refusal
from protos.names import POLICY_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.choosing import Choice
    from ext_proc.routing.conditions import Conditions
    from ext_proc.routing.ledger import Ledger
    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.roster import Replica, Roster
    from ext_proc.routing.types import Endpoint, EndpointKey, Pool, Reading, Request

NOT_DRAWN: Final = "not-drawn"
"""Eligible, but no candidate in a large pool (``candidates``)."""
EXPLAINED: Final = 64
"""Most candidates that one explanation lists, the cheapest first."""
ROUNDING: Final = 1e-9


class Fixed:
    """Chance for explanations: one throw, always the same, so that asking moves no real one."""

    def random(self) -> float:
        """Return one half."""
        return 0.5


def explain(
    roster: Roster,
    request: Request,
    choice: Choice | Refusal,
    ledger: Ledger,
    conditions: Conditions,
    zone: str,
    now: float,
    *,
    most: int | None = None,
) -> dict[str, object]:
    """Return why a request is decided as it is.

    Args:
        roster: Its pool.
        request: The request.
        choice: What was chosen from, or the refusal.
        ledger: Who has how much in flight, for the filters' verdicts.
        conditions: What keeps replicas from new work.
        zone: Where this picker stands.
        now: Monotonic seconds.
        most: In a pool of more endpoints it is not looked at why others were no candidates;
            ``None`` = always.
    """
    pool = roster.pool
    if isinstance(choice, Refusal):
        verdicts = {
            each.key.id: _verdict(roster, each, None, request, ledger, conditions, now)
            for each in pool.endpoints
        }
        return {"refused": str(choice.kind), "why": choice.message, "removed": verdicts}
    offer, prices = choice.offer, choice.prices
    order = sorted(range(len(prices)), key=prices.__getitem__)
    offered = {seat.key for seat in offer.seats}
    left: dict[str, str] | None = None
    if most is None or len(pool.endpoints) <= most:
        left = {
            each.key.id: _verdict(roster, each, offer.variant, request, ledger, conditions, now)
            for each in pool.endpoints
            if each.key not in offered
        }
    wished = wishes(pool, request.features, offer.seats, zone, now)
    return {
        "pool": pool.name,
        "variant": offer.variant,
        "policy": request.headers.get(POLICY_HEADER, pool.policy),
        "leased": choice.leased,
        "blocks": offer.blocks,
        "shared_blocks": offer.shared,
        "tokens": offer.tokens,
        "candidates": [
            _candidate(choice, index, prices[order[0]], wished) for index in order[:EXPLAINED]
        ],
        "removed": None
        if left is None
        else {name: why for name, why in left.items() if why != NOT_DRAWN},
        "not_drawn": None if left is None else sum(why == NOT_DRAWN for why in left.values()),
    }


def _candidate(
    choice: Choice, index: int, cheapest: float, wished: Sequence[tuple[str, Sequence[bool]]]
) -> dict[str, object]:
    offer, price = choice.offer, choice.prices[index]
    seat = offer.seats[index]
    parts = dict(choice.policy.parts(offer, index))
    moved = price - sum(parts.values())
    if parts and abs(moved) > ROUNDING * max(1.0, abs(price)):
        parts["order"] = moved
    return {
        "id": seat.key.id,
        "price": price,
        "behind": price - cheapest,
        "parts": parts,
        "lacks": [name for name, has in wished if not has[index]],
        "matched_blocks": offer.matched[index],
        "pending": offer.pending[index],
        "slowness": seat.pace.slowness,
        "ramp": 1.0 if offer.ramp is None else offer.ramp[index],
        "silent": seat.replica.silent,
    }


def _verdict(
    roster: Roster,
    endpoint: Endpoint,
    variant: str | None,
    request: Request,
    ledger: Ledger,
    conditions: Conditions,
    now: float,
) -> str:
    """Name the first thing that keeps an endpoint from being a candidate."""
    pool = roster.pool
    address = endpoint.address(request.protocol)
    limit = pool.per_endpoint_in_flight
    if variant is not None and endpoint.variant != variant:
        return "variant"
    if address is None:
        return "protocol"
    subset, host = request.subset, address.rpartition(":")[0]
    seat = roster.seat(endpoint.key, request.protocol)
    reasons = (
        "draining" if endpoint.draining else None,
        "subset" if subset is not None and not subset & {address, host, host.strip("[]")} else None,
        None if seat is None else unmet(pool, request.features, seat, now),
        "at-limit" if limit and ledger.load(endpoint.key).in_flight >= limit else None,
        *conditions.of(pool.name, endpoint.key),
    )
    return next(filter(None, reasons), NOT_DRAWN)


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
        "slowed": round(replica.awaited.slowdown.factor(now), 2),
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
        "cpu_used": reading.cpu_used,
        "memory_used": reading.memory_used,
        "rps": reading.rps,
        "gpu_memory_used": reading.gpu_memory_used,
    }
