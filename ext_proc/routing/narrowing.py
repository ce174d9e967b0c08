"""Narrowing: what a request needs of a replica beyond its health, and what it would rather have.

Rules:

1. *Needs* remove replicas: a device that its model requires, GPU memory for a model that is not
   loaded there, an adapter where the pool requires it. Unknown memory removes nobody.
2. *Wishes* order them: the model's device, then the adapter, then the picker's zone. Of the seats
   that have what is wished for, those within the bound of their share of the requests come first:
   ``in flight + 1 <= max(2, ceil(spill_factor * (all in flight + 1) * capacity / all capacity))``.
   The others follow in the policy's order: they are spilled to when all of these are full, and
   stay fallbacks for retries.
3. A wish that no candidate fulfils, or all of them do, is none. A later wish orders only within
   what the earlier ones left alike.
4. A pool without needs and wishes pays for one look at its settings.

The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam
2016), with a floor of 2, so that a fleet with little to do keeps to its wishes.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from ext_proc.routing.types import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.constraints import ModelNeeds
    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import Features, Pool

MEMORY_FRESH_S: Final = 10.0
"""An older reading of GPU memory or adapters is unknown. Triton looks at its GPUs each 2 s."""
LEAST_BOUND: Final = 2


def needs_of(pool: Pool, features: Features) -> ModelNeeds | None:
    """Return what a request's model needs, ``None`` where nothing is declared."""
    for each in pool.model_needs:
        if each.model == features.model:
            return each
    return None


def unmet(pool: Pool, features: Features, seat: Seat, now: float) -> str | None:
    """Name the need that a replica does not meet, ``None`` where it meets all.

    Args:
        pool: The pool.
        features: The request.
        seat: The replica.
        now: Monotonic seconds, for the age of readings.

    Returns:
        ``device``, ``memory`` or ``adapter``.
    """
    needs = needs_of(pool, features) if pool.model_needs else None
    if needs is not None:
        if needs.device_required and seat.device != needs.device:
            return "device"
        if needs.memory_bytes and _too_small(needs, seat, now):
            return "memory"
    adapter = features.adapter
    if adapter is not None and pool.adapters == "require" and not has_adapter(seat, adapter, now):
        return "adapter"
    return None


def able(
    pool: Pool, features: Features, seats: Sequence[Seat], now: float, where: str
) -> Sequence[Seat] | Refusal:
    """Keep the seats that meet all needs of a request (rule 1).

    Args:
        pool: The pool.
        features: The request.
        seats: What the pool offers.
        now: Monotonic seconds.
        where: Pool and variant, for the message.

    Returns:
        ``seats`` itself where nothing is needed; a refusal where there are some and none is able.
    """
    if not pool.model_needs and (features.adapter is None or pool.adapters != "require"):
        return seats
    reasons = [unmet(pool, features, seat, now) for seat in seats]
    if not any(reasons):
        return seats
    kept = [seat for seat, reason in zip(seats, reasons, strict=True) if reason is None]
    if kept:
        return kept
    lacking = {
        "device": f"the device that model {features.model!r} requires",
        "memory": f"free GPU memory for model {features.model!r}",
        "adapter": f"the adapter {features.adapter!r} loaded",
    }
    words = " or ".join(text for name, text in lacking.items() if name in reasons)
    return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint with {words}")


def has_adapter(seat: Seat, adapter: str, now: float) -> bool:
    """Tell whether a LoRA adapter is declared for a replica, or runs or waits there."""
    if adapter in seat.adapters:
        return True
    stale = now - MEMORY_FRESH_S
    return any(
        each.adapters is not None and adapter in each.adapters and each.at > stale
        for each in seat.replica.readings
    )


def wishes(
    pool: Pool, features: Features, seats: Sequence[Seat], zone: str, now: float
) -> list[tuple[str, list[bool]]]:
    """Return each wish of a request with who fulfils it, the strongest first.

    Args:
        pool: The pool.
        features: The request.
        seats: The candidates.
        zone: The picker's zone; empty = unknown.
        now: Monotonic seconds.
    """
    found: list[tuple[str, list[bool]]] = []
    needs = needs_of(pool, features) if pool.model_needs else None
    if needs is not None and needs.device and not needs.device_required:
        found.append(("device", [seat.device == needs.device for seat in seats]))
    adapter = features.adapter
    if adapter is not None and pool.adapters == "prefer":
        found.append(("adapter", [has_adapter(seat, adapter, now) for seat in seats]))
    if zone and pool.prefer_zone:
        found.append(("zone", [seat.zone == zone for seat in seats]))
    return [(name, has) for name, has in found if any(has) and not all(has)]


def wished_first(
    pool: Pool,
    features: Features,
    seats: Sequence[Seat],
    prices: Sequence[float],
    zone: str,
    now: float,
) -> Sequence[float]:
    """Return the prices with those behind that lack what is wished for, or are full (rule 2)."""
    if not (pool.prefer_zone or pool.model_needs or features.adapter is not None):
        return prices
    wished = wishes(pool, features, seats, zone, now)
    if not wished:
        return prices
    free = within_bound(seats, pool.spill_factor)
    step = max(prices) - min(prices) + 1.0
    behind = [0.0] * len(seats)
    for _, has in wished:
        behind = [
            2.0 * back + (0.0 if fits and room else 1.0)
            for back, fits, room in zip(behind, has, free, strict=True)
        ]
    return [price + step * back for price, back in zip(prices, behind, strict=True)]


def within_bound(seats: Sequence[Seat], factor: float) -> list[bool]:
    """Tell of each seat whether one more request keeps it within its share; see rule 2."""
    share = factor * (sum(seat.load.in_flight for seat in seats) + 1.0)
    share /= sum(seat.capacity for seat in seats)
    return [
        # Products such as 1.1 * 10 = 11.000000000000002 must not round up.
        seat.load.in_flight + 1 <= max(LEAST_BOUND, ceil(share * seat.capacity - 1e-9))
        for seat in seats
    ]


def _too_small(needs: ModelNeeds, seat: Seat, now: float) -> bool:
    """Tell whether a model is surely not loaded on a replica and surely does not fit."""
    stale = now - MEMORY_FRESH_S
    told = {each.model for each in seat.replica.readings if each.model and each.at > stale}
    if not told or needs.model in told:
        return False
    free = [
        each.gpu_memory_free
        for each in seat.replica.readings
        if each.gpu_memory_free is not None and each.at > stale
    ]
    return bool(free) and max(free) < needs.memory_bytes
