"""How fast replicas work is learned from how long their requests took."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.pace import (
    COLD_TOKENS_PER_S,
    GUESS_RANGE,
    MOST_UNHEARD,
    RANGE,
    FleetPace,
    Pace,
)


def serve(
    fleet: FleetPace,
    paces: list[Pace],
    slowness: list[float],
    count: int,
    *,
    true: float = 8000.0,
    seed: int = 0,
    heard: bool = False,
) -> None:
    """Let a fleet answer requests with prompts and answers of very different lengths.

    With ``heard`` the proxy tells when answers began.
    """
    rng = random.Random(seed)
    for number in range(count):
        index = rng.randrange(len(paces))
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        queue = rng.expovariate(2.0)
        decode = min(2000.0, rng.expovariate(1 / 343)) * 0.008
        elapsed = queue + (tokens / true + decode) * slowness[index]
        drain = queue * rng.uniform(0.0, 2.0)
        if heard:
            step = rng.uniform(0.006, 0.3)
            paces[index].answered(tokens, drain, queue + (tokens / true + step) * slowness[index])
        paces[index].learn(tokens, drain, 3, elapsed, 0.3 * number)
    assert fleet.tail_s >= 0.0


@pytest.mark.parametrize("wrong", [1 / 3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("heard", [False, True])
def test_a_wrong_speed_is_learned_within_200_requests(
    wrong: float, seed: int, *, heard: bool
) -> None:
    """Three times too fast or too slow at the start, it is right within a factor of 1.6."""
    fleet = FleetPace(8000.0 * wrong)
    serve(fleet, [Pace(fleet, 1.0) for _ in range(8)], [1.0] * 8, 200, seed=seed, heard=heard)
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(5))
def test_a_fleet_ten_times_as_fast_is_known_after_60_first_bytes(seed: int) -> None:
    """The default is left as soon as first bytes tell of more."""
    fleet = FleetPace(800.0)
    serve(fleet, [Pace(fleet, 1.0) for _ in range(8)], [1.0] * 8, 60, seed=seed, heard=True)
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("heard", "requests"), [(True, 800), (False, 4000)])
def test_slow_replicas_are_told_apart(seed: int, requests: int, *, heard: bool) -> None:
    """Two half-speed replicas among eight are known as slow on average, and the others are not.

    Where only durations are known, and half of them is the answers' length, it takes longer.
    """
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    serve(fleet, paces, [1.0] * 6 + [2.0] * 2, requests, seed=seed, heard=heard)
    assert sum(pace.slowness for pace in paces[6:]) / 2 > 1.3
    assert sum(pace.slowness for pace in paces[:6]) / 6 == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("heard", [False, True])
def test_noise_makes_nobody_slow(seed: int, *, heard: bool) -> None:
    """Equal replicas stay equal however different their requests are."""
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    for part in range(8):
        serve(fleet, paces, [1.0] * 8, 250, seed=100 * seed + part, heard=heard)
        assert [pace.slowness for pace in paces] == [1.0] * 8


def test_a_queue_that_the_clock_missed_makes_nobody_slow() -> None:
    """Twenty requests that waited behind the same one are one error, not twenty."""
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    serve(fleet, paces, [1.0] * 8, 200, heard=True)
    for _ in range(15):
        paces[0].answered(2000.0, 0.0, 5.0)
    assert paces[0].slowness == 1.0


def test_answers_that_shrink_with_the_prompt_do_not_make_prefill_free() -> None:
    """Durations that fall with the prompt's length leave the speed near its default."""
    fleet = FleetPace()
    pace = Pace(fleet, 1.0)
    rng = random.Random(0)
    for number in range(400):
        tokens = rng.uniform(100.0, 4000.0)
        pace.learn(tokens, 0.0, 3, 20.0 - tokens / 400.0 + rng.random(), float(number))
    assert fleet.seconds_per_token * COLD_TOKENS_PER_S * GUESS_RANGE >= 0.999


def test_headers_before_the_prompt_was_read_are_not_believed() -> None:
    """First bytes that come at once whatever the prompt leave the speed to the durations."""
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    rng = random.Random(0)
    for number in range(300):
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        pace = rng.choice(paces)
        pace.answered(tokens, 0.0, rng.uniform(0.002, 0.006))
        pace.learn(tokens, 0.0, 3, tokens / 8000.0 + rng.expovariate(0.5), float(number))
    assert not fleet.hears
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


