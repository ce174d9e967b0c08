"""Metrics of one run from the results of the load client and the replicas' counters. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bench.load.plan import OK
from bench.simulate.measure import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.load.plan import Results


def distribution(values: Sequence[float], factor: float = 1.0) -> dict[str, float | None]:
    """Return mean and percentiles, each times ``factor``; ``None`` without values."""
    ordered = sorted(value * factor for value in values)
    return {
        "mean": statistics.fmean(ordered) if ordered else None,
        "p50": percentile(ordered, 0.5),
        "p90": percentile(ordered, 0.9),
        "p99": percentile(ordered, 0.99),
        "p999": percentile(ordered, 0.999),
    }


def served(results: Results, warmup: float, scale: float, slo_s: float) -> dict[str, Any]:
    """Return the client-side metrics, in emulated seconds, without the warm-up requests.

    ``goodput`` counts failed requests as late. A failure *before* the first byte could have been
    retried on another replica; a failure during the response is *begun*.
    """
    failed = [
        begun is not None
        for outcome, begun in zip(results.outcome, results.first, strict=True)
        if outcome != OK
    ]
    return {
        "requests": len(results.intended),
        **_numbers(results, int(len(results.intended) * warmup), scale, slo_s),
        "errors": results.errors,
        "failed_before": failed.count(False),
        "failed_begun": failed.count(True),
        "lag_p99_ms": results.lag() * 1000,
        "client_cpu_s": results.cpu_s,
    }


def since(results: Results, at: float, scale: float, slo_s: float) -> dict[str, Any]:
    """Return the metrics of requests that were due ``at`` seconds into the run or later.

    Times are emulated seconds, as in ``served``.
    """
    skip = sum(1 for intended in results.intended if intended < at)
    return _numbers(results, skip, scale, slo_s)


def _numbers(results: Results, skip: int, scale: float, slo_s: float) -> dict[str, Any]:
    first = results.first_bytes(skip)
    kept = len(results.intended) - skip
    in_time = sum(1 for value in first if value * scale <= slo_s)
    return {
        "measured": kept,
        "ttft": distribution(first, scale),
        "e2e": distribution(results.latencies(skip), scale),
        "goodput": in_time / kept if kept else None,
    }


def caches(stats: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    """Return the replicas' metrics: fraction of prompt tokens found in caches, and spread."""
    prompt = sum(each["prompt"] for each in stats.values())
    hit = sum(each["hit"] for each in stats.values())
    return {
        "hit_ratio": hit / prompt if prompt else None,
        "spread_requests": spread([each["requests"] for each in stats.values()]),
        "spread_computed": spread([each["computed"] for each in stats.values()]),
    }


def spread(values: Sequence[float]) -> float | None:
    """Return the maximum divided by the mean."""
    total = sum(values)
    return max(values) * len(values) / total if total else None


def median_of(runs: Sequence[Mapping[str, Any]], *path: str) -> dict[str, float] | None:
    """Return median and range of a number over runs, ``None`` if a run lacks it.

    Args:
        runs: Results of ``served`` and similar functions.
        path: Keys that lead to the number.
    """
    found = []
    for run in runs:
        value: Any = run
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return None
        found.append(float(value))
    if not found:
        return None
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}
