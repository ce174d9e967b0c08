"""Reference parser of access-log entries that uses Envoy's generated messages."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.blame.law import FIRST_ERROR
from ext_proc.feedback.entries import AttemptEntry, Entry, Usage
from tidegate_api.names import (
    DESTINATION_HEADER,
    FIRST_BODY_TAG,
    LB_NAMESPACE,
    SUMMARY_TAG,
    TICKET_HEADER,
    TIDEGATE_NAMESPACE,
    USAGE_NAMESPACE,
)

ENDS = (
    (
        Ended.LOCAL,
        (
            "upstream_overflow",
            "no_healthy_upstream",
            "no_route_found",
            "no_cluster_found",
            "rate_limited",
            "overload_manager",
        ),
    ),
    (
        Ended.LEFT,
        (
            "downstream_connection_termination",
            "downstream_remote_reset",
            "downstream_protocol_error",
            "stream_idle_timeout",
        ),
    ),
    (
        Ended.TIMEOUT,
        ("upstream_request_timeout", "duration_timeout", "upstream_max_stream_duration_reached"),
    ),
    (Ended.UNREACHED, ("upstream_connection_failure",)),
    (
        Ended.BROKEN,
        ("upstream_connection_termination", "upstream_remote_reset", "upstream_protocol_error"),
    ),
)


CAUSES = (
    ("no-healthy-upstream", ("no_healthy_upstream",)),
    ("overflow", ("upstream_overflow",)),
    ("no-route", ("no_route_found",)),
    ("no-cluster", ("no_cluster_found",)),
    ("rate-limited", ("rate_limited",)),
    ("overloaded", ("overload_manager",)),
    *((Ended.TIMEOUT.value, names) for ended, names in ENDS if ended is Ended.TIMEOUT),
    ("unreached", ("upstream_connection_failure",)),
    *((Ended.BROKEN.value, names) for ended, names in ENDS if ended is Ended.BROKEN),
)


def parse(data: bytes) -> Any:
    """Parse a message.

    Raises:
        DecodeError: ``data`` is not a message.
    """
    return als_pb2.StreamAccessLogsMessage.FromString(data)


def without_summaries(data: bytes) -> bytes:
    """Return a message as Envoys before 1.37 write it, with nothing in one line."""
    message = parse(data)
    for entry in message.http_logs.log_entry:
        entry.common_properties.custom_tags.pop(SUMMARY_TAG, None)
    return bytes(message.SerializeToString())


def entries_of(data: bytes) -> list[Entry | AttemptEntry]:
    """Return the entries of one message."""
    return [_entry(each) for each in parse(data).http_logs.log_entry]


def _attempt(logged: Any) -> AttemptEntry:
    common, response, request = logged.common_properties, logged.response, logged.request
    answered = common.HasField("time_to_first_upstream_rx_byte")
    ended = _ended(common.response_flags)
    if ended is Ended.TIMEOUT and common.response_flags.upstream_request_timeout:
        ended = Ended.TRY_TIMEOUT
    names = request.request_headers.get(TICKET_HEADER, "").split(";")
    return AttemptEntry(
        picker=unquote(names[1]) if len(names) > 1 else "",
        ticket=names[0],
        cluster=common.upstream_cluster,
        attempt=Attempt(
            address=_address(common.upstream_remote_address.socket_address),
            ended=ended,
            read=common.HasField("time_to_first_upstream_tx_byte"),
            answered=answered,
            began=answered and request.request_body_bytes > 0,
            status=response.response_code.value if answered else 0,
            grpc_status=_grpc_status(response) if answered else None,
        ),
        began_unix_s=_seconds(common, "start_time") or 0.0,
        lasted_s=_seconds(common, "duration") or 0.0,
    )


def _ended(flags: Any) -> Ended:
    return next(
        (ended for ended, names in ENDS if any(getattr(flags, each) for each in names)), Ended.DONE
    )


def _entry(logged: Any) -> Entry | AttemptEntry:
    common, response = logged.common_properties, logged.response
    if common.access_log_type == accesslog_pb2.UpstreamEnd:
        return _attempt(logged)
    spaces = common.metadata.filter_metadata
    ours = spaces[TIDEGATE_NAMESPACE].fields if TIDEGATE_NAMESPACE in spaces else {}
    balancing = spaces[LB_NAMESPACE].fields if LB_NAMESPACE in spaces else {}
    retried = common.upstream_request_attempt_count > 1
    sent = _seconds(common, "time_to_first_upstream_tx_byte") or 0.0
    headers = _seconds(common, "time_to_first_upstream_rx_byte")
    periodic = common.access_log_type == accesslog_pb2.DownstreamPeriodic
    final = not common.intermediate_log_entry and not periodic
    waited = first = None
    tag = common.custom_tags.get(FIRST_BODY_TAG)
    began, _, age = (tag or "").partition(";")
    if headers is not None:
        waited = _number(began, 1e-6)
        if waited is not None:
            first = sent + waited
        elif _headers_tell(common, response, final=final):
            first, waited = headers, max(headers - sent, 0.0)
    lasted = _seconds(common, "duration") or 0.0
    if not final:
        lasted = lasted or _number(age, 1e-3) or 0.0
    status, grpc_status = response.response_code.value, _grpc_status(response)
    flagged = bool(common.response_flags.SerializeToString())
    ended, details = _ended(common.response_flags), response.response_code_details
    read = answered = True
    good = not flagged and not grpc_status and 0 < status < FIRST_ERROR
    if not good:
        read = headers is not None or common.HasField("time_to_first_upstream_tx_byte")
        if ended is Ended.TIMEOUT and details == "upstream_per_try_timeout":
            ended = Ended.TRY_TIMEOUT
        if ended is Ended.DONE and details not in {"", "via_upstream"}:
            ended = Ended.LOCAL
        before = details.startswith("upstream_reset_before_response_started")
        answered = headers is not None and not before and ended is not Ended.LOCAL
    return Entry(
        picker=_text(ours, "picker"),
        ticket=_text(ours, "ticket"),
        unreadable="unreadable" in ours,
        cluster=common.upstream_cluster,
        served=_address(common.upstream_remote_address.socket_address),
        picks=_text(balancing, DESTINATION_HEADER) if retried else "",
        attempts=common.upstream_request_attempt_count,
        status=status,
        grpc_status=grpc_status,
        ended=ended,
        read=read,
        answered=answered,
        final=final,
        first_byte_s=waited,
        answer_bytes=response.response_body_bytes,
        ended_unix_s=(_seconds(common, "start_time") or 0.0) + lasted,
        first_at_s=first,
        last_at_s=_seconds(common, "time_to_last_upstream_rx_byte"),
        lasted_s=lasted,
        usage=_usage(spaces[USAGE_NAMESPACE].fields) if USAGE_NAMESPACE in spaces else None,
        delivered_at_s=None if final and good else _seconds(common, "time_to_last_rx_byte"),
        cause=_cause(common.response_flags) if _by_itself(final, answered, ended) else "",
    )


def _headers_tell(common: Any, response: Any, *, final: bool) -> bool:
    """Whether the headers' time is that of the first byte of an answer whose body tells none."""
    if FIRST_BODY_TAG not in common.custom_tags:
        return final or bool(response.response_body_bytes)
    clean = not common.response_flags.SerializeToString()
    error = bool(_grpc_status(response)) or not 0 < response.response_code.value < FIRST_ERROR
    return final and clean and error and not response.response_body_bytes


