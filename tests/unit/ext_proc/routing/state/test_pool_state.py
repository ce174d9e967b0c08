"""The pool state and its replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.latency.model import FleetLatencyModel
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.state.pool_state import PoolState
from ext_proc.routing.state.replica import MAX_READINGS, Replica
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
