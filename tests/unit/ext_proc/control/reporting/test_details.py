"""Traffic and states as messages."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.control.reporting import details
from ext_proc.control.reporting.details import PLACEMENT_S, Details
from ext_proc.control.reporting.watch import ReplicaWatch
from ext_proc.exchange import Exchange
from ext_proc.observability import traffic as counting
from ext_proc.observability.traffic import Places, TrafficCounts
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.settings import SlowStart
from support.exchanges import head, run
from support.streams import llm, replicas, router
from tidegate_api.fleet.v1 import report_pb2


class Setting:
    """Counts and details of one router, and their clock."""

    def __init__(self, **changes: Any) -> None:
        self.now = 100.0
        self.router = router(llm(**changes))
        self.traffic = TrafficCounts(Places(self.router.registry).find)
        watch = ReplicaWatch(self.router, lambda: self.now, lambda: self.now)
        placement = self.router.placement
        self.details = Details(self.traffic, watch, 2**64 - 1, lambda: self.now, placement)

    def report(self) -> report_pb2.PickerReport:
        """Return the next report with traffic."""
        made = report_pb2.PickerReport()
        self.details.add(made, traffic=True)
        return made


def test_a_report_has_what_has_changed() -> None:
    """The first one of a stream has all; sums stay sums."""
    made = Setting()
    made.traffic.ended("llm/stable/http", "10.0.0.1:8080", "error", 0.1, 0.2)
    made.traffic.picked("llm", "stable", 100, 40)
    first = made.report().traffic
    (variant,) = first.variants
    assert (variant.pool, variant.variant, variant.requests) == ("llm", "stable", 1)
    assert (dict(variant.failed), variant.prompt_tokens, variant.cached_tokens) == (
        {"error": 1},
        100,
        40,
    )
    assert list(variant.duration.counts) == [1]
    assert [(each.id, each.requests, each.failed) for each in first.endpoints] == [("r1", 1, 1)]
    assert not made.report().traffic.variants
    made.traffic.ended("llm/stable/http", "10.0.0.2:8080", "good", None, 0.2)
    later = made.report().traffic
    assert [each.requests for each in later.variants] == [2]
    assert [each.id for each in later.endpoints] == ["r2"]
    made.details.begin()
    again = made.report().traffic
    assert len(again.endpoints) == 2
    assert again.life == first.life == 2**64 - 1


def test_counts_that_begin_anew_are_another_life(monkeypatch) -> None:
    """Otherwise the receiver would wait until they reach the old ones."""
    monkeypatch.setattr(counting, "MAX_VARIANTS", 1)
    made = Setting()
    made.traffic.ended("llm/stable/http", "10.0.0.1:8080", "good", 0.1, 0.2)
    made.report()
    made.now += 30.0
    assert made.report().traffic.age_seconds == 30.0
    made.traffic.set_pools({})
    anew = made.report().traffic
    assert (anew.life, anew.age_seconds) == (0, 0.0)


def test_states_have_the_age_of_readings_and_slow_start() -> None:
    """Without a reading the age is unset, not 0."""
    young = Endpoint(
        EndpointKey("young", 1), "stable", http="10.0.0.7:8080", grpc=None, joined_unix_s=90.0
    )
    made = Setting(endpoints=(*replicas(1), young), slow_start=SlowStart(window_s=30.0))
    made.router.registry.observe("r1", (Reading(at=98.5, model="toy-llm", queued=1),))
    warm, ramping = made.report().replicas.replicas
    assert (warm.id, warm.reading_age_ms, warm.HasField("ramp_percent")) == ("r1", 1500, False)
    assert not ramping.HasField("reading_age_ms")
    assert 0 < ramping.ramp_percent < 100


def test_limits_queues_and_waits_are_reported() -> None:
    """A pool in which no request waits has no queue; waits that ended are counts of the pool."""
    made = Setting(endpoints=replicas(1), per_endpoint_in_flight=1, hold_s=4.0)
    (state,) = made.report().replicas.replicas
    (limit,) = state.limits
    assert (limit.model, limit.most, limit.source) == ("", 1, "set")
    run(made.router, head(end_of_stream=True))
    Exchange(made.router).on(head(end_of_stream=True), made.now, made.now)
    told = made.router.explain(
        Request("llm", None, "http", Features(Form.GENERATE)), made.now, made.now
    )
    assert told["refused"] == "saturated"
    assert told["queue"]["high"] + told["queue"]["low"] == 0  # it waits for another model
    assert made.router.state(made.now)["queue"]["waiting"] == 1
    (queue,) = made.report().replicas.queues
    assert (queue.pool, queue.waiting, queue.HasField("wait_seconds")) == ("llm", 1, False)
    made.traffic.queued("llm", 0.5)
    (waits,) = made.report().traffic.variants
    assert (waits.variant, waits.requests, list(waits.duration.counts)) == ("", 0, [1])
    assert not made.report().traffic.variants


def test_placement_is_sent_when_it_has_changed() -> None:
    """At most every ``PLACEMENT_S``, with ages, and again on a new stream."""
    made = Setting()
    placement = made.router.placement
    made.report()
    assert not made.details.conditions_changed
    rows = (Row("m", "1", PlacementState.READY), Row("n", "", PlacementState.UNAVAILABLE, "why"))
    placement.take(EndpointKey("r1", 1), Listing(99.5, rows))
    made.now += PLACEMENT_S / 2
    assert not made.details.conditions_changed
    made.now += PLACEMENT_S / 2
    assert made.details.conditions_changed
    report = report_pb2.PickerReport()
    made.details.add(report, traffic=False)
    (replica,) = report.placements.replicas
    assert (replica.id, replica.age_ms, replica.whole) == ("r1", 1500, True)
    assert [(each.model, each.state, each.reason, each.for_ms) for each in replica.models] == [
        ("m", "READY", "", 1500),
        ("n", "UNAVAILABLE", "why", 1500),
    ]
    assert not made.details.conditions_changed
    made.details.begin()
    assert made.details.conditions_changed


def test_a_report_of_placement_is_cut_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is unknown then, not absent."""
    made = Setting()
    monkeypatch.setattr(details, "MAX_ROWS", 1)
    rows = (Row("m", "1", PlacementState.READY), Row("n", "1", PlacementState.READY))
    made.router.placement.take(EndpointKey("r1", 1), Listing(99.5, rows))
    (replica,) = made.report().placements.replicas
    assert ([each.model for each in replica.models], replica.whole) == (["m"], False)
