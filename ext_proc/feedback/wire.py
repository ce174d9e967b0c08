"""Converts Envoy's log messages to entries; the only module that names its messages.

Source: ``envoy/service/accesslog/v3/als.proto``. Messages are parsed with a schema of our own
(``accesslog.proto``) that contains the used fields of Envoy's, under the same numbers. Parsing
costs about 1 µs per entry, each access to a nested message 0.2 µs and each field 0.05 µs, because
upb creates Python objects for them. So each nested message is accessed once, and messages with few
distinct values (addresses, statuses) are looked up by their bytes in a cache.

The first byte of an answer is that of its body, which is in a tag: some servers send headers before
they compute anything. A tag without a number means that it is unknown; only an error of the replica
that ended with its headers began with them. Envoys before 1.37 write no tag; for them the headers
are taken where bytes of a body have followed or the request has ended.

Most entries are those of requests that ended well at their first attempt. Where Envoy's config is
ours, a tag has all that is read of these in one line (``SUMMARY_TAG``), so a message is parsed for
its tags alone. Any other entry, and one whose line is not as expected, is read in full.

Limits of validation: malformed bytes raise `DecodeError` if they are in a part that is read;
skipped parts are not checked. If a message that is looked up by its bytes occurs twice in one
entry, which Envoy never writes, the last one counts instead of both merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from envoy.data.accesslog.v3 import accesslog_pb2

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.blame.law import FIRST_ERROR
from ext_proc.feedback.entries import AttemptEntry, Entry, Usage
from tidegate_api.accesslog.v1 import accesslog_pb2 as pb
from tidegate_api.names import (
    DESTINATION_HEADER,
    FIRST_BODY_TAG,
    LB_NAMESPACE,
    POOL_KEY,
    SUMMARY_GOOD,
    SUMMARY_TAG,
    TICKET_HEADER,
    TIDEGATE_NAMESPACE,
    USAGE_NAMESPACE,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
METHOD: Final = "StreamAccessLogs"

MAX_KNOWN: Final = 4096
"""Maximum addresses, and statuses, that are cached; when full, the cache is cleared."""
MAX_TOKENS: Final = 10.0**9
"""Larger counts are unknown."""
MAX_SIZE: Final = 2**63
"""Bytes of an answer from which on a summary is not believed."""
MAX_KNOWN_BYTES: Final = 128
"""Longer messages are not cached."""

OTHER_CAUSE: Final = "other"
CAUSES: Final[Mapping[str, tuple[str, ...]]] = {
    "no-healthy-upstream": ("no_healthy_upstream",),
    "overflow": ("upstream_overflow",),
    "no-route": ("no_route_found",),
    "no-cluster": ("no_cluster_found",),
    "rate-limited": ("rate_limited",),
    "overloaded": ("overload_manager",),
    "timeout": (
        "upstream_request_timeout",
        "duration_timeout",
        "upstream_max_stream_duration_reached",
    ),
    "unreached": ("upstream_connection_failure",),
    "broken": (
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
    ),
    OTHER_CAUSE: (),
}
"""Why the proxy answered by itself -> its flags."""

MOVED_CAUSE: Final = "moved"
"""The request left a hung replica, and another entry says how it ended."""
HUNG_CAUSE: Final = "hung-replica"
LEFT_HUNG: Final[Mapping[str, str]] = {
    "internal_redirect": MOVED_CAUSE,
    "tidegate_hung_replica": HUNG_CAUSE,
}
"""Why the picker ended an attempt at a hung replica, by the details of Envoy's entry."""

