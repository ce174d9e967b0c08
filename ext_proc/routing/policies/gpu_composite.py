"""gpu-composite: a weighted sum of what a replica says about itself.

Formula, each term between 0 and 1, the weights those of the pool (here the defaults)::

    price   = 0.4 queue + 0.3 gpu + 0.2 kv + 0.1 latency
    queue   = pending / (pending + 8 * strength)
    gpu     = share of the time in which its GPUs were busy
    kv      = share of its KV cache in use
    latency = latency / (latency + the median latency)

A term that a replica does not tell, or told more than two seconds ago, is the median of those
that do; one that nobody tells is left out and the weights of the others grow to the sum of 1. Where
all that is known weighs nothing, all candidates are alike.

Inputs: own ledger; fresh readings of queue, GPU and KV cache; durations of own requests; capacity.
Use it for: a mixture of models on shared GPUs whose readings are fresh; as an explainable rule.
Not for: LLMs (auto). The terms have no common unit, and GPU utilisation tells idle from busy, not
busy from full. Linear mixes lost to prequal in Prequal's own measurements.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.state.replica import FRESH_S
from ext_proc.routing.values.settings import USUAL_WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import Pool

HALF_QUEUE: Final = 8.0
"""Pending requests per strength that count as half of a full queue."""


def _fill(values: Sequence[float | None]) -> list[float] | None:
    """Replace what is unknown by the median of the known; ``None`` where nothing is."""
    known = [each for each in values if each is not None]
    if not known:
        return None
    usual = median(known)
    return [usual if each is None else each for each in values]


def _gpu(candidate: Candidate, stale: float) -> float | None:
    told = [
        each.gpu_used
        for each in candidate.replica.readings
        if each.gpu_used is not None and each.at > stale
    ]
    return min(1.0, max(told)) if told else None


class GpuComposite(Policy):
    """A weighted sum of terms; keeps nothing but its weights."""

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
        """Return the terms that are known, with weights that add up to 1."""
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
        """Keep no state; the label is ``least``."""
        del context, index
        return "least"

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return each term with its weight; their sum is the price."""
        return {
            name: weight * values[index]
            for name, (weight, values) in self._weighed(context).items()
        }
