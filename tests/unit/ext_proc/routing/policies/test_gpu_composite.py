"""gpu-composite: a weighted sum of readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.gpu_composite import GpuComposite
from ext_proc.routing.values.pool import Pool
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.settings import GpuWeights

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def test_all_terms_count(context: Callable[..., SchedulingContext]) -> None:
    """The price is the weighted sum, within 0 and 1, and the sum of its terms."""
    made = context(2, pending=[8.0, 0.0], now=1.0)
    made.candidates[0].replica.observe([Reading(at=0.5, gpu_used=1.0, kv_used=0.5)])
    made.candidates[1].replica.observe([Reading(at=0.5, gpu_used=0.0, kv_used=0.0)])
    for candidate in made.candidates:
        candidate.latency_model.latency_s = 0.2
    prices = GpuComposite().prices(made)
    assert prices == pytest.approx([0.2 + 0.3 + 0.1 + 0.05, 0.05])
    parts = GpuComposite().parts(made, 0)
    assert set(parts) == {"queue", "gpu", "kv", "latency"}
    assert sum(parts.values()) == pytest.approx(prices[0])
    assert GpuComposite().picked(made, 1) == "least"


def test_unknown_or_stale_is_the_median_of_the_others(
    context: Callable[..., SchedulingContext],
) -> None:
    """A replica without readings looks neither idle nor busy."""
    made = context(4, now=10.0)
    for candidate, used, at in zip(
        made.candidates, (0.2, 0.6, 0.4, 0.9), (9, 9, 9, 1), strict=True
    ):
        candidate.replica.observe([Reading(at=float(at), gpu_used=used)])
    prices = GpuComposite().prices(made)
    assert prices[3] == prices[2]
    assert prices[0] < prices[2] < prices[1]


def test_a_pool_has_weights_of_its_own(context: Callable[..., SchedulingContext]) -> None:
    """Only the ratios of the weights matter, and a change applies at once."""
    made = context(2, pending=[8.0, 0.0], now=1.0)
    made.candidates[1].replica.observe([Reading(at=0.5, gpu_used=0.9)])
    made.candidates[0].replica.observe([Reading(at=0.5, gpu_used=0.1)])
    policy = GpuComposite()
    policy.configure(Pool("llm", gpu_weights=GpuWeights(queue=6, gpu=2, kv=0, latency=0)))
    assert policy.prices(made) == pytest.approx([0.75 * 0.5 + 0.25 * 0.1, 0.25 * 0.9])
    policy.configure(Pool("llm", gpu_weights=GpuWeights(queue=0, gpu=3, kv=0, latency=0)))
    assert policy.prices(made) == pytest.approx([0.1, 0.9])
    policy.configure(Pool("llm", gpu_weights=GpuWeights(queue=0, gpu=0, kv=1, latency=0)))
    assert policy.prices(made) == [0.0, 0.0]


NUMBERS = st.tuples(st.integers(0, 40), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 9))


@given(
    candidates=st.lists(NUMBERS, min_size=1, max_size=6),
    weights=st.lists(st.floats(0, 10), min_size=4, max_size=4),
)
def test_a_price_lies_between_0_and_1(
    context: Callable[..., SchedulingContext],
    candidates: list[tuple[int, float, float, float]],
    weights: list[float],
) -> None:
    """For any readings and weights the price is in 0..1 and the sum of its terms."""
    made = context(len(candidates), pending=[float(each[0]) for each in candidates], now=1.0)
    for candidate, (_, gpu, kv, latency) in zip(made.candidates, candidates, strict=True):
        candidate.replica.observe([Reading(at=0.5, gpu_used=gpu, kv_used=kv)])
        candidate.latency_model.latency_s = latency
    policy = GpuComposite()
    policy.configure(Pool("llm", gpu_weights=GpuWeights(*weights)))
    for index, price in enumerate(policy.prices(made)):
        assert -1e-9 <= price <= 1 + 1e-9
        assert price == pytest.approx(sum(policy.parts(made, index).values()))
