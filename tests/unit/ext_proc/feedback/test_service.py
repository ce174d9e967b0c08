"""The log service over a real channel, and its counters."""

from __future__ import annotations

import asyncio
import itertools
import random

import grpc
import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, generate_latest

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.entries import AttemptEntry, answer_time, attempt_of
from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.service import MAX_BYTES, SLICE, LogService
from ext_proc.feedback.wire import METHOD, SERVICE, entries_of
from ext_proc.observability.metrics import Metrics
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.server.service import PickerServer


def logged(**common) -> als_pb2.StreamAccessLogsMessage:
    """Write a message with one entry, as Envoy does."""
    message = als_pb2.StreamAccessLogsMessage()
    entry = message.http_logs.log_entry.add()
    properties = entry.common_properties
    properties.start_time.seconds = 1_000
    properties.duration.nanos = 500_000_000
    properties.time_to_first_upstream_tx_byte.nanos = 1_000_000
    properties.time_to_first_upstream_rx_byte.nanos = 101_000_000
    properties.upstream_remote_address.socket_address.address = "10.0.0.1"
    properties.upstream_remote_address.socket_address.port_value = 8000
    properties.upstream_cluster = "llm/stable/http"
    properties.upstream_request_attempt_count = 1
    spaces = properties.metadata.filter_metadata
    spaces["tidegate"]["picker"] = "p"
    spaces["tidegate"]["ticket"] = "x-7"
    spaces["envoy.lb"]["x-gateway-destination-endpoint"] = "10.0.0.1:8000,10.0.0.2:8000"
    entry.response.response_code.value = 200
    entry.response.response_body_bytes = 12
    for name, value in common.items():
        setattr(properties, name, value)
    return message


def first(message):
    (entry,) = entries_of(message.SerializeToString())
    return entry


def test_an_entry_is_read_as_envoy_writes_it():
    """Picker, replica, outcome and durations are read."""
    entry = first(logged())
    assert (entry.picker, entry.ticket, entry.unreadable) == ("p", "x-7", False)
    assert (entry.cluster, entry.served) == ("llm/stable/http", "10.0.0.1:8000")
    assert (entry.picks, entry.attempts) == ("", 1)
    assert (entry.status, entry.grpc_status, entry.answer_bytes) == (200, None, 12)
    assert (entry.ended, entry.read, entry.answered, entry.final) == (Ended.DONE, True, True, True)
    assert entry.first_byte_s == pytest.approx(0.1)
    assert entry.ended_unix_s == pytest.approx(1000.5)


def tagged(tag: str | None, **common):
    """Return a message with that tag of the first body byte."""
    message = logged(**common)
    if tag is not None:
        message.http_logs.log_entry[0].common_properties.custom_tags["first-body"] = tag
    return message


def test_the_first_byte_is_that_of_the_body():
    """Servers on uvicorn send headers at once, the first token after the prefill."""
    entry = first(tagged("450000;500"))
    assert entry.first_byte_s == pytest.approx(0.45)
    assert entry.first_at_s == pytest.approx(0.451)
    assert entry.lasted_s == pytest.approx(0.5)


def test_headers_alone_are_no_first_byte_while_a_request_runs():
    """A replica that computes a prompt has not begun to answer."""
    entry = first(tagged(";1000", intermediate_log_entry=True))
    assert (entry.first_byte_s, entry.first_at_s) == (None, None)


def test_an_older_envoy_knows_the_headers_only():
    """They count once bytes of a body followed, as before there was a tag."""
    assert first(tagged(None, intermediate_log_entry=True)).first_byte_s == pytest.approx(0.1)
    silent = tagged(None, intermediate_log_entry=True)
    silent.http_logs.log_entry[0].response.response_body_bytes = 0
    assert first(silent).first_byte_s is None
    assert first(tagged(None)).first_byte_s == pytest.approx(0.1)


def test_a_complete_answer_without_a_body_began_with_its_headers():
    """A gRPC status in the headers, HTTP 204."""
    message = tagged(";500")
    message.http_logs.log_entry[0].response.response_body_bytes = 0
    entry = first(message)
    assert entry.first_byte_s == pytest.approx(0.1)
    assert entry.answered


