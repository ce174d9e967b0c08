"""least-response-time: picks the replica with the lowest expected response time.

Formula: ``price = latency * (pending + 1) / strength``. The latency is the time to the first byte
that the access log reports (robust mean), or, if it reports none, the EWMA of whole durations (gain
0.2); a replica without samples has the median of the others, never 0.
Inputs: the access log, or durations of own requests; own ledger; fresh queues; capacity.
Use it for: mixed hardware with similar requests.
Not for: LLMs, because durations depend on the length of prompt and answer, so that a replica with
short requests looks fast; spikes, which averages hide (peak-ewma).
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext


def latencies(context: SchedulingContext) -> list[float]:
    """Return the latency of each candidate; unknown ones are the median of the known, or 1.

    Times to the first byte and whole durations are never mixed: one is many times the other.
    """
    known = [candidate.served.first_byte_s.value for candidate in context.candidates]
    if not any(known):
        known = [candidate.latency_model.latency_s for candidate in context.candidates]
    measured = [each for each in known if each is not None]
    usual = median(measured) if measured else 1.0
    return [usual if each is None else each for each in known]


class LeastResponseTime(Policy):
    """Latency times queue; stateless."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the expected response time of each candidate."""
        return [
            latency * (pending + 1.0) / strength
            for latency, pending, strength in zip(
                latencies(context), context.pending, context.strength, strict=True
            )
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``least``; stateless."""
        del context, index
        return "least"
