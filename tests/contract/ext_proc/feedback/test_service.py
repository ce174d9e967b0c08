"""The log service over a real channel, and its counters."""

from __future__ import annotations

import asyncio
import itertools
import random

import grpc
import pytest
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, generate_latest

from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.service import MAX_BYTES, SLICE, LogService
from ext_proc.feedback.wire import METHOD, SERVICE
from ext_proc.observability.metrics import Metrics
from ext_proc.observability.traffic import TrafficCounts
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.server.service import PickerServer
from support.envoy_entries import failed_attempt, logged


class Clock:
    """Monotonic seconds: always the same, or those of an iterator."""

    def __init__(self) -> None:
        self.times = itertools.repeat(5.0)

    def __call__(self) -> float:
        return next(self.times)


class Setup:
    """A picker's server with its log service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        router = Router(random.Random(1))
        endpoint = Endpoint(EndpointKey("r1", 1), "stable", http="10.0.0.1:8000", grpc=None)
        pool = Pool(name="llm", variants=(Variant("stable", 1),), endpoints=(endpoint,))
        router.set_pools({"llm": pool}, 0.0)
        self.router = router
        self.feedback = Feedback(router, picker="p", life="x-")
        self.clock = Clock()
        self.logs = LogService(
            self.feedback,
            FeedbackMetrics(self.registry, self.feedback, router.conditions),
            clock=self.clock,
            wall_clock=lambda: 1000.75,
        )
        self.server = PickerServer(
            router, picker="p", metrics=Metrics(CollectorRegistry()), handlers=[self.logs.handler()]
        )

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tidegate_picker_{name}", labels)


@pytest.fixture
async def setup():
    made = Setup()
    yield made
    await made.server.stop(0)


async def test_a_stream_is_taken_on_the_pickers_own_port(setup):
    """Entries are applied, their lag is measured, and the stream's end is answered."""
    address = await setup.server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_unary(f"/{SERVICE}/{METHOD}")()
        for _ in range(3):
            await call.write(logged().SerializeToString())
        await call.done_writing()
        assert await call == b""
    assert setup.feedback.outcomes == {"good": 3}
    assert setup.counted("feedback_entries_total", outcome="good") == 3
    assert setup.counted("feedback_lag_seconds_sum", entry="final") == pytest.approx(0.75)
    assert setup.counted("feedback_streams") == 0


async def test_attempts_are_told_from_requests(setup):
    """Their entries come over the same service, and are no request's end."""
    await setup.logs.take(failed_attempt(upstream_connection_failure=True).SerializeToString())
    assert setup.feedback.outcomes == {"attempt": 1}
    assert setup.counted("attempts_total", pool="llm", blame="network") == 1
    assert setup.counted("feedback_lag_seconds_count", entry="final") in {None, 0}


async def test_a_long_message_is_taken_in_slices_and_in_order(setup, monkeypatch):
    """Other tasks run after each slice, and no entry is lost or duplicated."""
    setup.clock.times = iter(range(100))
    taken: list[tuple[str, float]] = []

    def note(entry, now):
        taken.append((entry.ticket, now))

    monkeypatch.setattr(setup.feedback, "take", note)
    message = als_pb2.StreamAccessLogsMessage()
    for number in range(2 * SLICE + 1):
        entry = logged().http_logs.log_entry[0]
        entry.common_properties.metadata.filter_metadata["tidegate"]["ticket"] = f"x-{number}"
        message.http_logs.log_entry.append(entry)
    taking = asyncio.create_task(setup.logs.take(message.SerializeToString()))
    seen = []
    while not taking.done():
        await asyncio.sleep(0)
        seen.append(len(taken))
    assert seen[:3] == [SLICE, 2 * SLICE, 2 * SLICE + 1]
    assert [ticket for ticket, _ in taken] == [f"x-{n}" for n in range(2 * SLICE + 1)]
    assert [now for _, now in taken] == [0.0] * SLICE + [1.0] * SLICE + [2.0]