def test_headers_without_a_body_are_an_answer_of_the_replica():
    """What has begun is told by the bytes of its body."""
    message = tagged(";300")
    logged_entry = message.http_logs.log_entry[0]
    logged_entry.response.response_body_bytes = 0
    flags = logged_entry.common_properties.response_flags
    flags.downstream_connection_termination = True
    attempt = attempt_of(first(message))
    assert (attempt.ended, attempt.answered, attempt.began) == (Ended.LEFT, True, False)


def test_a_running_request_tells_its_age_by_the_tag():
    """Envoy 1.40 gives intermediate entries no duration, so each would be a fresh sample."""
    ages = (600, 1600, 2600)
    messages = [tagged(f"500000;{age}", intermediate_log_entry=True) for age in ages]
    for message in messages:
        message.http_logs.log_entry[0].common_properties.ClearField("duration")
    times = [answer_time(first(message)) for message in messages]
    assert times == [pytest.approx(0.5), None, None]


@pytest.mark.parametrize("tag", ["", ";", "-;-", "-1;-1", "x;y", "9" * 16, f"{10**20};{10**20}"])
def test_a_tag_that_is_no_number_is_unknown(tag):
    """The headers' time is no substitute while the request runs."""
    assert first(tagged(tag, intermediate_log_entry=True)).first_byte_s is None
    assert first(tagged(tag)).first_byte_s == pytest.approx(0.1)


def told(**counts):
    """Return the usage of an entry whose metadata has these values."""
    message = logged()
    spaces = message.http_logs.log_entry[0].common_properties.metadata.filter_metadata
    spaces["tidegate.usage"].update(counts)
    return first(message).usage


def test_token_counts_are_read_where_envoy_found_them():
    """Without the metadata nothing is known, and a count that is not told is not 0."""
    assert told(prompt=40, cached=32, output=3, model="m") == (40, 32, 3, "m")
    assert told(prompt=40) == (40, None, None, "")
    assert first(logged()).usage is None


@pytest.mark.parametrize("count", [-1, 2e9, float("inf"), float("nan"), "40", True, None, [4]])
def test_a_count_that_is_no_count_is_unknown(count):
    """Replicas write these numbers, and a client may choose what an engine repeats."""
    assert told(output=count).output is None


def test_the_picks_of_a_retried_request_are_read():
    """They name the replicas of earlier attempts; with one attempt they are not read."""
    entry = first(logged(upstream_request_attempt_count=2))
    assert (entry.picks, entry.attempts) == ("10.0.0.1:8000,10.0.0.2:8000", 2)


def test_what_is_not_there_is_unknown():
    """An empty entry is a local answer of the proxy, without a picker."""
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.add()
    entry = first(message)
    assert (entry.picker, entry.served, entry.status) == ("", None, 0)
    assert (entry.first_byte_s, entry.grpc_status, entry.final) == (None, None, True)


@pytest.mark.parametrize(
    ("flag", "ended"),
    [
        ("upstream_connection_failure", Ended.UNREACHED),
        ("upstream_connection_termination", Ended.BROKEN),
        ("upstream_remote_reset", Ended.BROKEN),
        ("upstream_request_timeout", Ended.TIMEOUT),
        ("duration_timeout", Ended.TIMEOUT),
        ("downstream_connection_termination", Ended.LEFT),
        ("downstream_remote_reset", Ended.LEFT),
        ("stream_idle_timeout", Ended.LEFT),
        ("upstream_overflow", Ended.LOCAL),
        ("no_healthy_upstream", Ended.LOCAL),
        ("upstream_retry_limit_exceeded", Ended.DONE),
    ],
)
def test_flags_say_what_ended_the_request(flag, ended):
    """The replica's connection, our timeouts, the client, or the proxy's own limits."""
    message = logged()
    flags = message.http_logs.log_entry[0].common_properties.response_flags
    setattr(flags, flag, True)
    assert first(message).ended is ended


