"""How fast replicas work is learned from how long their requests took."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import (
    COLD_TOKENS_PER_S,
    GUESS_RANGE,
    MOST_UNHEARD,
    RANGE,
    FleetLatencyModel,
    LatencyModel,
)


def serve(
    fleet: FleetLatencyModel,
    latency_models: list[LatencyModel],
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
        index = rng.randrange(len(latency_models))
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        queue = rng.expovariate(2.0)
        decode = min(2000.0, rng.expovariate(1 / 343)) * 0.008
        elapsed = queue + (tokens / true + decode) * slowness[index]
        drain = queue * rng.uniform(0.0, 2.0)
        if heard:
            step = rng.uniform(0.006, 0.3)
            latency_models[index].answered(
                tokens, drain, queue + (tokens / true + step) * slowness[index]
            )
        latency_models[index].learn(tokens, drain, 3, elapsed, 0.3 * number)
    assert fleet.tail_s >= 0.0


@pytest.mark.parametrize("wrong", [1 / 3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("heard", [False, True])
def test_a_wrong_speed_is_learned_within_200_requests(
    wrong: float, seed: int, *, heard: bool
) -> None:
    """Three times too fast or too slow at the start, it is right within a factor of 1.6."""
    fleet = FleetLatencyModel(8000.0 * wrong)
    serve(
        fleet, [LatencyModel(fleet, 1.0) for _ in range(8)], [1.0] * 8, 200, seed=seed, heard=heard
    )
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(5))
def test_a_fleet_ten_times_as_fast_is_known_after_60_first_bytes(seed: int) -> None:
    """The default is left as soon as first bytes tell of more."""
    fleet = FleetLatencyModel(800.0)
    serve(fleet, [LatencyModel(fleet, 1.0) for _ in range(8)], [1.0] * 8, 60, seed=seed, heard=True)
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("heard", "requests"), [(True, 800), (False, 4000)])
def test_slow_replicas_are_told_apart(seed: int, requests: int, *, heard: bool) -> None:
    """Two half-speed replicas among eight are known as slow on average, and the others are not.

    Where only durations are known, and half of them is the answers' length, it takes longer.
    """
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 6 + [2.0] * 2, requests, seed=seed, heard=heard)
    assert sum(latency_model.slowness for latency_model in latency_models[6:]) / 2 > 1.3
    assert sum(latency_model.slowness for latency_model in latency_models[:6]) / 6 == pytest.approx(
        1.0, abs=0.15
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("heard", [False, True])
def test_noise_makes_nobody_slow(seed: int, *, heard: bool) -> None:
    """Equal replicas stay equal however different their requests are."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    for part in range(8):
        serve(fleet, latency_models, [1.0] * 8, 250, seed=100 * seed + part, heard=heard)
        assert [latency_model.slowness for latency_model in latency_models] == [1.0] * 8


def test_a_queue_that_the_clock_missed_makes_nobody_slow() -> None:
    """Twenty requests that waited behind the same one are one error, not twenty."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 8, 200, heard=True)
    for _ in range(15):
        latency_models[0].answered(2000.0, 0.0, 5.0)
    assert latency_models[0].slowness == 1.0


def test_answers_that_shrink_with_the_prompt_do_not_make_prefill_free() -> None:
    """Durations that fall with the prompt's length leave the speed near its default."""
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, 1.0)
    rng = random.Random(0)
    for number in range(400):
        tokens = rng.uniform(100.0, 4000.0)
        latency_model.learn(tokens, 0.0, 3, 20.0 - tokens / 400.0 + rng.random(), float(number))
    assert fleet.seconds_per_token * COLD_TOKENS_PER_S * GUESS_RANGE >= 0.999


