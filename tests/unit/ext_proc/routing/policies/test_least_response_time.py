"""least-response-time: latency times queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.least_response_time import LeastResponseTime, latencies

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def test_the_price_is_latency_times_queue(context: Callable[..., SchedulingContext]) -> None:
    """A fast replica may have more requests in flight."""
    made = context(2, pending=[2, 0])
    made.candidates[0].latency_model.latency_s, made.candidates[1].latency_model.latency_s = (
        0.1,
        0.5,
    )
    assert LeastResponseTime().prices(made) == [0.1 * 3, 0.5]
    assert LeastResponseTime().picked(made, 0) == "least"


def test_a_replica_without_samples_is_as_the_median(
    context: Callable[..., SchedulingContext],
) -> None:
    """An unknown latency is never 0, so a new replica does not attract all requests."""
    made = context(4)
    assert latencies(made) == [1.0] * 4
    for candidate, latency in zip(made.candidates, (0.2, 0.4, 0.9), strict=False):
        candidate.latency_model.latency_s = latency
    assert latencies(made) == [0.2, 0.4, 0.9, 0.4]


@given(
    latency=st.floats(0.001, 10),
    pending=st.integers(0, 50),
    longer=st.floats(1, 5),
    more=st.integers(0, 5),
)
def test_slower_or_busier_is_never_cheaper(
    context: Callable[..., SchedulingContext],
    latency: float,
    pending: int,
    longer: float,
    more: int,
) -> None:
    """The price grows with latency and with pending requests."""
    made = context(2, pending=[float(pending), float(pending + more)])
    made.candidates[0].latency_model.latency_s, made.candidates[1].latency_model.latency_s = (
        latency,
        latency * longer,
    )
    first, second = LeastResponseTime().prices(made)
    assert 0 < first <= second
