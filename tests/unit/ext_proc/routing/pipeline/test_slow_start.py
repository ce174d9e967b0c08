"""The ramp is Envoy's slow-start formula, and gives a replica its share and no more."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.pipeline.slow_start import factor, with_slow_start
from ext_proc.routing.state.candidates import SchedulingContext
from ext_proc.routing.values.settings import SlowStart
from support.contexts import make

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("age", "aggression", "expected"),
    [(15, 1.0, 0.25), (15, 2.0, 0.5), (0, 1.0, 0.1), (59, 1.0, 59 / 60), (60, 1.0, 1.0)],
)
def test_it_is_envoys_formula(age: float, aggression: float, expected: float) -> None:
    """A window of 60 s gives the values of Envoy's documentation."""
    ramp = SlowStart(window_s=60.0, aggression=aggression, min_weight=0.1)
    assert factor(ramp, 1000.0, 1000.0 + age) == pytest.approx(expected)


def test_the_age_has_envoys_floor() -> None:
    """Within its first second a replica counts as one second old."""
    assert factor(SlowStart(10.0, 1.0, 0.0), 1000.0, 1000.2) == pytest.approx(0.1)


def test_warm_means_one() -> None:
    """Without a joining time or a window the factor is 1."""
    assert factor(SlowStart(60.0), None, 5.0) == 1.0
    assert factor(SlowStart(0.0), 4.9, 5.0) == 1.0


@given(st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0, 1), st.floats(-1e5, 1e5))
def test_it_stays_between_0_and_1(
    window: float, aggression: float, minimum: float, age: float
) -> None:
    """For any settings and clock it is above 0, so loads can be divided by it."""
    assert 0 < factor(SlowStart(window, aggression, minimum), 1e6, 1e6 + age) <= 1


@given(
    st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 1e4), st.floats(0, 1e4)
)
def test_it_never_falls_with_age(
    window: float, aggression: float, minimum: float, age: float, more: float
) -> None:
    """The factor never falls as the age grows."""
    ramp = SlowStart(window, aggression, minimum)
    assert factor(ramp, 1e6, 1e6 + age) <= factor(ramp, 1e6, 1e6 + age + more) + 1e-12


def context(ramp: Sequence[float], **changes: Any) -> SchedulingContext:
    """Return a context of idle candidates with these ramp factors."""
    return make(len(ramp), ramp=ramp, **changes)


def firsts(made: SchedulingContext, prices: list[float], draws: int = 4000) -> list[float]:
    """Return the share of draws in which each candidate came first."""
    rng, counts = random.Random(3), [0] * len(prices)
    for _ in range(draws):
        changed = list(with_slow_start(made, prices, rng))
        counts[changed.index(min(changed))] += 1
    return [count / draws for count in counts]


def test_the_share_is_the_ramped_part_of_the_capacity() -> None:
    """A quarter-warm replica of double capacity gets 0.5 of 2.5."""
    shares = firsts(context([1.0, 1.0, 0.25], strength=[1.0, 1.0, 2.0]), [1.0, 2.0, 3.0])
    assert shares[2] == pytest.approx(0.5 / 2.5, abs=0.03)


def test_a_busy_replica_is_not_put_first() -> None:
    """A drawn replica does not come first if its load is above the mean."""
    assert firsts(context([1.0, 0.5], pending=[1.0, 3.0]), [1.0, 2.0])[1] == 0.0


def test_a_drawn_replica_with_a_longer_wait_is_not_put_first() -> None:
    """One long prompt is a small load in requests, but others would wait seconds behind it."""
    for wait, first in ((1.4, True), (1.6, False)):
        made = context([1.0, 1.0, 0.5], pending=[1.0, 1.0, 1.0])
        for candidate, own in zip(made.candidates, (3.0, 1.0, wait), strict=True):
            candidate.replica.busy_until = own
            candidate.replica.load.work = 1e9
        assert (firsts(made, [1.0, 2.0, 3.0])[2] > 0.1) is first


def test_overloaded_warm_replicas_are_relieved() -> None:
    """With prices in seconds, a replica at a tenth of its ramp costs ten times its price."""
    made = context([1.0, 0.1], pending=[60.0, 0.0])
    for warm, shares in ((9.0, [1.0, 0.0]), (11.0, [0.0, 1.0])):
        changed = with_slow_start(made, [warm, 1.0], Never(), in_seconds=True)
        assert list(changed) == [warm, 10.0]
        assert [price == min(changed) for price in changed] == [bool(each) for each in shares]


class Never:
    """An rng with which no ramping candidate is drawn."""

    def random(self) -> float:
        """Return nearly 1."""
        return 0.999


def test_a_cached_prompt_puts_no_ramping_replica_first() -> None:
    """A request with a cached prompt is not sent to a cold replica because of its ramp."""
    made = context([1.0, 0.9], matched=[4, 0], blocks=5)
    assert firsts(made, [1.0, 2.0]) == [1.0, 0.0]


def test_a_hit_on_the_ramping_replica_keeps_its_price() -> None:
    """An affinity hit is worth the same on a new replica."""
    made = context([1.0, 0.1], matched=[0, 4], blocks=5)
    assert list(with_slow_start(made, [5.0, 1.0], random.Random(1))) == [5.0, 1.0]


def test_where_all_are_new_prices_stay() -> None:
    """If all candidates are ramping, prices are unchanged."""
    prices = [3.0, 1.0]
    assert with_slow_start(context([0.1, 0.2]), prices, random.Random(1)) is prices


@given(
    st.lists(
        st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 50.0), st.floats(-10.0, 1e6)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 2**32),
)
def test_warm_candidates_keep_their_prices(
    rows: list[tuple[float, float, float]], seed: int
) -> None:
    """Slow start never changes the prices of warm replicas."""
    made = context([row[0] for row in rows], pending=[row[1] for row in rows])
    prices = [row[2] for row in rows]
    changed = with_slow_start(made, prices, random.Random(seed))
    assert [price for price, row in zip(changed, rows, strict=True) if row[0] >= 1.0] == [
        row[2] for row in rows if row[0] >= 1.0
    ]


def test_the_restraint_ends_where_the_warm_wait_longer() -> None:
    """Where few are warm and prompts wait on all of them, a ramping replica is not held back.

    Its own wait counts by its ramp: at a tenth, 0.2 s are as long as 2 s elsewhere, besides the
    half second that is no reason.
    """
    for waits, held in (([2.4, 9.0, 0.2], True), ([2.6, 9.0, 0.2], False), ([0.4, 0.4, 0.0], True)):
        made = context([1.0, 1.0, 0.1])
        for candidate, wait in zip(made.candidates, waits, strict=True):
            candidate.replica.busy_until = wait
            candidate.replica.load.work = 1e9
        changed = with_slow_start(made, [8.0, 9.0, 1.0], Never(), in_seconds=True)
        assert list(changed) == [8.0, 9.0, 10.0 if held else 1.0]
        assert (with_slow_start(made, [8.0, 9.0, 1.0], Never())[2] > 9.0) is held
