"""Features: one candidate of one request as a short vector, the same for each replica.

All are without unit, mostly shares of ``expected``: what the pool's usual replica would need for
this request with nothing cached and nothing before it. Each is at most ``MOST``, so no reading can
run away with a prediction. What one candidate does not tell is the median of those that do, and 0
where nobody does.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.roster import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.policies.base import Offer
    from ext_proc.routing.roster import Seat

NAMES: Final = (
    "one",
    "drain",
    "uncached",
    "pending",
    "slowness",
    "kv_used",
    "ramp",
    "age",
    "queue",
)
MOST: Final = 5.0
FULL_PENDING: Final = 8.0
"""Pending requests per strength that count as 1."""
STALE_S: Final = 10.0
"""A replica that told its numbers and is silent for so long is stale."""
LEAST_EXPECTED_S: Final = 1e-4


def expected_s(offer: Offer) -> float:
    """Return what the usual replica, idle and cold, needs for the request, seconds."""
    pace = offer.pace
    if offer.tokens is None:
        return max(pace.service_s, LEAST_EXPECTED_S)
    return max(pace.tail_s + offer.tokens * pace.seconds_per_token, LEAST_EXPECTED_S)


def features(offer: Offer, expected: float) -> list[list[float]]:
    """Return a vector per seat, in the order of ``NAMES``."""
    now, stale, per_token = offer.now, offer.now - FRESH_S, offer.pace.seconds_per_token
    kv = _filled([s.replica.kv_used if s.replica.kv_at > stale else None for s in offer.seats])
    waits = _filled([_queue_s(seat, stale) for seat in offer.seats])
    found = []
    for index, seat in enumerate(offer.seats):
        slowness, at = seat.pace.slowness, heard_at(seat)
        uncached = 0.0
        if offer.tokens is not None:
            uncached = max(1.0, offer.tokens - offer.matched[index] * offer.block_tokens)
        found.append(
            [
                1.0,
                min(MOST, seat.replica.drain_s(now, per_token * slowness) / expected),
                min(MOST, uncached * per_token * slowness / expected),
                min(MOST, offer.pending[index] / (FULL_PENDING * offer.strength[index])),
                min(MOST, slowness),
                min(1.0, max(0.0, kv[index])),
                0.0 if offer.ramp is None else 1.0 - offer.ramp[index],
                1.0 if at is None else min(1.0, max(0.0, (now - at) / FRESH_S)),
                min(MOST, max(0.0, waits[index]) / expected),
            ]
        )
    return found


def utilisation(offer: Offer) -> float:
    """Estimate how busy the candidates are, 0..1.

    Of the work that waits, by the mean of a queue with random arrivals: ``W / (W + s)`` for a wait
    ``W`` and a service time ``s``; where KV caches are fuller than that, by them.
    """
    now, pace, seats = offer.now, offer.pace, offer.seats
    if offer.tokens is None:
        waiting = sum(offer.pending, 0.0) / sum(offer.strength, 0.0)
        busy = waiting / (waiting + 1.0)
    else:
        per_token = pace.seconds_per_token
        drain = sum(seat.replica.drain_s(now, per_token * seat.pace.slowness) for seat in seats)
        busy = drain / (drain + len(seats) * max(pace.mean_tokens * per_token, LEAST_EXPECTED_S))
    fresh = [s.replica.kv_used for s in seats if s.replica.kv_at > now - FRESH_S]
    return max(busy, sum(fresh) / len(fresh)) if fresh else busy


def dark(offer: Offer) -> bool:
    """Tell whether half of the candidates that ever told their numbers are stale."""
    told = [seat for seat in offer.seats if seat.replica.heard]
    if not told:
        return False
    stale = offer.now - STALE_S
    gone = sum(seat.replica.silent or (at := heard_at(seat)) is None or at < stale for seat in told)
    return 2 * gone >= len(told)


def heard_at(seat: Seat) -> float | None:
    """Return when a replica last told its numbers, ``None`` where it never did."""
    readings = seat.replica.readings
    return readings[0].at if readings else None


def _queue_s(seat: Seat, stale: float) -> float | None:
    told = [
        each.queue_s
        for each in seat.replica.readings
        if each.queue_s is not None and each.at > stale
    ]
    return max(told, default=None)


def _filled(values: Sequence[float | None]) -> list[float]:
    known = [each for each in values if each is not None]
    usual = median(known) if known else 0.0
    return [usual if each is None else each for each in values]
