"""The latency model learns the speed of replicas from first bytes and durations."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import (
    COLD_TOKENS_PER_S,
    GUESS_RANGE,
    MOST_CHANGES,
    MOST_UNREPORTED,
    RANGE,
    Estimate,
    FleetLatencyModel,
    LatencyModel,
    Served,
)


def serve(
    fleet: FleetLatencyModel,
    latency_models: list[LatencyModel],
    slowness: list[float],
    count: int,
    *,
    true: float = 8000.0,
    seed: int = 0,
    first_bytes: bool = False,
) -> None:
    """Let a fleet answer requests with prompts and answers of very different lengths.

    With ``first_bytes`` the proxy reports when answers began.
    """
    rng = random.Random(seed)
    for number in range(count):
        index = rng.randrange(len(latency_models))
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        queue = rng.expovariate(2.0)
        decode = min(2000.0, rng.expovariate(1 / 343)) * 0.008
        elapsed = queue + (tokens / true + decode) * slowness[index]
        drain = queue * rng.uniform(0.0, 2.0)
        if first_bytes:
            step = rng.uniform(0.006, 0.3)
            latency_models[index].answered(
                tokens, drain, queue + (tokens / true + step) * slowness[index]
            )
        latency_models[index].learn(tokens, drain, 3, elapsed, 0.3 * number)
    assert fleet.tail_s >= 0.0


@pytest.mark.parametrize("wrong", [1 / 3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("first_bytes", [False, True])
def test_a_wrong_speed_is_learned_within_200_requests(
    wrong: float, seed: int, *, first_bytes: bool
) -> None:
    """A speed that starts at three times too fast or too slow ends within a factor of 1.6."""
    fleet = FleetLatencyModel(8000.0 * wrong)
    serve(
        fleet,
        [LatencyModel(fleet, 1.0) for _ in range(8)],
        [1.0] * 8,
        200,
        seed=seed,
        first_bytes=first_bytes,
    )
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(2))
def test_a_fleet_ten_times_as_fast_is_known_after_60_first_bytes(seed: int) -> None:
    """The estimate leaves the cold default after few first bytes."""
    fleet = FleetLatencyModel(800.0)
    serve(
        fleet,
        [LatencyModel(fleet, 1.0) for _ in range(8)],
        [1.0] * 8,
        60,
        seed=seed,
        first_bytes=True,
    )
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("first_bytes", "requests"), [(True, 800), (False, 4000)])
def test_slow_replicas_are_distinguished(seed: int, requests: int, *, first_bytes: bool) -> None:
    """Two half-speed replicas among eight become slow on average, the others do not.

    It takes longer with durations only, as half of a duration depends on the answer's length.
    """
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(
        fleet, latency_models, [1.0] * 6 + [2.0] * 2, requests, seed=seed, first_bytes=first_bytes
    )
    assert sum(latency_model.slowness for latency_model in latency_models[6:]) / 2 > 1.3
    assert sum(latency_model.slowness for latency_model in latency_models[:6]) / 6 == pytest.approx(
        1.0, abs=0.15
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("first_bytes", [False, True])
def test_noise_makes_no_replica_slow(seed: int, *, first_bytes: bool) -> None:
    """Equal replicas stay equal although their requests differ widely."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    for part in range(8):
        serve(
            fleet, latency_models, [1.0] * 8, 250, seed=100 * seed + part, first_bytes=first_bytes
        )
        assert [latency_model.slowness for latency_model in latency_models] == [1.0] * 8


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("longer", [3.0, 8.0])
def test_long_answers_make_no_replica_slow(seed: int, longer: float) -> None:
    """Where only durations are known, a replica with the long answers is not a slow replica."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    rng = random.Random(seed)
    for number in range(6000):
        index = rng.randrange(8)
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        answer = rng.expovariate(1 / 343) * 0.008 * (longer if index == 0 else 1.0)
        elapsed = tokens / 8000.0 + answer
        latency_models[index].learn(tokens, 0.0, 3, elapsed, 0.3 * number)
        if number % 100 == 0:
            assert [each.slowness for each in latency_models] == [1.0] * 8


def test_a_queue_that_the_clock_missed_makes_no_replica_slow() -> None:
    """Twenty requests that waited behind the same one do not make the replica slow."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 8, 200, first_bytes=True)
    for _ in range(15):
        latency_models[0].answered(2000.0, 0.0, 5.0)
    assert latency_models[0].slowness == 1.0


