"""random and weighted-random: draw the replica at random.

Formula: ``price = 0`` for all, and the router draws among equal prices; if weighted, a race of
exponential variables, ``price = -ln(u) / strength``, which candidate ``i`` wins with probability
``strength_i / all strength``.
Inputs: randomness; capacity if weighted.
Use it for: many independent pickers, which then never pick in lockstep; a baseline.
Not for: requests whose queueing matters: of n requests on n replicas the fullest has about
``ln n / ln ln n``.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext


class RandomChoice(Policy):
    """A random candidate, with equal probability or in proportion to strength; stateless.

    Args:
        weighted: Whether the probability is proportional to strength.
    """

    def __init__(self, *, weighted: bool = False) -> None:
        self._weighted = weighted

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return random prices, or 0 for all if not weighted."""
        if not self._weighted:
            return [0.0] * len(context.candidates)
        draw = context.rng.random
        return [-log(1.0 - draw()) / strength for strength in context.strength]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``random``; stateless."""
        del context, index
        return "random"