_PERIODIC: Final = accesslog_pb2.DownstreamPeriodic
_GRPC_STATUS: Final = "grpc-status"
_MAX_STATUS_DIGITS: Final = 3
_MAX_TAG_DIGITS: Final = 15
_AFTER_GOOD: Final = len(SUMMARY_GOOD)
_SUMMARY_PARTS: Final = 17
"""Parts of a summary after its beginning."""
_GRPC_OK: Final = ("", "0")
_TICKET_PARTS: Final = 4
"""Parts behind the ticket: picker, address, slot and, of a generic proxy, the pool."""
_ATTEMPT: Final = accesslog_pb2.UpstreamEnd
_DONE: Final = Ended.DONE
_VIA_UPSTREAM: Final = "via_upstream"
"""Details of an answer of the replica."""
_BEFORE_RESPONSE: Final = "upstream_reset_before_response_started"
_TRY_TIMEOUT: Final = "upstream_per_try_timeout"
_new: Final = tuple.__new__
"""Creates an ``Entry`` without the overhead of a named tuple's own constructor."""
_parse: Final[Any] = pb.Log.FromString
_parse_tags: Final[Any] = pb.Tags.FromString
_known_addresses: Final[dict[bytes, str | None]] = {}
_known_statuses: Final[dict[bytes, tuple[str, int | None]]] = {}


def entries_of(data: bytes) -> Iterator[Entry | AttemptEntry]:
    """Yield the entries of one message, of requests and of failed attempts.

    Raises:
        DecodeError: The bytes are not such a message.
    """
    full: Any = None
    for number, tagged in enumerate(_parse_tags(data).http_logs.log_entry):
        line = tagged.common_properties.custom_tags.get(SUMMARY_TAG)
        good = line is not None and line.startswith(SUMMARY_GOOD)
        entry = _good_entry(line) if good else None
        if entry is not None:
            yield entry
            continue
        if full is None:
            full = _parse(data).http_logs.log_entry
        yield _entry(full[number])


def reply() -> bytes:
    """Return the response to a stream that ended: an empty message."""
    return b""


def _good_entry(line: str) -> Entry | None:
    """Return the entry of a request that ended well by its summary; ``None`` = it does not say."""
    parts = line[_AFTER_GOOD:].split(";", _SUMMARY_PARTS - 1)
    if len(parts) != _SUMMARY_PARTS:
        return None
    (
        picker,
        ticket,
        cluster,
        served,
        code,
        bytes_,
        start,
        spent,
        waited,
        began,
        end,
        trailer,
        header,
        prompt,
        cached,
        output,
        model,
    ) = parts
    grpc_status = trailer or header
    try:
        status, size, lasted_s = int(code), int(bytes_), int(spent) * 1e-6
        started_s = int(start) * 1e-3
        first_byte_s = int(waited) * 1e-6 if waited else None
        first_at_s = int(began) * 1e-6 if waited else None
        last_at_s = int(end) * 1e-6 if end else None
    except (ValueError, OverflowError):
        return None
    known = 0 <= size < MAX_SIZE and 0 < status < FIRST_ERROR and served
    if not known or grpc_status not in _GRPC_OK:
        return None
    return _new(
        Entry,
        (
            picker,
            ticket,
            False,
            cluster,
            served,
            "",
            1,
            status,
            0 if grpc_status else None,
            _DONE,
            True,
            True,
            True,
            first_byte_s,
            size,
            started_s + lasted_s,
            first_at_s,
            last_at_s,
            lasted_s,
            _usage_in(prompt, cached, output, model) if prompt or cached or output else None,
            None,
            "",
        ),
    )