def test_answers_that_shrink_with_the_prompt_do_not_make_prefill_free() -> None:
    """Durations that fall with the prompt's length keep the speed near its default."""
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, 1.0)
    rng = random.Random(0)
    for number in range(400):
        tokens = rng.uniform(100.0, 4000.0)
        latency_model.learn(tokens, 0.0, 3, 20.0 - tokens / 400.0 + rng.random(), float(number))
    assert fleet.seconds_per_token * COLD_TOKENS_PER_S * GUESS_RANGE >= 0.999


def test_headers_before_the_prompt_was_read_are_ignored() -> None:
    """With first bytes that do not depend on the prompt, the speed comes from durations."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    rng = random.Random(0)
    for number in range(300):
        tokens = min(120_000.0, rng.lognormvariate(8.3, 1.2))
        latency_model = rng.choice(latency_models)
        latency_model.answered(tokens, 0.0, rng.uniform(0.002, 0.006))
        latency_model.learn(tokens, 0.0, 3, tokens / 8000.0 + rng.expovariate(0.5), float(number))
    assert not fleet.uses_first_bytes
    assert 1 / 1.6 < 8000.0 * fleet.seconds_per_token < 1.6


def test_few_samples_do_not_change_the_speed() -> None:
    """Two short answers tell nothing of the noise; a long prompt's clock would keep the error."""
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, 1.0)
    for number in range(7):
        latency_model.learn(900.0 * number, 0.0, 0, 2.0, float(number))
        assert fleet.seconds_per_token == 1 / COLD_TOKENS_PER_S
    latency_model.answered(900.0, 0.0, 0.1)
    for number in range(47):  # more first bytes are on their way
        latency_model.learn(900.0 * (number % 9), 0.0, 0, 2.0, float(number))
        assert fleet.seconds_per_token == 1 / COLD_TOKENS_PER_S
    latency_model.learn(900.0, 0.0, 0, 2.0, 50.0)  # none came
    assert fleet.seconds_per_token != 1 / COLD_TOKENS_PER_S


