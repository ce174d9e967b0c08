"""Features: a short vector per candidate of a request, of the same form for each replica.

All are dimensionless, mostly relative to ``expected``: the time that the pool's usual replica needs
for the request when idle and with an empty cache. Each is at most ``MOST``, so that no reading can
dominate a prediction. A value that is missing for a candidate is the median of the others, and 0 if
it is missing for all.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.state.candidates import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext

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
"""Age in seconds of the latest reading from which a replica counts as stale."""
LEAST_EXPECTED_S: Final = 1e-4


def expected_s(context: SchedulingContext) -> float:
    """Return the seconds that the usual replica needs for the request, idle and uncached."""
    latency_model = context.latency_model
    if context.tokens is None:
        return max(latency_model.service_s, LEAST_EXPECTED_S)
    return max(
        latency_model.tail_s + context.tokens * latency_model.seconds_per_token, LEAST_EXPECTED_S
    )


def features(context: SchedulingContext, expected: float) -> list[list[float]]:
    """Return a vector per candidate, in the order of ``NAMES``."""
    now, stale, per_token = (
        context.now,
        context.now - FRESH_S,
        context.latency_model.seconds_per_token,
    )
    kv = _filled(
        [s.replica.kv_used if s.replica.kv_at > stale else None for s in context.candidates]
    )
    waits = _filled([_queue_s(candidate, stale) for candidate in context.candidates])
    found = []
    for index, candidate in enumerate(context.candidates):
        slowness, at = candidate.latency_model.slowness, reported_at(candidate)
        uncached = 0.0
        if context.tokens is not None:
            uncached = max(1.0, context.tokens - context.matched[index] * context.block_tokens)
        found.append(
            [
                1.0,
                min(MOST, candidate.replica.drain_s(now, per_token * slowness) / expected),
                min(MOST, uncached * per_token * slowness / expected),
                min(MOST, context.pending[index] / (FULL_PENDING * context.strength[index])),
                min(MOST, slowness),
                min(1.0, max(0.0, kv[index])),
                0.0 if context.ramp is None else 1.0 - context.ramp[index],
                1.0 if at is None else min(1.0, max(0.0, (now - at) / FRESH_S)),
                min(MOST, max(0.0, waits[index]) / expected),
            ]
        )
    return found


def utilisation(context: SchedulingContext) -> float:
    """Estimate the utilisation of the candidates, 0..1.

    It is ``W / (W + s)`` for a mean wait ``W`` and a service time ``s``, from the mean wait of a
    queue with random arrivals, or the mean use of the KV caches if that is higher.
    """
    now, latency_model, candidates = context.now, context.latency_model, context.candidates
    if context.tokens is None:
        waiting = sum(context.pending, 0.0) / sum(context.strength, 0.0)
        busy = waiting / (waiting + 1.0)
    else:
        per_token = latency_model.seconds_per_token
        drain = sum(
            candidate.replica.drain_s(now, per_token * candidate.latency_model.slowness)
            for candidate in candidates
        )
        busy = drain / (
            drain + len(candidates) * max(latency_model.mean_tokens * per_token, LEAST_EXPECTED_S)
        )
    fresh = [s.replica.kv_used for s in candidates if s.replica.kv_at > now - FRESH_S]
    return max(busy, sum(fresh) / len(fresh)) if fresh else busy


def dark(context: SchedulingContext) -> bool:
    """Return whether at least half of the candidates that ever reported readings are stale."""
    reporting = [candidate for candidate in context.candidates if candidate.replica.has_reported]
    if not reporting:
        return False
    stale = context.now - STALE_S
    gone = sum(
        candidate.replica.silent or (at := reported_at(candidate)) is None or at < stale
        for candidate in reporting
    )
    return 2 * gone >= len(reporting)


def reported_at(candidate: Candidate) -> float | None:
    """Return when a replica last reported readings, ``None`` if it never did."""
    readings = candidate.replica.readings
    return readings[0].at if readings else None


def _queue_s(candidate: Candidate, stale: float) -> float | None:
    fresh = [
        each.queue_s
        for each in candidate.replica.readings
        if each.queue_s is not None and each.at > stale
    ]
    return max(fresh, default=None)


def _filled(values: Sequence[float | None]) -> list[float]:
    known = [each for each in values if each is not None]
    usual = median(known) if known else 0.0
    return [usual if each is None else each for each in values]