def _by_itself(final: bool, answered: bool, ended: Ended) -> bool:
    return final and not answered and ended is not Ended.LEFT


def _cause(flags: Any) -> str:
    return next(
        (cause for cause, names in CAUSES if any(getattr(flags, each) for each in names)), "other"
    )


def _text(fields: Any, name: str) -> str:
    return fields[name].string_value if name in fields else ""


def _usage(fields: Any) -> Usage:
    numbers = {
        key: int(value.number_value)
        for key, value in fields.items()
        if value.WhichOneof("kind") == "number_value" and 0 <= value.number_value <= 1e9
    }
    counts = [numbers.get(key) for key in ("prompt", "cached", "output")]
    return Usage(*counts, _text(fields, "model"))


def _number(value: str, unit: float) -> float | None:
    return int(value) * unit if value.isdecimal() and len(value) <= 15 else None


def _seconds(common: Any, name: str) -> float | None:
    if not common.HasField(name):
        return None
    moment = getattr(common, name)
    return moment.seconds + moment.nanos * 1e-9


def _address(found: Any) -> str | None:
    if not found.address:
        return None
    host = f"[{found.address}]" if ":" in found.address else found.address
    return f"{host}:{found.port_value}"


def _grpc_status(response: Any) -> int | None:
    for headers in (response.response_trailers, response.response_headers):
        if "grpc-status" in headers:
            value = headers["grpc-status"]
            return int(value) if value.isdecimal() and len(value) <= 3 else None
    return None