async def test_a_garbled_stream_ends_and_is_counted(setup):
    """Bytes that are not a message end their stream."""
    address = await setup.server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_unary(f"/{SERVICE}/{METHOD}")()
        await call.write(b"\xff\xff")
        assert await call == b""
    assert setup.counted("feedback_dropped_total", reason="garbled") == 1


async def test_a_message_above_the_bound_is_dropped(setup):
    """At the bound it is read, one byte above it is not."""
    with pytest.raises(DecodeError):
        await setup.logs.take(b"\xff" * MAX_BYTES)
    await setup.logs.take(b"\xff" * (MAX_BYTES + 1))
    assert setup.counted("feedback_dropped_total", reason="too-large") == 1


def test_conditions_and_ejections_are_on_the_page(setup):
    """Ejections and conditions of the router are metrics."""
    for _ in range(2):
        setup.router.conditions.probed("llm", EndpointKey("r1", 1), ready=False)
    assert setup.counted("conditions", pool="llm", condition="not-ready") == 1
    assert b"tidegate_picker_ejections" in generate_latest(setup.registry)


def own_answer(flag: str, cluster: str = "llm/stable/http", *, picked: bool = False) -> bytes:
    """Return an entry of an answer that Envoy gave by itself."""
    message = logged(upstream_cluster=cluster)
    (entry,) = message.http_logs.log_entry
    properties = entry.common_properties
    properties.ClearField("upstream_remote_address")
    properties.ClearField("time_to_first_upstream_rx_byte")
    if not picked:
        properties.ClearField("metadata")
    setattr(properties.response_flags, flag, True)
    entry.response.response_code.value = 503
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("flag", "cluster", "pool", "cause", "kind"),
    [
        (
            "no_healthy_upstream",
            "llm/stable/http",
            "llm",
            "no-healthy-upstream",
            "no-healthy-upstream",
        ),
        ("upstream_overflow", "llm/stable/http", "llm", "overflow", "overflow"),
        ("no_route_found", "", "", "no-route", "client"),
        ("no_healthy_upstream", "made-up/a/http", "", "no-healthy-upstream", "no-healthy-upstream"),
        ("upstream_request_timeout", "llm/stable/grpc", "llm", "timeout", "timeout"),
    ],
)
async def test_answers_of_the_proxys_own_are_counted_without_a_pick(
    flag, cluster, pool, cause, kind
):
    """By pool and cause; a pool that does not exist has no series."""
    router = Router(random.Random(1))
    router.set_pools({"llm": Pool("llm", variants=(Variant("stable", 1),))}, 0.0)
    registry, traffic = CollectorRegistry(), TrafficCounts()
    feedback = Feedback(router, picker="p", life="x-")
    service = LogService(feedback, FeedbackMetrics(registry, feedback, router.conditions), traffic)
    await service.take(own_answer(flag, cluster))
    series = f'tidegate_picker_proxy_answers_total{{cause="{cause}",pool="{pool}"}} 1.0'
    assert series in generate_latest(registry).decode()
    assert traffic.variants[pool, ""].failed == {kind: 1}
    assert not feedback.outcomes


async def test_an_answer_of_the_proxys_own_after_a_pick_is_counted_once():
    """No replica failed: it is a refusal of its pool, with the cause."""
    router = Router(random.Random(1))
    router.set_pools({"llm": Pool("llm", variants=(Variant("stable", 1),))}, 0.0)
    registry, traffic = CollectorRegistry(), TrafficCounts()
    feedback = Feedback(router, picker="p", life="x-")
    service = LogService(feedback, FeedbackMetrics(registry, feedback, router.conditions), traffic)
    await service.take(own_answer("upstream_overflow", picked=True))
    assert 'cause="overflow",pool="llm"} 1.0' in generate_latest(registry).decode()
    assert traffic.variants["llm", ""].failed == {"overflow": 1}
    assert not traffic.endpoints
    assert feedback.outcomes == {"local": 1}
