"""prequal: cold replicas by latency, then hot ones by load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.prequal import Prequal, hot_above

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext

ROWS = st.lists(st.tuples(st.integers(0, 30), st.floats(0.01, 9)), min_size=1, max_size=12)


@given(rows=ROWS, prompt=st.booleans())
def test_hot_ones_come_behind_all_cold_ones(
    context: Callable[..., SchedulingContext], rows: list[tuple[int, float]], prompt: bool
) -> None:
    """At any latencies a hot replica is never picked while there is a cold one."""
    loads = [float(load) for load, _ in rows]
    made = context(len(rows), tokens=100.0 if prompt else None)
    made = made.changed(work=loads) if prompt else made.changed(pending=loads)
    for candidate, (_, latency) in zip(made.candidates, rows, strict=True):
        candidate.latency_model.latency_s = latency
    prices, threshold = Prequal().prices(made), hot_above(loads)
    cold = [price for price, load in zip(prices, loads, strict=True) if load <= threshold]
    hot = [price for price, load in zip(prices, loads, strict=True) if load > threshold]
    assert cold
    assert max(cold) < min(hot, default=float("inf"))


def test_among_cold_ones_the_fastest_wins(context: Callable[..., SchedulingContext]) -> None:
    """Load only decides which replicas are hot."""
    made = context(4, pending=[0, 1, 1, 9])
    for candidate, latency in zip(made.candidates, (0.9, 0.1, 0.3, 0.01), strict=True):
        candidate.latency_model.latency_s = latency
    prices = list(Prequal().prices(made))
    assert prices.index(min(prices)) == 1
    assert Prequal().picked(made, 1) == "cold"
    assert Prequal().picked(made, 3) == "least"
