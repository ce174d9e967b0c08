"""The pool state and its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.learner import Learner
from ext_proc.routing.state.candidates import LAG_TOKENS, MAX_READINGS, PoolState, Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import EndpointKey, Variant
from ext_proc.routing.values.reading import Reading

if TYPE_CHECKING:
    from .conftest import Build


def replica(in_flight: int = 0) -> Replica:
    load = Load()
    load.in_flight = in_flight
    return Replica(EndpointKey("a", 1), load)


def test_what_others_queue_is_beyond_our_own() -> None:
    """Our own requests in flight are subtracted, and the result is never negative."""
    made = replica(in_flight=3)
    made.observe([Reading(1.0, "m", queued=4.0), Reading(1.0, "n", queued=1.0)])
    assert made.others_queued(1.5) == 2.0
    made.observe([Reading(1.0, "m", queued=1.0)])
    assert made.others_queued(1.5) == 0.0


def test_a_stale_or_missing_queue_is_unknown() -> None:
    """The queue is None and not 0 if its reading is missing or two seconds old."""
    made = replica()
    assert made.others_queued(0.0) is None
    made.observe([Reading(1.0, "m", queued=4.0), Reading(0.5, "n", queued=0.0)])
    assert made.others_queued(2.4) == 4.0
    assert made.others_queued(2.5) is None
    made.observe([Reading(3.0, "m", running=4.0)])
    assert made.others_queued(3.0) is None


def test_readings_are_bounded() -> None:
    """A page with any number of models gives a bounded number of readings."""
    made = replica()
    made.observe([Reading(1.0, str(number)) for number in range(MAX_READINGS + 10)])
    assert len(made.readings) == MAX_READINGS


def test_candidates_belong_to_variant_and_protocol(build: Build) -> None:
    """Open candidates support the protocol, have the variant and are not draining."""
    pool = build.pool(
        variants=(Variant("stable", 1), Variant("canary", 1)),
        endpoints=(
            build.endpoint(0),
            build.endpoint(1, http=None),
            build.endpoint(2, draining=True),
            build.endpoint(3, variant="canary"),
        ),
    )
    pool_state = PoolState(
        pool, {each.key: Replica(each.key, Load()) for each in pool.endpoints}, FleetLatencyModel()
    )
    assert [candidate.key.id for candidate in pool_state.open["stable", "http"]] == ["r0"]
    assert [candidate.key.id for candidate in pool_state.open["stable", "grpc"]] == [
        "r0",
        "r1",
    ]
    assert [candidate.key.id for candidate in pool_state.open["canary", "http"]] == ["r3"]
    assert ("gone", "http") not in pool_state.open
    assert pool_state.candidate(EndpointKey("r1", 1), "http") is None
    draining = pool_state.candidate(EndpointKey("r2", 1), "http")
    assert draining is not None
    assert repr(draining) == "<Candidate r2 10.0.0.2:8000>"


def _replicas(count: int) -> list[Replica]:
    return [Replica(EndpointKey(f"r{number}", 1), Load()) for number in range(count)]


def test_a_new_replica_does_not_make_up_for_all_that_others_were_sent() -> None:
    """Else it would get each new prompt of an idle fleet for as long as the others have run."""
    old, new = _replicas(2)
    most = old.prompted(50 * LAG_TOKENS, 0.0)
    assert new.prompted(100.0, most) == most
    assert most - new.prefilled == LAG_TOKENS - 100.0


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(1.0, 1e6)), max_size=50))
def test_a_replica_that_was_just_sent_a_prompt_is_no_further_behind(
    sent: list[tuple[int, float]],
) -> None:
    """The lag is bounded whatever the others were sent, and nothing that was sent is forgotten."""
    replicas, most = _replicas(3), 0.0
    for number, tokens in sent:
        before = replicas[number].prefilled
        most = replicas[number].prompted(tokens, most)
        assert replicas[number].prefilled >= before + tokens
        assert most - LAG_TOKENS < replicas[number].prefilled <= most
    assert most == max(each.prefilled for each in replicas)


def test_prompts_whose_answers_have_begun_delay_no_further_prompt() -> None:
    """The clock may run ahead of the replica, but only by what it may still have to compute."""
    (replica,) = _replicas(1)
    replica.busy_until, replica.load.in_flight, replica.load.work = 100.0, 3, 300.0
    assert replica.drain_s(0.0, 0.1) == 30.0
    replica.first_bytes.done = 200.0
    assert replica.drain_s(0.0, 0.1) == 10.0
    replica.first_bytes.done = 300.5  # sums of floats
    assert replica.drain_s(0.0, 0.1) == 0.0


def test_a_clock_follows_the_speed_that_is_learned() -> None:
    """Prompts that were sent while the engine was taken for slow take as long as others."""
    (replica,) = _replicas(1)
    replica.load.in_flight, replica.load.work = 1, 1_000.0
    replica.latency_models["a"] = LatencyModel(FleetLatencyModel(), 1.0)
    replica.busy(10.0, 0.01)
    assert replica.drain_s(0.0, 0.01) == 10.0
    assert replica.drain_s(0.0, 0.001) == 1.0
    assert replica.drain_s(5.0, 0.001) == 0.5


def test_pools_that_share_a_replica_keep_their_clock() -> None:
    """A token takes another time in each, so the speeds are not compared."""
    (replica,) = _replicas(1)
    replica.load.in_flight, replica.load.work = 1, 100_000.0
    for pool in ("a", "b"):
        replica.latency_models[pool] = LatencyModel(FleetLatencyModel(), 1.0)
    replica.busy(10.0, 0.01)
    assert replica.drain_s(0.0, 0.001) == 10.0


def test_a_new_scale_of_text_changes_no_clock() -> None:
    """A prompt of twice as many tokens, each in half the time, takes as long."""
    (replica,) = _replicas(1)
    replica.load.in_flight, replica.load.work = 1, 100_000.0
    fleet = FleetLatencyModel()
    replica.latency_models["a"] = LatencyModel(fleet, 1.0)
    learner = Learner({replica.key: replica})
    learner.models["a"] = fleet
    replica.busy(10.0, 0.01)
    learner.rescale("a", 2.0, 1)
    assert replica.drain_s(0.0, 0.005) == 10.0
