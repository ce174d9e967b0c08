"""Reference parser of access-log entries that uses Envoy's generated messages."""

from __future__ import annotations

from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from ext_proc.feedback.entries import Entry
from tidegate_api.names import DESTINATION_HEADER, LB_NAMESPACE, TIDEGATE_NAMESPACE

BROKEN = (
    "upstream_connection_failure",
    "upstream_connection_termination",
    "upstream_remote_reset",
    "upstream_request_timeout",
    "upstream_protocol_error",
    "duration_timeout",
    "upstream_max_stream_duration_reached",
)
LEFT = (
    "downstream_connection_termination",
    "downstream_remote_reset",
    "downstream_protocol_error",
    "stream_idle_timeout",
)
SHED = (
    "upstream_overflow",
    "no_healthy_upstream",
    "no_route_found",
    "no_cluster_found",
    "rate_limited",
    "overload_manager",
)


def parse(data: bytes) -> Any:
    """Parse a message.

    Raises:
        DecodeError: ``data`` is not a message.
    """
    return als_pb2.StreamAccessLogsMessage.FromString(data)


def entries_of(data: bytes) -> list[Entry]:
    """Return the entries of one message."""
    return [_entry(each) for each in parse(data).http_logs.log_entry]


def _entry(logged: Any) -> Entry:
    common, response = logged.common_properties, logged.response
    spaces = common.metadata.filter_metadata
    ours = spaces[TIDEGATE_NAMESPACE].fields if TIDEGATE_NAMESPACE in spaces else {}
    balancing = spaces[LB_NAMESPACE].fields if LB_NAMESPACE in spaces else {}
    retried = common.upstream_request_attempt_count > 1
    sent = _seconds(common, "time_to_first_upstream_tx_byte") or 0.0
    first = _seconds(common, "time_to_first_upstream_rx_byte")
    lasted = _seconds(common, "duration") or 0.0
    periodic = common.access_log_type == accesslog_pb2.DownstreamPeriodic
    return Entry(
        picker=_text(ours, "picker"),
        ticket=_text(ours, "ticket"),
        unreadable="unreadable" in ours,
        cluster=common.upstream_cluster,
        served=_address(common.upstream_remote_address.socket_address),
        picks=_text(balancing, DESTINATION_HEADER) if retried else "",
        attempts=common.upstream_request_attempt_count,
        status=response.response_code.value,
        grpc_status=_grpc_status(response),
        broken=any(getattr(common.response_flags, each) for each in BROKEN),
        left=any(getattr(common.response_flags, each) for each in LEFT),
        shed=any(getattr(common.response_flags, each) for each in SHED),
        final=not common.intermediate_log_entry and not periodic,
        first_byte_s=None if first is None else max(first - sent, 0.0),
        answer_bytes=response.response_body_bytes,
        ended_unix_s=(_seconds(common, "start_time") or 0.0) + lasted,
        first_at_s=first,
        last_at_s=_seconds(common, "time_to_last_upstream_rx_byte"),
        lasted_s=lasted,
    )


def _text(fields: Any, name: str) -> str:
    return fields[name].string_value if name in fields else ""


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