def test_a_proxy_that_stops_reporting_leaves_the_speed_to_durations() -> None:
    """After many prompts without a reported first byte, durations are used."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 1.0) for _ in range(8)]
    serve(fleet, latency_models, [1.0] * 8, 200, first_bytes=True)
    assert fleet.uses_first_bytes
    serve(fleet, latency_models, [1.0] * 8, MOST_UNREPORTED - 2)
    assert fleet.uses_first_bytes
    serve(fleet, latency_models, [1.0] * 8, 4000, true=3000.0)
    assert not fleet.uses_first_bytes
    assert 1 / 1.6 < 3000.0 * fleet.seconds_per_token < 1.6


def test_slowness_starts_from_the_capacity_and_follows_it() -> None:
    """A replica of twice the capacity needs half the time, and noise does not change this."""
    fleet = FleetLatencyModel()
    latency_models = [LatencyModel(fleet, 2.0), LatencyModel(fleet, 1.0)]
    serve(fleet, latency_models, [0.5, 1.0], 40)
    assert [latency_model.slowness for latency_model in latency_models] == [0.5, 1.0]
    latency_models[0].adapt(4.0)
    assert latency_models[0].slowness == 0.25


def test_service_time_without_a_prompt() -> None:
    """The time that one more request adds is learned at any number of requests before it."""
    fleet = FleetLatencyModel()
    latency_model = LatencyModel(fleet, 1.0)
    for number in range(200):
        ahead = number % 5
        latency_model.learn(None, 0.0, ahead, 0.003 * (1 + ahead), float(number))
    assert fleet.service_s == pytest.approx(0.003, rel=0.1)
    assert latency_model.slowness == 1.0


def test_it_shows_the_source_of_the_speed() -> None:
    """The source is the default, durations, or first bytes once there are enough."""
    fleet = FleetLatencyModel()
    assert (fleet.describe()["from"], fleet.describe()["tokens_per_s"]) == ("default", 8000.0)
    latency_model = LatencyModel(fleet, 1.0)
    latency_model.learn(100.0, 0.0, 0, 1.0, 0.0)
    assert fleet.describe()["from"] == "durations"
    serve(fleet, [latency_model], [1.0], 20, first_bytes=True)
    described = fleet.describe()
    assert (described["from"], described["first_bytes"]) == ("first-bytes", 20)


def test_latency_and_peak() -> None:
    """The mean follows slowly; the peak rises to a longer duration at once and decays."""
    latency_model = LatencyModel(FleetLatencyModel(), 1.0)
    assert (latency_model.latency_s, latency_model.peak.value(0.0)) == (None, None)
    latency_model.learn(None, 0.0, 0, 1.0, 0.0)
    latency_model.learn(None, 0.0, 0, 3.0, 0.0)
    assert latency_model.latency_s == pytest.approx(1.4)
    assert latency_model.peak.value(0.0) == 3.0
    assert latency_model.peak.value(10.0) == pytest.approx(3.0 / 2.718281828)
    latency_model.learn(None, 0.0, 0, 0.1, 10.0)
    assert 0.1 < (latency_model.peak.value(10.0) or 0.0) < 3.0 / 2.7 + 0.1


def test_a_request_that_hung_moves_the_estimate_little() -> None:
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
    """After any samples, rates are positive and within their range."""
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


@pytest.mark.parametrize("seed", range(2))
def test_an_engine_much_slower_than_the_default_is_not_held_near_it(seed: int) -> None:
    """Also if waits that the clock does not know prolong its first bytes by seconds."""
    rng = random.Random(seed)
    fleet = FleetLatencyModel()
    replica = LatencyModel(fleet, 1.0)
    true = COLD_TOKENS_PER_S / 20.0
    for _ in range(300):
        tokens = rng.uniform(100.0, 4_000.0)
        replica.answered(tokens, 0.0, tokens / true + rng.expovariate(1.0 / 8.0))
    assert 1 / 1.6 < true * fleet.seconds_per_token < 1.6


def test_a_clock_that_was_wrong_holds_the_speed_for_few_samples() -> None:
    """Waits of seconds are expected, and answers come at once: 24 samples tell six times the speed.

    The errors of the first expectations are not noise of the engine.
    """
    fleet, rng = FleetLatencyModel(), random.Random(0)
    for number in range(24):
        tokens = rng.uniform(1_000.0, 6_000.0)
        fleet.answered(1.0, tokens, 3.0 + 0.1 * number, tokens / 48_000.0 + rng.uniform(0.0, 0.02))
    assert 1.0 / fleet.seconds_per_token == pytest.approx(48_000.0, rel=0.5)


def test_tokens_of_an_earlier_scale_are_converted() -> None:
    """By each change since the request was sent; one that outlasts too many tells nothing."""
    fleet = FleetLatencyModel()
    fleet.rescale(2.0, 10)
    fleet.rescale(0.25, 20)
    assert [fleet.in_force(each, 100.0) for each in (10, 11, 20, 21)] == [50.0, 25.0, 25.0, 100.0]
    for number in range(MOST_CHANGES):
        fleet.rescale(2.0, 30 + number)
    assert fleet.in_force(30, 100.0) is None
    assert fleet.in_force(31, 1.0) == 2.0 ** (MOST_CHANGES - 1)


def filled(*values):
    made = Estimate()
    for value in values:
        made.put(value)
    return made


def test_nothing_is_known_without_a_value():
    """An estimate without a value is None, never 0."""
    assert Estimate().value is None
    assert Served().describe() == {"first_byte_s": None, "bytes_per_s": None, "answers": 0}


def test_a_few_values_give_their_geometric_mean():
    """A value ten times smaller and one ten times larger cancel out."""
    assert filled(0.01, 1.0).value == pytest.approx(0.1)


def test_one_outlier_moves_it_by_a_fifth():
    """An answer of a minute among answers of 50 ms moves the estimate by about a fifth."""
    made = filled(*[0.05] * 20)
    made.put(60.0)
    assert made.value == pytest.approx(0.05 * 1.2214, rel=0.01)


def test_it_follows_a_change_that_lasts():
    """After thirty answers that are ten times slower the estimate has followed."""
    made = filled(*[0.05] * 50, *[0.5] * 30)
    assert 0.4 < made.value < 0.5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_it_stays_between_the_least_and_the_most(values):
    """Clipping never makes the estimate overshoot."""
    made = filled(*values)
    floor = [max(value, 1e-4) for value in values]
    assert min(floor) * 0.999 <= made.value <= max(floor) * 1.001
    made.clear()
    assert made.value is None
