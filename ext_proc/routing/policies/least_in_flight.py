"""least-in-flight: the replica with the fewest requests for its strength.

Formula: ``price = (pending + 1) / strength`` (weighted least pending requests).
Inputs: own in-flight ledger; the replica's own queue where a fresh reading has it; capacity.
Use it for: classic models, mixed GPUs, anything without a visible prompt.
Not for: LLMs with recurring prefixes; a request is a request here, whatever its length.

The ``+ 1`` prices the request being placed, and lets strength matter when all are idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext


class LeastInFlight(Policy):
    """Weighted least pending requests."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return pending requests per strength, this one included."""
        return [
            (pending + 1.0) / strength
            for pending, strength in zip(context.pending, context.strength, strict=True)
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Keep no state; the label is ``least``."""
        del context, index
        return "least"
