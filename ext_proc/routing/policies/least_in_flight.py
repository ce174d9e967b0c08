"""least-in-flight: picks the replica with the fewest requests relative to its strength.

Formula: ``price = (pending + 1) / strength`` (weighted least pending requests).
Inputs: own ledger; the replica's queue if a fresh reading has it; capacity.
Use it for: classic models, mixed GPUs, anything without a visible prompt.
Not for: LLMs with recurring prefixes, because all requests count the same at any length.

The ``+ 1`` counts the request being placed, so that strength matters when all replicas are idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext


class LeastInFlight(Policy):
    """Weighted least pending requests."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return pending requests per strength, including this request."""
        return [
            (pending + 1.0) / strength
            for pending, strength in zip(context.pending, context.strength, strict=True)
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``least``; stateless."""
        del context, index
        return "least"
