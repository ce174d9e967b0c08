"""Entries as Envoy writes them, and what is read of them."""

from __future__ import annotations

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.attempts import AnswerTimes
from ext_proc.feedback.entries import AttemptEntry, attempt_of
from ext_proc.feedback.wire import entries_of
from support.envoy_entries import failed_attempt, logged
from tidegate_api.names import SUMMARY_GOOD, SUMMARY_TAG


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


SUMMARY = "p;x-9;llm/a/http;10.0.0.2:1;200;7;1000000;2000000;450000;500000;1900000;;;;;;"
"""A summary that differs in all parts from the rest of its entry."""


def summed(line):
    """Return a message with that summary."""
    message = logged()
    message.http_logs.log_entry[0].common_properties.custom_tags[SUMMARY_TAG] = line
    return message


def test_a_request_that_ended_well_is_read_from_its_summary():
    """With token counts where they are told; a semicolon in the model's name is part of it."""
    entry = first(summed(SUMMARY_GOOD + SUMMARY))
    assert (entry.ticket, entry.cluster, entry.served) == ("x-9", "llm/a/http", "10.0.0.2:1")
    assert (entry.status, entry.grpc_status, entry.answer_bytes) == (200, None, 7)
    times = (entry.first_byte_s, entry.first_at_s, entry.last_at_s, entry.lasted_s)
    assert times == pytest.approx((0.45, 0.5, 1.9, 2.0))
    assert entry.ended_unix_s == pytest.approx(1002.0)
    assert entry.usage is None
    assert first(summed(f"{SUMMARY_GOOD}{SUMMARY[:-5]}0;;9;;3;a;b")).grpc_status == 0
    assert first(summed(f"{SUMMARY_GOOD}{SUMMARY[:-3]}9;;3;a;b")).usage == (9, None, 3, "a;b")


@pytest.mark.parametrize(
    "line",
    [
        "",
        SUMMARY_GOOD,
        SUMMARY_GOOD.replace("1", "2", 1) + SUMMARY,
        SUMMARY_GOOD.replace("-", "UF") + SUMMARY,
        SUMMARY_GOOD + SUMMARY.replace("200", "503"),
        SUMMARY_GOOD + SUMMARY.replace("200", "-"),
        SUMMARY_GOOD + SUMMARY.replace("2000000", ""),
        SUMMARY_GOOD + SUMMARY.replace("2000000", "9" * 400),
        SUMMARY_GOOD + SUMMARY.replace("10.0.0.2:1", ""),
        SUMMARY_GOOD + SUMMARY[:-4] + "13;;;;",
        SUMMARY_GOOD + SUMMARY[:-1],
    ],
)
def test_any_other_entry_is_read_in_full(line):
    """Retries, failures, and lines that are not as expected."""
    assert first(summed(line)) == first(logged())


def tagged(tag: str | None, **common):
    """Return a message with that tag of the first body byte."""
    message = logged(**common)
    if tag is not None:
        message.http_logs.log_entry[0].common_properties.custom_tags["first-body"] = tag
    return message


def test_an_older_envoy_knows_the_headers_only():
    """They count once bytes of a body followed, as before there was a tag."""
    assert first(tagged(None, intermediate_log_entry=True)).first_byte_s == pytest.approx(0.1)
    silent = tagged(None, intermediate_log_entry=True)
    silent.http_logs.log_entry[0].response.response_body_bytes = 0
    assert first(silent).first_byte_s is None
    assert first(tagged(None)).first_byte_s == pytest.approx(0.1)


def bodiless(tag: str, status: int = 200, **common):
    """Return a message of an answer that has no body."""
    message = tagged(tag, **common)
    message.http_logs.log_entry[0].response.response_body_bytes = 0
    message.http_logs.log_entry[0].response.response_code.value = status
    return message


def test_a_good_answer_without_a_body_has_no_first_byte():
    """HTTP 204, a probe: it says nothing of how soon this replica answers a prompt."""
    entry = first(bodiless(";500"))
    assert (entry.first_byte_s, entry.first_at_s) == (None, None)
    assert entry.answered


def test_an_error_without_a_body_began_with_its_headers():
    """A gRPC status in the headers, HTTP 503: how fast a replica fails is known."""
    entry = first(bodiless(";500", 503))
    assert entry.first_byte_s == pytest.approx(0.1)
    assert entry.answered
    failed = bodiless(";500")
    failed.http_logs.log_entry[0].response.response_headers["grpc-status"] = "14"
    assert first(failed).first_byte_s == pytest.approx(0.1)


def test_an_error_that_was_cut_after_its_headers_has_no_first_byte():
    """A client that leaves, or a broken connection, ends no answer."""
    cut = bodiless(";500", 503)
    flags = cut.http_logs.log_entry[0].common_properties.response_flags
    flags.downstream_connection_termination = True
    assert first(cut).first_byte_s is None


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
    """Envoy 1.40 gives intermediate entries no duration; of each request one is a sample."""
    ages = (600, 1600, 2600)
    messages = [tagged(f"500000;{age}", intermediate_log_entry=True) for age in ages]
    for message in messages:
        message.http_logs.log_entry[0].common_properties.ClearField("duration")
    assert [first(message).lasted_s for message in messages] == pytest.approx([0.6, 1.6, 2.6])
    told = AnswerTimes()
    assert [told.take(first(message), 7) for message in messages] == [
        pytest.approx(0.5),
        None,
        None,
    ]


@pytest.mark.parametrize("tag", ["", ";", "-;-", "-1;-1", "x;y", "9" * 16, f"{10**20};{10**20}"])
def test_a_tag_that_is_no_number_is_unknown(tag):
    """The headers' time is no substitute, however long the body."""
    assert first(tagged(tag, intermediate_log_entry=True)).first_byte_s is None
    assert first(tagged(tag)).first_byte_s is None


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


def test_an_attempt_that_reached_no_replica_was_not_read():
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


def test_an_entry_tells_when_the_client_had_sent_all_of_its_request():
    """Of a running request, and of one that ended otherwise than well."""
    message = logged(intermediate_log_entry=True)
    assert first(message).delivered_at_s is None
    properties = message.http_logs.log_entry[0].common_properties
    for nanos in (0, 250_000_000):
        properties.time_to_last_rx_byte.SetInParent()
        properties.time_to_last_rx_byte.nanos = nanos
        assert first(message).delivered_at_s == pytest.approx(nanos * 1e-9)
    properties.intermediate_log_entry = False
    assert first(message).delivered_at_s is None
    properties.response_flags.downstream_connection_termination = True
    assert first(message).delivered_at_s == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("details", "cause"),
    [("internal_redirect", "moved"), ("tidegate_hung_replica", "hung-replica")],
)
def test_a_request_that_left_a_hung_replica_was_kept_waiting(details, cause):
    """As by our bound on the time to a first answer; the status is not the replica's."""
    message = tagged("")
    response = message.http_logs.log_entry[0].response
    response.response_code.value, response.response_code_details = 503, details
    entry = first(message)
    assert (entry.ended, entry.cause) == (Ended.TRY_TIMEOUT, cause)