@pytest.mark.parametrize(
    ("details", "ended", "answered"),
    [
        ("via_upstream", Ended.DONE, True),
        ("", Ended.DONE, True),
        ("lua_response", Ended.LOCAL, False),
        ("upstream_reset_before_response_started{remote_reset}", Ended.LOCAL, False),
    ],
)
def test_details_tell_the_replicas_errors_from_the_proxys(details, ended, answered):
    """The proxy's own 503 names a replica as well."""
    message = logged()
    response = message.http_logs.log_entry[0].response
    response.response_code.value, response.response_code_details = 503, details
    entry = first(message)
    assert (entry.ended, entry.answered) == (ended, answered)


def test_the_bound_on_a_first_answer_is_told_from_other_timeouts():
    """It says something about the replica."""
    message = logged()
    entry = message.http_logs.log_entry[0]
    entry.common_properties.response_flags.upstream_request_timeout = True
    entry.response.response_code_details = "upstream_per_try_timeout"
    assert first(message).ended is Ended.TRY_TIMEOUT


def failed_attempt(**flags: bool) -> als_pb2.StreamAccessLogsMessage:
    """Write the entry of an attempt that read and did not answer, as Envoy does."""
    message = logged(access_log_type=accesslog_pb2.UpstreamEnd, upstream_request_attempt_count=0)
    entry = message.http_logs.log_entry[0]
    entry.common_properties.ClearField("metadata")
    entry.common_properties.ClearField("time_to_first_upstream_rx_byte")
    entry.response.Clear()
    entry.response.response_body_bytes = 2
    entry.request.request_headers["x-tidegate-ticket"] = "x-7;p;10.0.0.9:18001"
    for name, value in flags.items():
        setattr(entry.common_properties.response_flags, name, value)
    return message


def test_an_attempt_names_its_pick_by_a_header():
    """It carries no metadata; sizes of request and answer are exchanged in it."""
    message = failed_attempt(upstream_connection_termination=True)
    assert first(message) == AttemptEntry(
        "p",
        "x-7",
        "llm/stable/http",
        Attempt("10.0.0.1:8000", Ended.BROKEN, read=True, answered=False, began=False, status=0),
        1000.0,
        0.5,
    )
    entry = message.http_logs.log_entry[0]
    entry.common_properties.time_to_first_upstream_rx_byte.nanos = 1
    entry.request.request_body_bytes = 5
    entry.response.response_code.value = 200
    began = first(message).attempt
    assert (began.answered, began.began, began.status) == (True, True, 200)


def test_an_attempt_that_reached_nobody_was_not_read():
    """Without a byte to the replica it cannot have read the request."""
    message = failed_attempt(upstream_connection_failure=True)
    message.http_logs.log_entry[0].common_properties.ClearField("time_to_first_upstream_tx_byte")
    attempt = first(message).attempt
    assert (attempt.ended, attempt.read, attempt.reached) == (Ended.UNREACHED, False, False)


def test_a_grpc_status_comes_from_trailers_or_headers():
    """A failed call may have headers only; nonsense is unknown."""
    message = logged()
    response = message.http_logs.log_entry[0].response
    response.response_headers["grpc-status"] = "14"
    assert first(message).grpc_status == 14
    response.response_trailers["grpc-status"] = "0"
    assert first(message).grpc_status == 0
    for nonsense in ("", "-1", "x", "9999", "²"):
        response.response_trailers["grpc-status"] = nonsense
        assert first(message).grpc_status is None


def test_entries_of_running_requests_and_ipv6_are_known():
    """Both marks of an intermediate entry count; IPv6 stands in brackets."""
    assert not first(logged(intermediate_log_entry=True)).final
    assert not first(logged(access_log_type=accesslog_pb2.DownstreamPeriodic)).final
    assert first(logged(access_log_type=accesslog_pb2.DownstreamEnd)).final
    message = logged()
    found = message.http_logs.log_entry[0].common_properties.upstream_remote_address
    found.socket_address.address = "::1"
    assert first(message).served == "[::1]:8000"


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
