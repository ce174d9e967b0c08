"""p2c and its variants: the less loaded of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.power_of_two import Load, PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def pick(policy: PowerOfTwo, made: SchedulingContext) -> int:
    prices = list(policy.prices(made))
    return prices.index(min(prices))


@pytest.mark.parametrize("load", ["requests", "work", "drain", "latency", "peak"])
@given(loads=st.lists(st.integers(0, 50), min_size=2, max_size=9, unique=True))
def test_the_most_loaded_is_never_taken(
    context: Callable[..., SchedulingContext], load: Load, loads: list[int]
) -> None:
    """Of any two distinct replicas the worse one loses, so the worst of all is never picked."""
    numbers = [float(each) for each in loads]
    made = context(len(loads), pending=numbers, work=numbers)
    worst = loads.index(max(loads))
    assert all(pick(PowerOfTwo(load), made) != worst for _ in range(20))


def test_every_other_one_is_taken(context: Callable[..., SchedulingContext]) -> None:
    """All replicas but the worst are picked, so pickers do not all choose the same one."""
    made = context(5, pending=[0.0, 1.0, 2.0, 3.0, 4.0])
    assert {pick(PowerOfTwo("requests"), made) for _ in range(300)} == {0, 1, 2, 3}


def test_a_single_candidate_is_taken(context: Callable[..., SchedulingContext]) -> None:
    """A pool of one replica works without a second draw."""
    assert pick(PowerOfTwo("requests"), context(1)) == 0
    assert PowerOfTwo("requests").picked(context(1), 0) == "least"


def test_work_counts_tokens_per_strength(context: Callable[..., SchedulingContext]) -> None:
    """p2c-work compares uncached tokens in flight."""
    made = context(2, pending=[0, 5], work=[900.0, 100.0], strength=[1.0, 1.0])
    assert pick(PowerOfTwo("work"), made) == 1
    assert pick(PowerOfTwo("work"), made.changed(strength=[100.0, 1.0])) == 0


@pytest.mark.parametrize(("elapsed", "first"), [(0.0, 1), (60.0, 0)])
def test_a_peak_is_avoided_until_it_fades(
    context: Callable[..., SchedulingContext], elapsed: float, first: int
) -> None:
    """One slow answer keeps requests away at once, and only for some decay times."""
    made = context(2, now=elapsed, pending=[0.0, 0.5])
    made.candidates[0].latency_model.learn(None, 0.0, 0, 2.0, 0.0)
    made.candidates[1].latency_model.learn(None, 0.0, 0, 0.1, elapsed)
    assert pick(PowerOfTwo("peak"), made) == first


def test_a_peak_of_first_bytes_counts_where_it_is_known(
    context: Callable[..., SchedulingContext],
) -> None:
    """Long answers make no replica slow, and first bytes and durations are never mixed."""
    made = context(2, now=60.0, pending=[0.0, 0.1])
    made.candidates[0].latency_model.learn(None, 0.0, 0, 30.0, 60.0)
    made.candidates[1].latency_model.learn(None, 0.0, 0, 0.3, 60.0)
    assert pick(PowerOfTwo("peak"), made) == 1
    made.candidates[0].served.put(0.1, None, 60.0)
    made.candidates[1].served.put(0.2, None, 60.0)
    assert pick(PowerOfTwo("peak"), made) == 0
    made.candidates[0].served.clear()
    assert pick(PowerOfTwo("peak"), made) == 0  # 30 ms, not its 30 s


def test_a_replica_without_samples_counts_as_30_ms(
    context: Callable[..., SchedulingContext],
) -> None:
    """The default holds at any time since the picker's start."""
    made = context(2, now=1e6, pending=[0.0, 0.0])
    made.candidates[0].latency_model.learn(None, 0.0, 0, 0.02, 1e6)
    assert pick(PowerOfTwo("peak"), made) == 0


def test_drain_counts_seconds_of_earlier_prefill(context: Callable[..., SchedulingContext]) -> None:
    """The virtual clock decides, and pending requests if the clocks are equal."""
    made = context(2, pending=[0.0, 3.0], now=1.0)
    assert pick(PowerOfTwo("drain"), made) == 0
    made.candidates[0].replica.busy_until = 5.0
    made.candidates[0].load.work = 1e6
    assert pick(PowerOfTwo("drain"), made) == 1


def test_latency_counts_the_mean_duration(context: Callable[..., SchedulingContext]) -> None:
    """The load is mean duration times requests; without samples it is 30 ms, not 0."""
    made = context(2, pending=[1.0, 0.0])
    made.candidates[0].latency_model.latency_s = 0.01
    assert pick(PowerOfTwo("latency"), made) == 0
    made.candidates[0].latency_model.latency_s = 0.02
    assert pick(PowerOfTwo("latency"), made) == 1
