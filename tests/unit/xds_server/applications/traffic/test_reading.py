"""Reports are read within bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_api.fleet.v1 import report_pb2 as pb
from xds_server.applications.traffic import reading
from xds_server.applications.traffic.reading import ReportError, read_states, read_traffic
from xds_server.applications.traffic.request_counts import RequestCounts

if TYPE_CHECKING:
    from google.protobuf.message import Message


def traffic(**fields: Any) -> pb.Traffic:
    """Return a report of one variant."""
    return pb.Traffic(life=7, age_seconds=1.0, variants=[pb.VariantTraffic(**fields)])


def test_a_report_is_read() -> None:
    """Empty counts are left out."""
    message = traffic(
        pool="llm",
        variant="stable",
        requests=3,
        failed={"error": 1, "left": 0},
        duration=pb.Histogram(buckets=[1, 4], counts=[2, 0]),
    )
    message.endpoints.add(pool="llm", id="r1", requests=3, failed=1)
    counted = read_traffic(message)
    assert counted.variants == {("llm", "stable"): RequestCounts(3, {"error": 1}, {}, {1: 2})}
    assert counted.endpoints == {("llm", "r1"): RequestCounts(3, {"error": 1})}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.Traffic(age_seconds=float("nan")), "age_seconds"),
        (pb.Traffic(age_seconds=-1.0), "age_seconds"),
        (traffic(requests=2**60), "a count is"),
        (traffic(pool="x" * 257), "256 characters"),
        (traffic(pool="a\x1b[31m"), "cannot be printed"),
        (traffic(failed={"k" * 65: 1}), "64 characters"),
        (traffic(failed={f"k{n}": 1 for n in range(33)}), "32 kinds"),
        (traffic(duration=pb.Histogram(buckets=[1], counts=[])), "as many counts"),
        (traffic(duration=pb.Histogram(buckets=[160], counts=[1])), "bucket above"),
        (traffic(duration=pb.Histogram(buckets=[1] * 161, counts=[1] * 161)), "at most 160"),
    ],
)
def test_a_bad_report_of_traffic_is_refused(message: pb.Traffic, text: str) -> None:
    """What a broken or hostile peer sends is refused before it is kept."""
    with pytest.raises(ReportError, match=text):
        read_traffic(message)


def state(**fields: Any) -> pb.ReplicaStates:
    """Return a report of one replica."""
    return pb.ReplicaStates(replicas=[pb.ReplicaState(pool="llm", id="r1", **fields)])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (state(ramp_percent=101), "ramp_percent"),
        (state(conditions=[pb.Condition()] * 9), "8 conditions"),
        (state(conditions=[pb.Condition(name="x", left_seconds=float("inf"))]), "left_seconds"),
        (state(conditions=[pb.Condition(name="x", left_seconds=-1)]), "left_seconds"),
        (state(conditions=[pb.Condition(name="x", cause="y" * 201)]), "200 characters"),
        (state(conditions=[pb.Condition(name="[/red]\n")]), "cannot be printed"),
    ],
)
def test_a_bad_report_of_states_is_refused(message: pb.ReplicaStates, text: str) -> None:
    """As above; control characters would reach operators' terminals."""
    with pytest.raises(ReportError, match=text):
        read_states(message)


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of more is refused as a whole."""
    monkeypatch.setattr(reading, "MAX_VARIANTS", 1)
    monkeypatch.setattr(reading, "MAX_ENDPOINTS", 1)
    two = [pb.VariantTraffic(), pb.VariantTraffic()]
    with pytest.raises(ReportError, match="variants"):
        read_traffic(pb.Traffic(variants=two))
    with pytest.raises(ReportError, match="endpoints"):
        read_traffic(pb.Traffic(endpoints=[pb.EndpointTraffic(), pb.EndpointTraffic()]))
    with pytest.raises(ReportError, match="replicas"):
        read_states(pb.ReplicaStates(replicas=[pb.ReplicaState(), pb.ReplicaState()]))


def _read(kind: type[Message], data: bytes) -> None:
    message = kind()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001 - not a message
        return
    try:
        read_traffic(message) if isinstance(message, pb.Traffic) else read_states(message)  # type: ignore[arg-type]  # one of two kinds
    except ReportError:
        return


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Whatever parses as a message is taken or refused."""
    _read(pb.Traffic, data)
    _read(pb.ReplicaStates, data)
