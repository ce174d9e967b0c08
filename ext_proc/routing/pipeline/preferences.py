"""Preferences: properties of a replica that a request prefers but does not require.

Rules:

1. Preferences order the candidates: the model's device, then the adapter, then the picker's zone,
   unless the policy prices in seconds: then other zones cost a hop (``state.hops``).
   Of the candidates that meet a preference, those within the bound of their share of the requests
   come first:
   ``in flight + 1 <= max(2, ceil(spill_factor * (all in flight + 1) * capacity / all capacity))``.
   The others follow in the policy's order: requests spill to them when all preferred candidates
   are at the bound, and they stay fallbacks for retries.
2. A preference that no candidate meets, or that all candidates meet, has no effect. A later
   preference only orders candidates that are equal by the earlier ones.
3. Of replicas without the adapter, those that have room for a further one come first, then those
   where it waits already: there it is loaded once, and elsewhere it would put another one out.
4. In a pool without preferences the cost is one check of its settings.

The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam
2016), with a minimum of 2, so that a nearly idle fleet keeps to its preferences.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from ext_proc.routing.pipeline.filters import adapter_grade, needs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features

LEAST_BOUND: Final = 2
_ADAPTER_GRADES: Final = (("adapter", 3), ("adapter-room", 2), ("adapter-waits", 1))
"""Preferences by the least grade that meets them, see ``adapter_grade``."""


def preferences(
    pool: Pool, features: Features, candidates: Sequence[Candidate], zone: str, now: float
) -> list[tuple[str, list[bool]]]:
    """Return each preference of a request, and which candidates meet it, the strongest first.

    Args:
        pool: The pool.
        features: The request.
        candidates: The candidates.
        zone: The picker's zone; empty = unknown, or its preference is in the prices.
        now: Monotonic seconds.
    """
    found: list[tuple[str, list[bool]]] = []
    needs = needs_of(pool, features) if pool.model_needs else None
    if needs is not None and needs.device and not needs.device_required:
        found.append(("device", [candidate.device == needs.device for candidate in candidates]))
    adapter = _adapter_of(features, candidates)
    if adapter is not None and pool.adapters == "prefer":
        grades = [adapter_grade(candidate, adapter, now) for candidate in candidates]
        found.extend(
            (name, [grade >= least for grade in grades]) for name, least in _ADAPTER_GRADES
        )
    if zone and pool.prefer_zone:
        found.append(("zone", [candidate.zone == zone for candidate in candidates]))
    return [(name, has) for name, has in found if any(has) and not all(has)]


def _adapter_of(features: Features, candidates: Sequence[Candidate]) -> str | None:
    """Return the request's adapter: also a model that a replica calls an adapter.

    vLLM serves an adapter under a name of its own; only readings tell it from a model.
    """
    model = features.model
    if features.adapter is not None or model is None:
        return features.adapter
    return model if any(model in each.replica.adapters for each in candidates) else None


def preferred_first(
    pool: Pool,
    features: Features,
    candidates: Sequence[Candidate],
    prices: Sequence[float],
    zone: str,
    now: float,
) -> Sequence[float]:
    """Return the prices with the preferred candidates within the bound first (rule 1)."""
    preferred = preferences(pool, features, candidates, zone, now)
    if not preferred:
        return prices
    free = within_bound(candidates, pool.spill_factor)
    step = max(prices) - min(prices) + 1.0
    behind = [0.0] * len(candidates)
    for _, has in preferred:
        behind = [
            2.0 * back + (0.0 if fits and room else 1.0)
            for back, fits, room in zip(behind, has, free, strict=True)
        ]
    return [price + step * back for price, back in zip(prices, behind, strict=True)]


def within_bound(candidates: Sequence[Candidate], factor: float) -> list[bool]:
    """Return for each candidate whether one more request keeps it within its bound (rule 1)."""
    share = factor * (sum(candidate.load.in_flight for candidate in candidates) + 1.0)
    share /= sum(candidate.capacity for candidate in candidates)
    return [
        # Products such as 1.1 * 10 = 11.000000000000002 must not round up.
        candidate.load.in_flight + 1 <= max(LEAST_BOUND, ceil(share * candidate.capacity - 1e-9))
        for candidate in candidates
    ]
