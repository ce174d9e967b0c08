"""Constraints: what a request needs of a replica beyond its health.

Rules:

1. A constraint removes replicas: a device that the model requires, GPU memory for a model that is
   not loaded there, an adapter where the pool requires it. Unknown memory removes no replica.
2. A pool without constraints pays for one look at its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features
    from ext_proc.routing.values.settings import ModelNeeds

MEMORY_FRESH_S: Final = 10.0
"""An older reading of GPU memory or adapters is unknown. Triton looks at its GPUs each 2 s."""


def needs_of(pool: Pool, features: Features) -> ModelNeeds | None:
    """Return what a request's model needs, ``None`` where nothing is declared."""
    for each in pool.model_needs:
        if each.model == features.model:
            return each
    return None


def unmet(pool: Pool, features: Features, candidate: Candidate, now: float) -> str | None:
    """Name the need that a replica does not meet, ``None`` where it meets all.

    Args:
        pool: The pool.
        features: The request.
        candidate: The replica.
        now: Monotonic seconds, for the age of readings.

    Returns:
        ``device``, ``memory`` or ``adapter``.
    """
    needs = needs_of(pool, features) if pool.model_needs else None
    if needs is not None:
        if needs.device_required and candidate.device != needs.device:
            return "device"
        if needs.memory_bytes and _too_small(needs, candidate, now):
            return "memory"
    adapter = features.adapter
    if (
        adapter is not None
        and pool.adapters == "require"
        and not has_adapter(candidate, adapter, now)
    ):
        return "adapter"
    return None


def satisfying(
    pool: Pool, features: Features, candidates: Sequence[Candidate], now: float, where: str
) -> Sequence[Candidate] | Refusal:
    """Keep the candidates that meet all needs of a request (rule 1).

    Args:
        pool: The pool.
        features: The request.
        candidates: What the pool offers.
        now: Monotonic seconds.
        where: Pool and variant, for the message.

    Returns:
        ``candidates`` itself where nothing is needed; a refusal where there are some and none is
        able.
    """
    if not pool.model_needs and (features.adapter is None or pool.adapters != "require"):
        return candidates
    reasons = [unmet(pool, features, candidate, now) for candidate in candidates]
    if not any(reasons):
        return candidates
    kept = [
        candidate for candidate, reason in zip(candidates, reasons, strict=True) if reason is None
    ]
    if kept:
        return kept
    lacking = {
        "device": f"the device that model {features.model!r} requires",
        "memory": f"free GPU memory for model {features.model!r}",
        "adapter": f"the adapter {features.adapter!r} loaded",
    }
    words = " or ".join(text for name, text in lacking.items() if name in reasons)
    return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint with {words}")


def has_adapter(candidate: Candidate, adapter: str, now: float) -> bool:
    """Tell whether a LoRA adapter is declared for a replica, or runs or waits there."""
    if adapter in candidate.adapters:
        return True
    stale = now - MEMORY_FRESH_S
    return any(
        each.adapters is not None and adapter in each.adapters and each.at > stale
        for each in candidate.replica.readings
    )


def _too_small(needs: ModelNeeds, candidate: Candidate, now: float) -> bool:
    """Tell whether a model is surely not loaded on a replica and surely does not fit."""
    stale = now - MEMORY_FRESH_S
    told = {each.model for each in candidate.replica.readings if each.model and each.at > stale}
    if not told or needs.model in told:
        return False
    free = [
        each.gpu_memory_free
        for each in candidate.replica.readings
        if each.gpu_memory_free is not None and each.at > stale
    ]
    return bool(free) and max(free) < needs.memory_bytes