def test_headers_before_the_prompt_was_read_are_not_believed() -> None:
    """First bytes that come at once whatever the prompt leave the speed to the durations."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    rng = random.Random(0)
    for number in range(300):
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        latency_model = rng.choice(latency_models)
        latency_model.answered(tokens, 0.0, rng.uniform(0.002, 0.006))
        latency_model.learn(tokens, 0.0, 3, tokens / 8000.0 + rng.expovariate(0.5), float(number))
    assert not fleet.hears
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


def test_a_proxy_that_fell_silent_leaves_the_speed_to_durations() -> None:
    """First bytes of long ago do not hold against what requests take now."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 8, 200, heard=True)
    assert fleet.hears
    serve(fleet, latency_models, [1.0] * 8, MOST_UNHEARD - 2)
    assert fleet.hears
    serve(fleet, latency_models, [1.0] * 8, 4000, true=3000.0)
    assert not fleet.hears
    assert 1 / 1.6 < 3000.0 * fleet.seconds_per_token < 1.6


def test_capacity_is_believed_and_adapts() -> None:
    """A replica of twice the capacity needs half the time, and noise changes nothing."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 2.0), LatencyModel(fleet, 1.0)]
    serve(fleet, latency_models, [0.5, 1.0], 40)
    assert [latency_model.slowness for latency_model in latency_models] == [0.5, 1.0]
    latency_models[0].adapt(4.0)
    assert latency_models[0].slowness == 0.25


def test_service_time_without_a_prompt() -> None:
    """The time that one more request adds is learned whatever stands before it."""
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, 1.0)
    for number in range(200):
        ahead = number % 5
        latency_model.learn(None, 0.0, ahead, 0.003 * (1 + ahead), float(number))
    assert fleet.service_s == pytest.approx(0.003, rel=0.1)
    assert latency_model.slowness == 1.0


def test_it_says_what_the_speed_is_learned_from() -> None:
    """A default, durations, or first bytes once there are enough."""
    fleet = FleetLatencyModel()
    assert (fleet.describe()["from"], fleet.describe()["tokens_per_s"]) == ("default", 8000.0)
    latency_model = LatencyModel(fleet, 1.0)
    latency_model.learn(100.0, 0.0, 0, 1.0, 0.0)
    assert fleet.describe()["from"] == "durations"
    serve(fleet, [latency_model], [1.0], 20, heard=True)
    described = fleet.describe()
    assert (described["from"], described["first_bytes"]) == ("first-bytes", 20)


def test_latency_and_peak() -> None:
    """The mean follows slowly; the peak jumps to a longer one and decays."""
    latency_model = LatencyModel(FleetLatencyModel(), 1.0)
    assert (latency_model.latency_s, latency_model.peak.value(0.0)) == (None, None)
    latency_model.learn(None, 0.0, 0, 1.0, 0.0)
    latency_model.learn(None, 0.0, 0, 3.0, 0.0)
    assert latency_model.latency_s == pytest.approx(1.4)
    assert latency_model.peak.value(0.0) == 3.0
    assert latency_model.peak.value(10.0) == pytest.approx(3.0 / 2.718281828)
    latency_model.learn(None, 0.0, 0, 0.1, 10.0)
    assert 0.1 < (latency_model.peak.value(10.0) or 0.0) < 3.0 / 2.7 + 0.1


def test_one_that_hung_moves_little() -> None:
    """A request that took an hour is clipped."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 8, 200)
    before, slowness = fleet.seconds_per_token, latency_models[0].slowness
    latency_models[0].learn(90_000.0, 0.0, 0, 3600.0, 100.0)
    assert fleet.seconds_per_token == pytest.approx(before, rel=0.3)
    assert latency_models[0].slowness == pytest.approx(slowness, rel=0.3)


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
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, capacity)
    for number, (tokens, drain, ahead, elapsed) in enumerate(samples):
        latency_model.learn(tokens, drain, ahead, elapsed, float(number))
        if tokens is not None:
            latency_model.answered(tokens, drain, elapsed)
    assert 1 / RANGE <= fleet.seconds_per_token * COLD_TOKENS_PER_S <= RANGE * 1.0001
    assert fleet.service_s > 0
    assert fleet.delta_s >= 0
    assert 1 / 21 <= latency_model.slowness * capacity <= 21
    assert "FleetLatencyModel" in repr(fleet)
    assert "slowness" in repr(latency_model)
