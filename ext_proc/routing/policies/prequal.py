"""prequal: picks the fastest replica that is not hot, else the least loaded.

Formula (Prequal's hot-cold lexicographic rule; Wydrowski et al., NSDI 2024)::

    hot   = load above the 0.84 quantile of all loads (2^-0.25)
    price = latency                                    if the replica is cold
            load + a constant behind all cold ones     if it is hot

Load is ``pending / strength``, or for prompts ``work / strength``, because the paper's requests in
flight say little if prompts differ a hundredfold. Latency is the mean duration of recent requests
times ``(pending + 1)``, because it was measured at other loads.

Inputs: own ledger; fresh queues; durations of own requests; capacity. There are no probes: readings
replace them, and a pool is small enough to be its own probe pool.
Use it for: classic models, sudden slowness of single replicas, high load.
Not for: recurring prompts (auto).

Guarantee: a hot replica is never picked while there is a cold one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.least_response_time import latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext

QUANTILE: Final = 2.0**-0.25


def hot_above(loads: Sequence[float]) -> float:
    """Return the load above which a replica is hot; the least loaded never is."""
    return sorted(loads)[int(QUANTILE * (len(loads) - 1))]


class Prequal(Policy):
    """The hot-cold lexicographic rule; stateless."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the latency of cold candidates, followed by the load of hot ones."""
        loads = _loads(context)
        threshold = hot_above(loads)
        times = [
            each * (pending + 1.0)
            for each, pending in zip(latencies(context), context.pending, strict=True)
        ]
        behind = max(times) + 1.0
        return [
            behind + load if load > threshold else time
            for load, time in zip(loads, times, strict=True)
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``cold``, or ``least`` if the pick is hot."""
        loads = _loads(context)
        return "least" if loads[index] > hot_above(loads) else "cold"


def _loads(context: SchedulingContext) -> list[float]:
    loads = context.pending if context.tokens is None else context.work
    return [load / strength for load, strength in zip(loads, context.strength, strict=True)]