def _entry(logged: Any) -> Entry | AttemptEntry:
    common, response = logged.common_properties, logged.response
    kind = common.access_log_type
    if kind == _ATTEMPT:
        return _attempt(logged, common, response)
    # Reading an absent map key yields an empty value and adds it, here only to our own copy.
    spaces = common.metadata.filter_metadata
    ours = spaces[TIDEGATE_NAMESPACE].fields
    spent, start = common.duration, common.start_time
    lasted_s = spent.seconds + spent.nanos * 1e-9
    final = not common.intermediate_log_entry and kind != _PERIODIC
    size = response.response_body_bytes
    flags, status = common.response_flags, response.response_code.value
    grpc_status = _grpc_status(response)
    good = not flags and not grpc_status and 0 < status < FIRST_ERROR
    headers, first_byte_s, first_at_s, age_s = _first_byte(
        common, final=final, size=size, whole=final and not size and not good and not flags
    )
    lasted_s = lasted_s or age_s
    last_at_s = delivered_at_s = None
    if not (final and good) and common.HasField("time_to_last_rx_byte"):
        moment = common.time_to_last_rx_byte
        delivered_at_s = moment.seconds + moment.nanos * 1e-9
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
    ended, read, answered, cause = _DONE, True, True, ""
    if not good:
        ended, read, answered = _ending(common, response, flags, headers=headers)
        if final and not answered and ended is not Ended.LEFT:
            cause = LEFT_HUNG.get(response.response_code_details) or cause_of(flags)
    return _new(
        Entry,
        (
            ours["picker"].string_value,
            ours["ticket"].string_value,
            "unreadable" in ours,
            ours[POOL_KEY].string_value if POOL_KEY in ours else common.upstream_cluster,
            served,
            picks,
            attempts,
            status,
            grpc_status,
            ended,
            read,
            answered,
            final,
            first_byte_s,
            size,
            start.seconds + start.nanos * 1e-9 + lasted_s,
            first_at_s,
            last_at_s,
            lasted_s,
            _usage(spaces[USAGE_NAMESPACE].fields) if USAGE_NAMESPACE in spaces else None,
            delivered_at_s,
            cause,
        ),
    )


def _first_byte(
    common: Any, *, final: bool, size: int, whole: bool
) -> tuple[bool, float | None, float | None, float]:
    """Return what is known of the answer's beginning.

    Args:
        common: The entry's properties.
        final: Whether the request has ended.
        size: Bytes of the answer's body.
        whole: Whether it is an error that ended with its headers.

    Returns:
        Whether it has headers; seconds to its first byte from dispatch, and from the request's
        start, ``None`` if it has not begun or is unknown; the request's age by the tag, seconds, 0
        if unknown.
    """
    moment = common.time_to_first_upstream_rx_byte
    first = moment.seconds + moment.nanos * 1e-9
    # Presence is checked only where a field reads as 0.
    headers = first > 0.0 or common.HasField("time_to_first_upstream_rx_byte")
    waited_s, age_s, known = None, 0.0, final or size > 0
    tag = common.custom_tags.get(FIRST_BODY_TAG)
    if tag is not None:
        waited, _, age = tag.partition(";")
        waited_s, known = _count(waited, 1e-6), whole
        age_s = 0.0 if final else _count(age, 1e-3) or 0.0
    if not headers or (waited_s is None and not known):
        return headers, None, None, age_s
    moment = common.time_to_first_upstream_tx_byte
    sent = moment.seconds + moment.nanos * 1e-9
    if waited_s is not None:
        return True, waited_s, sent + waited_s, age_s
    waited_s = first - sent
    return True, waited_s if waited_s > 0.0 else 0.0, first, age_s  # noqa: FURB136 - half the time


def _usage(fields: Any) -> Usage:
    prompt, cached, output = [_tokens(fields, key) for key in ("prompt", "cached", "output")]
    return Usage(prompt, cached, output, fields["model"].string_value)


def _tokens(fields: Any, key: str) -> int | None:
    value = fields[key]
    number = value.number_value if value.HasField("number_value") else -1.0
    return int(number) if 0.0 <= number <= MAX_TOKENS else None


def _usage_in(prompt: str, cached: str, output: str, model: str) -> Usage:
    return Usage(_tokens_in(prompt), _tokens_in(cached), _tokens_in(output), model)


def _tokens_in(text: str) -> int | None:
    count = _count(text, 1.0)
    return int(count) if count is not None and count <= MAX_TOKENS else None


def _count(text: str, unit: float) -> float | None:
    return int(text) * unit if text.isdecimal() and len(text) <= _MAX_TAG_DIGITS else None


