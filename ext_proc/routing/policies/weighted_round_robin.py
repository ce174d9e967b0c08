"""weighted-round-robin: each replica in turn, the stronger ones more often.

Formula (nginx's smooth weighted round robin): each pick adds its strength to every replica's
credit, the largest credit wins and pays the sum of all strengths: 5, 1, 1 give a a b a c a a.
Inputs: capacity and membership. Each variant has its own credits.
Use it for: uniform requests on mixed hardware, where shares must be exact over short windows.
Not for: anything whose cost varies; it ignores load.

Guarantee: over any window of whole rounds each replica gets its share exactly. A change of
strength keeps the credits, so no burst follows it. A candidate that is not eligible earns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext


class WeightedRoundRobin(Policy):
    """Credits per variant and replica; at most twice as many as the pool has endpoints."""

    def __init__(self) -> None:
        self._credits: dict[str, dict[str, float]] = {}

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the credit each candidate would have, negated."""
        credit = self._credits.get(context.variant, {})
        return [
            -(credit.get(candidate.key.id, 0.0) + strength)
            for candidate, strength in zip(context.candidates, context.strength, strict=True)
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Give each candidate its credit and let the winner pay; the label is ``round-robin``."""
        credit = self._credits.setdefault(context.variant, {})
        if len(credit) > 2 * context.slots:  # replicas came and went
            offered = {candidate.key.id for candidate in context.candidates}
            for gone in [each for each in credit if each not in offered]:
                del credit[gone]
        for candidate, strength in zip(context.candidates, context.strength, strict=True):
            credit[candidate.key.id] = credit.get(candidate.key.id, 0.0) + strength
        credit[context.candidates[index].key.id] -= sum(context.strength)
        return "round-robin"
