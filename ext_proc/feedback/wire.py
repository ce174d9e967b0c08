"""Converts Envoy's log messages to entries; the only module that names its messages.

Source: ``envoy/service/accesslog/v3/als.proto``. Messages are parsed with a schema of our own
(``accesslog.proto``) that contains the used fields of Envoy's, under the same numbers. Parsing
costs about 1 µs per entry, each access to a nested message 0.2 µs and each field 0.05 µs, because
upb creates Python objects for them. So each nested message is accessed once, and messages with few
distinct values (addresses, statuses) are looked up by their bytes in a cache.

Limits of validation: malformed bytes raise `DecodeError` if they are in a part that is read;
skipped parts are not checked. If a message that is looked up by its bytes occurs twice in one
entry, which Envoy never writes, the last one counts instead of both merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.data.accesslog.v3 import accesslog_pb2

from ext_proc.feedback.entries import Entry
from tidegate_api.accesslog.v1 import accesslog_pb2 as pb
from tidegate_api.names import DESTINATION_HEADER, LB_NAMESPACE, TIDEGATE_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
METHOD: Final = "StreamAccessLogs"

MAX_KNOWN: Final = 4096
"""Maximum addresses, and statuses, that are cached; when full, the cache is cleared."""
MAX_KNOWN_BYTES: Final = 128
"""Longer messages are not cached."""

_PERIODIC: Final = accesslog_pb2.DownstreamPeriodic
_GRPC_STATUS: Final = "grpc-status"
_MAX_STATUS_DIGITS: Final = 3
_NO_FLAGS: Final = (False, False, False)
_new: Final = tuple.__new__
"""Creates an ``Entry`` without the overhead of a named tuple's own constructor."""
_parse: Final[Any] = pb.Log.FromString
_known_addresses: Final[dict[bytes, str | None]] = {}
_known_statuses: Final[dict[bytes, tuple[str, int | None]]] = {}


def entries_of(data: bytes) -> Iterator[Entry]:
    """Yield the entries of one message.

    Raises:
        DecodeError: The bytes are not such a message.
    """
    for logged in _parse(data).http_logs.log_entry:
        yield _entry(logged)


def reply() -> bytes:
    """Return the response to a stream that ended: an empty message."""
    return b""


def _entry(logged: Any) -> Entry:
    common, response = logged.common_properties, logged.response
    # Reading an absent map key yields an empty value and adds it, here only to our own copy.
    spaces = common.metadata.filter_metadata
    ours = spaces[TIDEGATE_NAMESPACE].fields
    spent, start = common.duration, common.start_time
    lasted_s = spent.seconds + spent.nanos * 1e-9
    first_byte_s = first_at_s = last_at_s = None
    moment = common.time_to_first_upstream_rx_byte
    first = moment.seconds + moment.nanos * 1e-9
    # Presence is checked only where a field reads as 0.
    if first or common.HasField("time_to_first_upstream_rx_byte"):
        first_at_s = first
        moment = common.time_to_first_upstream_tx_byte
        first_byte_s = first - (moment.seconds + moment.nanos * 1e-9)
        if first_byte_s < 0.0:  # noqa: PLR1730 - `max` takes twice the time
            first_byte_s = 0.0
    moment = common.time_to_last_upstream_rx_byte
    last = moment.seconds + moment.nanos * 1e-9
    if last or common.HasField("time_to_last_upstream_rx_byte"):
        last_at_s = last
    place = common.upstream_remote_address
    served = _known_addresses.get(place)
    if served is None and place:
        served = _address(place)
    picks, attempts = "", common.upstream_request_attempt_count
    if attempts > 1:
        picks = spaces[LB_NAMESPACE].fields[DESTINATION_HEADER].string_value
    flags = common.response_flags
    broken, left, shed = _flags(flags) if flags else _NO_FLAGS
    return _new(
        Entry,
        (
            ours["picker"].string_value,
            ours["ticket"].string_value,
            "unreadable" in ours,
            common.upstream_cluster,
            served,
            picks,
            attempts,
            response.response_code.value,
            _grpc_status(response),
            broken,
            left,
            shed,
            not common.intermediate_log_entry and common.access_log_type != _PERIODIC,
            first_byte_s,
            response.response_body_bytes,
            start.seconds + start.nanos * 1e-9 + lasted_s,
            first_at_s,
            last_at_s,
            lasted_s,
        ),
    )


def _flags(raw: bytes) -> tuple[bool, bool, bool]:
    flags: Any = accesslog_pb2.ResponseFlags.FromString(raw)
    broken = (
        flags.upstream_connection_failure
        or flags.upstream_connection_termination
        or flags.upstream_remote_reset
        or flags.upstream_request_timeout
        or flags.upstream_protocol_error
        or flags.duration_timeout
        or flags.upstream_max_stream_duration_reached
    )
    left = (
        flags.downstream_connection_termination
        or flags.downstream_remote_reset
        or flags.downstream_protocol_error
        or flags.stream_idle_timeout
    )
    shed = (
        flags.upstream_overflow
        or flags.no_healthy_upstream
        or flags.no_route_found
        or flags.no_cluster_found
        or flags.rate_limited
        or flags.overload_manager
    )
    return broken, left, shed


def _address(raw: bytes) -> str | None:
    found = pb.Address.FromString(raw).socket_address
    host, port = found.address, found.port_value
    if not host:
        return None
    served = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    _remember(_known_addresses, raw, served)
    return served


def _grpc_status(response: Any) -> int | None:
    return _status_in(response.response_trailers, response.response_headers)


def _status_in(*sources: Any) -> int | None:
    """Return the status from the first source that has one; in a map the last entry counts."""
    for source in sources:
        if source:
            for raw in reversed(source):
                known = _known_statuses.get(raw)
                name, status = _header(raw) if known is None else known
                if name == _GRPC_STATUS:
                    return status
    return None


def _header(raw: bytes) -> tuple[str, int | None]:
    header = pb.Header.FromString(raw)
    name, value = header.key, header.value
    is_status = value.isdecimal() and len(value) <= _MAX_STATUS_DIGITS
    made = name, int(value) if is_status else None
    _remember(_known_statuses, raw, made)
    return made


def _remember(known: dict[bytes, Any], raw: bytes, value: Any) -> None:
    if len(raw) <= MAX_KNOWN_BYTES:
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[raw] = value
