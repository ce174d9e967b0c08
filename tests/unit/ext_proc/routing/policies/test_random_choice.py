"""random and weighted-random draw at random."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.policies.random_choice import RandomChoice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def test_unweighted_all_cost_the_same(context: Callable[..., SchedulingContext]) -> None:
    """All prices are equal, so that the router draws."""
    made = context(3, strength=[1.0, 9.0, 1.0])
    assert RandomChoice().prices(made) == [0.0, 0.0, 0.0]
    assert RandomChoice().picked(made, 0) == "random"


def test_weights_converge(context: Callable[..., SchedulingContext]) -> None:
    """Each replica is drawn in proportion to its strength."""
    policy, made = RandomChoice(weighted=True), context(3, strength=[1.0, 2.0, 5.0])
    draws: Counter[int] = Counter()
    for _ in range(8000):
        prices = list(policy.prices(made))
        draws[prices.index(min(prices))] += 1
    for index, strength in enumerate(made.strength):
        assert draws[index] / 8000 == pytest.approx(strength / 8, abs=0.02)
