"""round-robin: each replica in turn.

Formula: ``price`` = steps from the cursor to the replica, in the pool's order.
Inputs: none but membership. Each variant has its own cursor.
Use it for: a baseline; uniform short requests on equal replicas.
Not for: anything whose cost varies; it ignores load, size, strength and ramp.

The cursor starts at random, so that several pickers do not walk in step. A candidate that is not
eligible is skipped and the walk goes on from the one that was picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.rng import Rng


class RoundRobin(Policy):
    """A cursor per variant; bounded by the pool's variants."""

    def __init__(self, rng: Rng) -> None:
        self._start = rng.random()
        self._cursors: dict[str, int] = {}

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return how many steps away each candidate is."""
        cursor = self._cursors.get(context.variant, int(self._start * context.slots))
        return [
            float((candidate.position - cursor) % context.slots) for candidate in context.candidates
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Move the cursor behind the candidate; the label is ``round-robin``."""
        self._cursors[context.variant] = context.candidates[index].position + 1
        return "round-robin"
