"""Readings on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.candidates import MAX_READINGS
from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry import report
from tidegate_api.telemetry.v1 import telemetry_pb2

FULL = Reading(
    at=9.5,
    model="m",
    version="1",
    queued=1,
    running=2,
    saturated=False,
    kv_used=0.5,
    gpu_used=0.25,
    kv_block_tokens=16,
    reused_blocks=7,
    kv_blocks=100,
    gpu_memory_used=0.75,
    gpu_memory_free=3e9,
    adapters=frozenset({"a", "b"}),
    adapters_waiting=frozenset({"b"}),
    adapter_slots=4,
    deferred=1,
    asleep=True,
    gpu_xid=0,
    queue_s=0.5,
    compute_s=2,
)


def sent(*readings, age_s=0.5, **more):
    return report.write("r", age_s, readings, **more).SerializeToString()


def test_round_trip():
    """Each field is unchanged, unknown ones stay unknown, and the age is kept."""
    bare = Reading(at=9.5)
    idle = Reading(at=9.5, version="2", adapters=frozenset())
    news = report.read(sent(FULL, bare, idle, gone=[("n", None)], restarts=2), now=10.0)
    assert (news.endpoint, news.age_s, news.restarts) == ("r", 0.5, 2)
    assert news.readings == (FULL, bare, idle)
    assert news.gone == (("n", None),)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"kv_used": 1.1}, "kv_used is 1.1"),
        ({"queued": float("nan")}, "queued is nan"),
        ({"queued": float("inf")}, "queued is inf"),
        ({"running": -1}, "running is -1"),
        ({"gpu_memory_free": -1}, "gpu_memory_free is -1"),
        ({"adapters": {"names": ["a"] * (report.MAX_ADAPTERS + 1)}}, "more than 128 adapters"),
        ({"adapters": {"names": ["a" * 257]}}, "adapter name has more than"),
        ({"model": "m" * (report.MAX_NAME_CHARS + 1)}, "has more than 256"),
    ],
)
def test_what_cannot_be(fields, what):
    """A number out of its range refuses the whole report and is named."""
    message = telemetry_pb2.EndpointReport(endpoint="r")
    message.readings.add(**fields)
    with pytest.raises(report.BadReport, match=what):
        report.read(message.SerializeToString(), now=0.0)


@pytest.mark.parametrize(
    "adapters", [{"a" * 257}, {f"a{index}" for index in range(report.MAX_ADAPTERS + 1)}]
)
def test_adapters_that_a_report_may_not_have_are_unknown(adapters):
    """A page with too many adapters, or too long ones, keeps its other numbers."""
    reading = Reading(9.5, queued=1, adapters=frozenset(adapters))
    (values,) = report.read(sent(reading), now=10.0).readings
    assert values == Reading(9.5, queued=1)


@pytest.mark.parametrize("age", [-0.1, 60.1, float("nan"), float("inf")])
def test_ages_are_bounded(age):
    """A report from the future or from long ago is refused."""
    with pytest.raises(report.BadReport, match="age_seconds"):
        report.read(sent(age_s=age), now=0.0)


def test_bounds():
    """Size, names and counts have exact bounds."""
    with pytest.raises(report.BadReport, match="at most 65536"):
        report.read(b"x" * (report.MAX_REPORT_BYTES + 1), now=0.0)
    with pytest.raises(report.BadReport, match="endpoint must have"):
        report.read(report.write("", 0, []).SerializeToString(), now=0.0)
    many = [Reading(0.0, f"m{index}") for index in range(MAX_READINGS)]
    assert len(report.read(sent(*many, age_s=0), now=0.0).readings) == MAX_READINGS
    with pytest.raises(report.BadReport, match="more than 256 readings"):
        report.read(sent(*many, Reading(0.0)), now=0.0)


def test_a_stream_tells_changes():
    """Changed readings replace old ones, gone ones are removed, others get the report's age."""
    values = report.ReportedValues()
    first = [Reading(0.0, "a", queued=1), Reading(0.0, "b", queued=2)]
    values.take(report.read(sent(*first, age_s=0), 1.0), 1.0)
    second = report.read(sent(Reading(0.0, "a", queued=5), age_s=0.25), 2.0)
    readings, restarted = values.take(second, 2.0)
    assert readings == (Reading(1.75, "a", queued=5), Reading(1.75, "b", queued=2))
    assert not restarted
    third, _ = values.take(report.read(sent(age_s=0, gone=[("a", None)]), 3.0), 3.0)
    assert [each.model for each in third] == ["b"]


def test_a_restart_forgets():
    """When the count of restarts rises, earlier readings are dropped."""
    values = report.ReportedValues()
    values.take(report.read(sent(Reading(0.0, "a"), restarts=1), 1.0), 1.0)
    readings, restarted = values.take(report.read(sent(Reading(0.0, "b"), restarts=2), 2.0), 2.0)
    assert restarted
    assert [each.model for each in readings] == ["b"]


def test_a_stream_is_bounded():
    """One stream reports on one endpoint, with a bounded number of models."""
    values = report.ReportedValues()
    values.take(report.read(sent(*(Reading(0.0, f"m{i}") for i in range(MAX_READINGS))), 1.0), 1.0)
    with pytest.raises(report.BadReport, match="more than 256 models"):
        values.take(report.read(sent(Reading(0.0, "more")), 1.0), 1.0)
    other = report.write("other", 0, []).SerializeToString()
    with pytest.raises(report.BadReport, match="one endpoint only"):
        values.take(report.read(other, 1.0), 1.0)


@given(st.binary(max_size=200))
def test_only_bad_report_escapes(data):
    """Any bytes are read or refused."""
    try:
        report.read(data, 0.0)
    except report.BadReport as error:
        assert str(error)  # noqa: PT017 - either outcome is right