def _ending(common: Any, response: Any, flags: bytes, *, headers: bool) -> tuple[Ended, bool, bool]:
    """Return what ended the last attempt, whether it was read, and whether it was answered."""
    details = response.response_code_details
    ended = _ended(flags, attempt=False) if flags else _DONE
    if ended is Ended.TIMEOUT and details == _TRY_TIMEOUT:
        ended = Ended.TRY_TIMEOUT
    elif ended is _DONE and details and details != _VIA_UPSTREAM:
        ended = Ended.TRY_TIMEOUT if details in LEFT_HUNG else Ended.LOCAL
    read = headers or common.HasField("time_to_first_upstream_tx_byte")
    answered = headers and not details.startswith(_BEFORE_RESPONSE)
    ours = ended is Ended.LOCAL or details in LEFT_HUNG
    return ended, read, answered and not ours


def cause_of(raw: bytes) -> str:
    """Return why the proxy answered by itself, by its flags; the first cause with a flag counts."""
    flags: Any = accesslog_pb2.ResponseFlags.FromString(raw)
    for cause, names in CAUSES.items():
        if any(getattr(flags, name) for name in names):
            return cause
    return OTHER_CAUSE


def _attempt(logged: Any, common: Any, response: Any) -> AttemptEntry:
    """Convert the entry of a failed attempt, which carries no metadata but the ticket's header.

    Its flags, times and status are the attempt's, and its ``request_body_bytes`` are those of the
    replica's answer, as recorded of Envoy 1.40.
    """
    request: Any = pb.Request.FromString(logged.request)
    ticket, *rest = request.request_headers[TICKET_HEADER].split(";", _TICKET_PARTS)
    start, spent, place = common.start_time, common.duration, common.upstream_remote_address
    flags = common.response_flags
    answered = common.HasField("time_to_first_upstream_rx_byte")
    attempt = Attempt(
        address=_address(place) if place else None,
        ended=_ended(flags, attempt=True) if flags else _DONE,
        read=common.HasField("time_to_first_upstream_tx_byte"),
        answered=answered,
        began=answered and request.request_body_bytes > 0,
        status=response.response_code.value if answered else 0,
        grpc_status=_grpc_status(response) if answered else None,
    )
    return AttemptEntry(
        picker=unquote(rest[0]) if rest else "",
        ticket=ticket,
        cluster=unquote(rest[-1]) if len(rest) == _TICKET_PARTS else common.upstream_cluster,
        attempt=attempt,
        began_unix_s=start.seconds + start.nanos * 1e-9,
        lasted_s=spent.seconds + spent.nanos * 1e-9,
    )


def _ended(raw: bytes, *, attempt: bool) -> Ended:
    """Return what ended an attempt by its flags; the first group with a flag counts."""
    flags: Any = accesslog_pb2.ResponseFlags.FromString(raw)
    if (
        flags.upstream_overflow
        or flags.no_healthy_upstream
        or flags.no_route_found
        or flags.no_cluster_found
        or flags.rate_limited
        or flags.overload_manager
    ):
        return Ended.LOCAL
    if (
        flags.downstream_connection_termination
        or flags.downstream_remote_reset
        or flags.downstream_protocol_error
        or flags.stream_idle_timeout
    ):
        return Ended.LEFT
    if flags.upstream_request_timeout and attempt:  # other timeouts end requests, not attempts
        return Ended.TRY_TIMEOUT
    if (
        flags.upstream_request_timeout
        or flags.duration_timeout
        or flags.upstream_max_stream_duration_reached
    ):
        return Ended.TIMEOUT
    if flags.upstream_connection_failure:
        return Ended.UNREACHED
    broken = (
        flags.upstream_connection_termination
        or flags.upstream_remote_reset
        or flags.upstream_protocol_error
    )
    return Ended.BROKEN if broken else _DONE


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
