"""least-in-flight prices pending requests per strength."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def test_its_reason_is_least(context: Callable[..., SchedulingContext]) -> None:
    """The label is always ``least``."""
    assert LeastInFlight().picked(context(1), 0) == "least"


@given(strength=st.lists(st.floats(0.1, 8), min_size=1, max_size=6), requests=st.integers(0, 60))
def test_it_fills_replicas_evenly(
    context: Callable[..., SchedulingContext], strength: list[float], requests: int
) -> None:
    """No replica ever has more per strength than another would have with one more."""
    policy, pending = LeastInFlight(), [0.0] * len(strength)
    for _ in range(requests):
        prices = list(policy.prices(context(len(strength), pending=pending, strength=strength)))
        pending[prices.index(min(prices))] += 1.0
    lowest = min((have + 1.0) / power for have, power in zip(pending, strength, strict=True))
    for have, power in zip(pending, strength, strict=True):
        assert have / power <= lowest + 1e-9
