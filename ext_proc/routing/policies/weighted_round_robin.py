"""weighted-round-robin: picks each replica in turn, stronger ones more often.

Formula (nginx's smooth weighted round robin): each pick adds to every replica's credit its
strength; the largest credit wins and pays the sum of all strengths: 5, 1, 1 give a a b a c a a.
Inputs: capacity and the pool's endpoints. Each variant has its own credits.
Use it for: uniform requests on mixed hardware, if shares must be exact over short windows.
Not for: requests of varying cost; it ignores load.

Guarantee: over any window of whole rounds each replica gets exactly its share. A change of strength
keeps the credits, so no burst follows it. An ineligible candidate earns no credit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext


class WeightedRoundRobin(Policy):
    """Credits per variant and replica; at most twice as many as the pool has endpoints."""

    def __init__(self) -> None:
        self._credits: dict[str, dict[str, float]] = {}

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's negated credit after this pick's addition."""
        credit = self._credits.get(context.variant, {})
        return [
            -(credit.get(candidate.key.id, 0.0) + strength)
            for candidate, strength in zip(context.candidates, context.strength, strict=True)
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Add each candidate's credit and charge the winner; return ``round-robin``."""
        credit = self._credits.setdefault(context.variant, {})
        if len(credit) > 2 * context.slots:  # replicas were added and removed
            present = {candidate.key.id for candidate in context.candidates}
            for gone in [each for each in credit if each not in present]:
                del credit[gone]
        for candidate, strength in zip(context.candidates, context.strength, strict=True):
            credit[candidate.key.id] = credit.get(candidate.key.id, 0.0) + strength
        credit[context.candidates[index].key.id] -= sum(context.strength)
        return "round-robin"
