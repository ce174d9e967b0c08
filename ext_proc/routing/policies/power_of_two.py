"""p2c and its variants: pick the less loaded of two replicas drawn at random.

Formula: two distinct candidates are drawn, and the lower load wins. The load is

* p2c: ``(pending + 1) / strength``, requests;
* p2c-work: ``(work + 1) / strength``, uncached prompt tokens in flight;
* p2c-drain: seconds of prefill before the request by the replica's virtual clock, then pending
  requests;
* p2c-latency: ``latency * (pending + 1)``, with the mean duration (30 ms without samples);
* peak-ewma: ``peak * (pending + 1)``, where ``peak`` rises to each longer time to the first byte
  that the access log reports, or, if it reports none, to each longer duration, and decays with a
  time constant of 10 s (Finagle, Linkerd; a replica without samples counts as 30 ms, never as 0).

Inputs: own ledger, fresh queues, capacity; for peak-ewma the access log or durations of own
requests.
Use it for: several pickers or stale readings, where all pickers would otherwise choose the same
best replica; peak-ewma for classic models on uneven replicas.
Not for: LLMs with recurring prompts. Durations depend on the length of an answer, so peak-ewma
mistakes replicas with long answers for slow ones.

Guarantee: the more loaded of the two is never picked, so the replica with the highest load of all
never is. Of n requests on n replicas the fullest has about ``ln ln n / ln 2`` (Azar et al. 1994,
Mitzenmacher 2001).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from ext_proc.routing.latency.model import COLD_LATENCY_S
from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext

Load = Literal["requests", "work", "drain", "latency", "peak"]
TIE_S: Final = 1e-6
"""Seconds per pending request; it only orders replicas with equal clocks."""


class PowerOfTwo(Policy):
    """The less loaded of two; stateless.

    Args:
        load: The load that is compared.
    """

    everyone = False

    def __init__(self, load: Load) -> None:
        self._load = load

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the loads, with all but the two drawn candidates last."""
        loads = self._loads(context)
        count = len(loads)
        first = int(context.rng.random() * count)
        second = int(context.rng.random() * (count - 1))
        if second >= first:
            second += 1
        behind = max(loads) + 1.0
        return [
            load if index in (first, second) else load + behind for index, load in enumerate(loads)
        ]

    def _loads(self, context: SchedulingContext) -> list[float]:
        if self._load == "peak":
            return [
                (COLD_LATENCY_S if peak is None else peak) * (pending + 1.0)
                for peak, pending in zip(_peaks(context), context.pending, strict=True)
            ]
        if self._load == "latency":
            return [
                (COLD_LATENCY_S if (known := candidate.latency_model.latency_s) is None else known)
                * (pending + 1.0)
                for candidate, pending in zip(context.candidates, context.pending, strict=True)
            ]
        if self._load == "drain":
            per_token = context.latency_model.seconds_per_token
            return [
                candidate.replica.drain_s(context.now, per_token * candidate.latency_model.slowness)
                + TIE_S * (pending + 1.0) / strength
                for candidate, pending, strength in zip(
                    context.candidates, context.pending, context.strength, strict=True
                )
            ]
        loads = context.pending if self._load == "requests" else context.work
        return [(load + 1.0) / each for load, each in zip(loads, context.strength, strict=True)]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``least``; stateless."""
        del context, index
        return "least"


def _peaks(context: SchedulingContext) -> list[float | None]:
    """Return the peak of each candidate; times to the first byte and durations are never mixed."""
    first_bytes = [candidate.served.peak.value(context.now) for candidate in context.candidates]
    if all(each is None for each in first_bytes):
        return [candidate.latency_model.peak.value(context.now) for candidate in context.candidates]
    return first_bytes
