"""Constraints: requirements of a request on a replica, besides its health.

Rules:

1. A constraint removes replicas. Constraints are: a device that the model requires, GPU memory for
   a model that is not loaded there, and an adapter if the pool requires it. Unknown memory removes
   no replica.
2. In a pool without constraints the cost is one check of its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features
    from ext_proc.routing.values.settings import ModelNeeds

MEMORY_FRESH_S: Final = 10.0
"""Age in seconds from which readings of GPU memory and adapters are stale; Triton reads its GPUs
every 2 s."""


def needs_of(pool: Pool, features: Features) -> ModelNeeds | None:
    """Return the declared needs of a request's model, ``None`` if there are none."""
    for each in pool.model_needs:
        if each.model == features.model:
            return each
    return None


def unmet(pool: Pool, features: Features, candidate: Candidate, now: float) -> str | None:
    """Return the first constraint that a replica does not meet, ``None`` if it meets all.

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
    """Keep the candidates that meet all constraints of a request (rule 1).

    Args:
        pool: The pool.
        features: The request.
        candidates: The candidates.
        now: Monotonic seconds.
        where: Pool and variant, for the message.

    Returns:
        The remaining candidates, which is ``candidates`` itself if none was removed; a refusal if
        all were removed.
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
    """Return whether a LoRA adapter is declared for a replica, or in use there by a reading."""
    if adapter in candidate.adapters:
        return True
    stale = now - MEMORY_FRESH_S
    return any(
        each.adapters is not None and adapter in each.adapters and each.at > stale
        for each in candidate.replica.readings
    )


def adapter_grade(candidate: Candidate, adapter: str, now: float) -> int:
    """Return how well a LoRA adapter fits a replica.

    Returns:
        3: it is declared for the replica, or a request of it runs. 2: the replica runs fewer
        adapters than it can. 1: requests of it wait there. 0: none of these, or nothing is known.
    """
    if adapter in candidate.adapters:
        return 3
    stale, best = now - MEMORY_FRESH_S, 0
    for each in candidate.replica.readings:
        if each.adapters is None or each.at <= stale:
            continue
        waits = each.adapters_waiting is not None and adapter in each.adapters_waiting
        if adapter in each.adapters and not waits:
            return 3
        if each.adapter_slots is not None and len(each.adapters) < each.adapter_slots:
            best = 2
        elif waits:
            best = max(best, 1)
    return best


def _too_small(needs: ModelNeeds, candidate: Candidate, now: float) -> bool:
    """Return whether fresh readings show that a model is not loaded and does not fit."""
    stale = now - MEMORY_FRESH_S
    loaded = {each.model for each in candidate.replica.readings if each.model and each.at > stale}
    if not loaded or needs.model in loaded:
        return False
    free = [
        each.gpu_memory_free
        for each in candidate.replica.readings
        if each.gpu_memory_free is not None and each.at > stale
    ]
    return bool(free) and max(free) < needs.memory_bytes
