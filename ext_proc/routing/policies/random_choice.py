"""random and weighted-random: by chance alone.

Formula: ``price = 0`` for all, the router draws among equals; weighted, a race of exponential
variables, ``price = -ln(u) / strength``, which candidate ``i`` wins with the probability
``strength_i / all strength``.
Inputs: chance; capacity where weighted.
Use it for: many independent pickers, which never walk in step; a baseline.
Not for: anything that can be seen to queue: of n requests on n replicas the fullest has about
``ln n / ln ln n``.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext


class RandomChoice(Policy):
    """Each candidate with the same probability, or by its strength.

    Args:
        weighted: By strength.
    """

    def __init__(self, *, weighted: bool = False) -> None:
        self._weighted = weighted

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return a draw."""
        if not self._weighted:
            return [0.0] * len(context.candidates)
        draw = context.rng.random
        return [-log(1.0 - draw()) / strength for strength in context.strength]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Keep no state; the label is ``random``."""
        del context, index
        return "random"
