"""round-robin: picks each replica in turn.

Formula: ``price`` = steps from the cursor to the replica, in the pool's order.
Inputs: the pool's endpoints only. Each variant has its own cursor.
Use it for: a baseline; uniform short requests on equal replicas.
Not for: requests of varying cost; it ignores load, size, strength and ramp.

The cursor starts at random, so that several pickers do not pick in lockstep. An ineligible
candidate is skipped, and the cursor continues after the one that was picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.rng import Rng


class RoundRobin(Policy):
    """One cursor per variant; bounded by the number of variants."""

    def __init__(self, rng: Rng) -> None:
        self._start = rng.random()
        self._cursors: dict[str, int] = {}

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's steps from the cursor."""
        cursor = self._cursors.get(context.variant, int(self._start * context.slots))
        return [
            float((candidate.position - cursor) % context.slots) for candidate in context.candidates
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Move the cursor past the candidate; return ``round-robin``."""
        self._cursors[context.variant] = context.candidates[index].position + 1
        return "round-robin"