def test_a_proxy_that_fell_silent_leaves_the_speed_to_durations() -> None:
    """First bytes of long ago do not hold against what requests take now."""
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    serve(fleet, paces, [1.0] * 8, 200, heard=True)
    assert fleet.hears
    serve(fleet, paces, [1.0] * 8, MOST_UNHEARD - 2)
    assert fleet.hears
    serve(fleet, paces, [1.0] * 8, 4000, true=3000.0)
    assert not fleet.hears
    assert 1 / 1.6 < 3000.0 * fleet.seconds_per_token < 1.6


def test_capacity_is_believed_and_adapts() -> None:
    """A replica of twice the capacity needs half the time, and noise changes nothing."""
    fleet = FleetPace()
    paces = [Pace(fleet, 2.0), Pace(fleet, 1.0)]
    serve(fleet, paces, [0.5, 1.0], 40)
    assert [pace.slowness for pace in paces] == [0.5, 1.0]
    paces[0].adapt(4.0)
    assert paces[0].slowness == 0.25


def test_service_time_without_a_prompt() -> None:
    """The time that one more request adds is learned whatever stands before it."""
    fleet = FleetPace()
    pace = Pace(fleet, 1.0)
    for number in range(200):
        ahead = number % 5
        pace.learn(None, 0.0, ahead, 0.003 * (1 + ahead), float(number))
    assert fleet.service_s == pytest.approx(0.003, rel=0.1)
    assert pace.slowness == 1.0


def test_it_says_what_the_speed_is_learned_from() -> None:
    """A default, durations, or first bytes once there are enough."""
    fleet = FleetPace()
    assert (fleet.describe()["from"], fleet.describe()["tokens_per_s"]) == ("default", 8000.0)
    pace = Pace(fleet, 1.0)
    pace.learn(100.0, 0.0, 0, 1.0, 0.0)
    assert fleet.describe()["from"] == "durations"
    serve(fleet, [pace], [1.0], 20, heard=True)
    described = fleet.describe()
    assert (described["from"], described["first_bytes"]) == ("first-bytes", 20)


def test_latency_and_peak() -> None:
    """The mean follows slowly; the peak jumps to a longer one and decays."""
    pace = Pace(FleetPace(), 1.0)
    assert (pace.latency_s, pace.peak.value(0.0)) == (None, None)
    pace.learn(None, 0.0, 0, 1.0, 0.0)
    pace.learn(None, 0.0, 0, 3.0, 0.0)
    assert pace.latency_s == pytest.approx(1.4)
    assert pace.peak.value(0.0) == 3.0
    assert pace.peak.value(10.0) == pytest.approx(3.0 / 2.718281828)
    pace.learn(None, 0.0, 0, 0.1, 10.0)
    assert 0.1 < (pace.peak.value(10.0) or 0.0) < 3.0 / 2.7 + 0.1


def test_one_that_hung_moves_little() -> None:
    """A request that took an hour is clipped."""
    fleet = FleetPace()
    paces = [Pace(fleet, 1.0) for _ in range(8)]
    serve(fleet, paces, [1.0] * 8, 200)
    before, slowness = fleet.seconds_per_token, paces[0].slowness
    paces[0].learn(90_000.0, 0.0, 0, 3600.0, 100.0)
    assert fleet.seconds_per_token == pytest.approx(before, rel=0.3)
    assert paces[0].slowness == pytest.approx(slowness, rel=0.3)


SAMPLES = st.lists(
    st.tuples(
        st.none() | st.floats(1, 1e7), st.floats(0, 1e6), st.integers(0, 1000), st.floats(-1, 1e6)
    ),
    max_size=80,
)


@given(samples=SAMPLES, capacity=st.floats(0.01, 100))
def test_no_input_breaks_the_bounds(
    samples: list[tuple[float | None, float, int, float]], capacity: float
) -> None:
    """Whatever is learned, rates are positive and within their range."""
    fleet = FleetPace()
    pace = Pace(fleet, capacity)
    for number, (tokens, drain, ahead, elapsed) in enumerate(samples):
        pace.learn(tokens, drain, ahead, elapsed, float(number))
        if tokens is not None:
            pace.answered(tokens, drain, elapsed)
    assert 1 / RANGE <= fleet.seconds_per_token * COLD_TOKENS_PER_S <= RANGE * 1.0001
    assert fleet.service_s > 0
    assert fleet.delta_s >= 0
    assert 1 / 21 <= pace.slowness * capacity <= 21
    assert "FleetPace" in repr(fleet)
    assert "slowness" in repr(pace)
