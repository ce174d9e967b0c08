"""gpu-composite: prices replicas by a weighted sum of their readings.

Formula, with each term between 0 and 1 and the pool's weights (here the defaults)::

    price   = 0.4 queue + 0.3 gpu + 0.2 kv + 0.1 latency
    queue   = pending / (pending + 8 * strength)
    gpu     = share of time that its GPUs were busy
    kv      = share of its KV cache in use
    latency = latency / (latency + the median latency)

A term that is missing for a replica, or older than two seconds, is the median of the other
replicas'. A term that is missing for all replicas is left out, and the other weights are scaled to
the sum of 1. If all known terms have weight 0, all prices are equal.

Inputs: own ledger; fresh readings of queue, GPU and KV cache; durations of own requests; capacity.
Use it for: a mixture of models on shared GPUs with fresh readings; an explainable rule.
Not for: LLMs (auto). The terms have no common unit, and GPU utilisation distinguishes idle from
busy, but not busy from full. Linear mixes lost to prequal in Prequal's own measurements.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.state.candidates import FRESH_S
from ext_proc.routing.values.settings import USUAL_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext
    from ext_proc.routing.values.pool import Pool

HALF_QUEUE: Final = 8.0
"""Pending requests per strength at which the queue term is 1/2."""


def _fill(values: Sequence[float | None]) -> list[float] | None:
    """Replace unknown values by the median of the known ones; ``None`` if all are unknown."""
    known = [each for each in values if each is not None]
    if not known:
        return None
    usual = median(known)
    return [usual if each is None else each for each in values]


def _gpu(candidate: Candidate, stale: float) -> float | None:
    fresh = [
        each.gpu_used
        for each in candidate.replica.readings
        if each.gpu_used is not None and each.at > stale
    ]
    return min(1.0, max(fresh)) if fresh else None


class GpuComposite(Policy):
    """A weighted sum of terms; its only state is the weights."""

    def __init__(self) -> None:
        self._weights = asdict(USUAL_WEIGHTS)

    def configure(self, pool: Pool) -> None:
        """Take the pool's ``gpu_weights``."""
        self._weights = asdict(pool.gpu_weights)

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the weighted sum of each candidate."""
        weighed = self._weighed(context)
        return [
            sum([weight * values[index] for weight, values in weighed.values()])
            for index in range(len(context.candidates))
        ]

    def _weighed(self, context: SchedulingContext) -> dict[str, tuple[float, list[float]]]:
        """Return the known terms, with weights that add up to 1."""
        terms = self._terms(context)
        total = sum(self._weights[name] for name in terms) or 1.0
        return {name: (self._weights[name] / total, values) for name, values in terms.items()}

    def _terms(self, context: SchedulingContext) -> dict[str, list[float]]:
        stale, candidates = context.now - FRESH_S, context.candidates
        latency = _fill([candidate.latency_model.latency_s for candidate in candidates])
        if latency is not None:
            usual = max(median(latency), 1e-9)
            latency = [each / (each + usual) for each in latency]
        terms = {
            "queue": [
                pending / (pending + HALF_QUEUE * strength)
                for pending, strength in zip(context.pending, context.strength, strict=True)
            ],
            "gpu": _fill([_gpu(candidate, stale) for candidate in candidates]),
            "kv": _fill(
                [
                    candidate.replica.kv_used if candidate.replica.kv_at > stale else None
                    for candidate in candidates
                ]
            ),
            "latency": latency,
        }
        return {name: values for name, values in terms.items() if values is not None}

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``least``; stateless."""
        del context, index
        return "least"

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return each weighted term; their sum is the price."""
        return {
            name: weight * values[index]
            for name, (weight, values) in self._weighed(context).items()
        }
