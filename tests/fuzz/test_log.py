"""The access log's reader beside Envoy's own messages: random messages, and real ones bent."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.log import one_message
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.feedback import wire
from support import full_log
from support.record_access_log import messages
from tidegate_api.names import FIRST_BODY_TAG, SUMMARY_GOOD, SUMMARY_TAG

FIXTURES = Path(__file__).resolve().parents[1] / "contract" / "fixtures"
REAL = messages(FIXTURES / "envoy-1.40" / "access_log.bin")
SMALL = [data for data in REAL if len(data) < 16_384]

SECONDS = st.one_of(st.none(), st.tuples(st.integers(-2, 2**40), st.integers(0, 999_999_999)))
TEXT = st.text(max_size=12)
MOMENTS = (
    "start_time",
    "duration",
    "time_to_first_upstream_tx_byte",
    "time_to_first_upstream_rx_byte",
    "time_to_last_upstream_rx_byte",
)
FLAGS = st.sampled_from([*(flag for _, flags in full_log.ENDS for flag in flags), "delay_injected"])
DETAILS = st.sampled_from(
    [
        "",
        "via_upstream",
        "lua_response",
        "upstream_per_try_timeout",
        "upstream_reset_before_response_started{overflow}",
    ]
)
TICKETS = st.sampled_from(["", ";", "x-1;p;10.0.0.9:1", "x-2", "x-3;p%20q%ff;"])
NAMES = st.sampled_from(["grpc-status", "date", ""])
METADATA = st.tuples(
    st.sampled_from(["tidegate", "envoy.lb", "tidegate.usage", "x"]),
    st.sampled_from(
        [
            *("picker", "ticket", "unreadable", "x-gateway-destination-endpoint"),
            *("prompt", "cached", "output", "model"),
        ]
    ),
    st.one_of(
        *(TEXT, st.integers(0, 9), st.booleans(), st.none()),
        st.sampled_from([-1.0, 0.5, 1e9, 1e9 + 1, 1e300, float("inf"), float("nan")]),
    ),
)
TAGS = st.sampled_from(
    ["", ";", ";;", "0", ";999", "0;0", "501234;757", "-7;-1", f"{10**15};{10**15}", "\u0664;x"]
)
STATUS = st.sampled_from(["0", "14", "014", "1234", "x", "", "\u0664"])


@st.composite
def written(draw) -> bytes:
    """Draw a message with up to three entries in any state."""
    message = full_log.parse(b"")
    for _ in range(draw(st.integers(0, 3))):
        _draw_entry(draw, message.http_logs.log_entry.add())
    if draw(st.integers(0, 9)) == 0:
        message.tcp_logs.SetInParent()
    return message.SerializeToString()


def _draw_entry(draw, entry):
    common, response = entry.common_properties, entry.response
    for name in MOMENTS:
        if (moment := draw(SECONDS)) is not None:
            getattr(common, name).seconds, getattr(common, name).nanos = moment
    _draw_address(draw, common.upstream_remote_address)
    common.upstream_cluster = draw(TEXT)
    common.upstream_request_attempt_count = draw(st.integers(0, 3))
    common.intermediate_log_entry = draw(st.booleans())
    common.access_log_type = draw(st.integers(0, 12))
    for flag in draw(st.lists(FLAGS, max_size=2)):
        setattr(common.response_flags, flag, True)
    for tag in draw(st.lists(st.sampled_from([FIRST_BODY_TAG, "x"]), max_size=2)):
        common.custom_tags[tag] = draw(TAGS)
    for space, key, value in draw(st.lists(METADATA, max_size=6)):
        common.metadata.filter_metadata[space][key] = value
    if draw(st.booleans()):
        response.response_code.value = draw(st.integers(0, 2**32 - 1))
    response.response_body_bytes = draw(st.integers(0, 2**64 - 1))
    response.response_code_details = draw(DETAILS)
    entry.request.request_body_bytes = draw(st.integers(0, 2))
    for name in draw(st.lists(st.sampled_from(["x-tidegate-ticket", "date"]), max_size=2)):
        entry.request.request_headers[name] = draw(TICKETS)
    for headers in (response.response_headers, response.response_trailers):
        for name, value in draw(st.lists(st.tuples(NAMES, STATUS), max_size=2)):
            headers[name] = value


def _draw_address(draw, address):
    kind = draw(st.sampled_from(["number", "name", "pipe", "none"]))
    if kind == "pipe":
        address.pipe.path = "/p"
    elif kind != "none":
        place = address.socket_address
        place.address = draw(st.sampled_from(["10.0.0.1", "::1", ""]))
        if kind == "number":
            place.port_value = draw(st.integers(0, 70_000))
        else:
            place.named_port = "http"


@given(written())
def test_any_message_reads_as_envoys_own_do(data):
    """Random messages, written by Envoy's own class."""
    assert list(wire.entries_of(data)) == full_log.entries_of(data)
    one_message(data)


@given(st.sampled_from(SMALL), st.data())
def test_bent_messages(real, data):
    """Real messages with changed, cut or repeated bytes."""
    bent = bytearray(real)
    for _ in range(data.draw(st.integers(1, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(bent)), st.integers(0, len(bent))))
    one_message(bytes(bent[:end]))


NUMBERS = st.one_of(TAGS, st.integers(-(10**20), 10**20).map(str), st.just("9" * 5000))


@given(st.lists(NUMBERS, min_size=15, max_size=18))
def test_a_summary_of_any_content(parts):
    """It is believed within bounds, or the entry is read in full."""
    message = full_log.parse(b"")
    entry = message.http_logs.log_entry.add()
    entry.common_properties.custom_tags[SUMMARY_TAG] = SUMMARY_GOOD + ";".join(parts)
    data = message.SerializeToString()
    (read,) = wire.entries_of(data)
    if [read] != full_log.entries_of(data):
        assert (read.attempts, read.cause, read.final) == (1, "", True)
        assert 0 < read.status < 400


@given(st.binary(max_size=200))
def test_random_bytes(data):
    """Random bytes are refused, or read alike."""
    one_message(data)


@given(written(), written())
def test_messages_one_behind_the_other(first, second):
    """Concatenated messages are merged as protobuf merges them: the entries of both are read."""
    one_message(first + second)


def test_hostile_bytes_are_not_remembered():
    """Long addresses and statuses are parsed each time; a full cache of short ones is cleared."""
    message = full_log.parse(b"")
    entry = message.http_logs.log_entry.add()
    place = entry.common_properties.upstream_remote_address.socket_address
    place.address, place.port_value = "1" * 1000, 1
    entry.response.response_trailers["grpc-status"] = "0" * 1000
    before = len(wire._known_addresses), len(wire._known_statuses)
    (read,) = wire.entries_of(message.SerializeToString())
    assert (read.served, read.grpc_status) == ("1" * 1000 + ":1", None)
    assert (len(wire._known_addresses), len(wire._known_statuses)) == before
    place.address = "10.0.0.1"
    for port in range(wire.MAX_KNOWN + 10):
        place.port_value = port
        list(wire.entries_of(message.SerializeToString()))
    assert len(wire._known_addresses) <= wire.MAX_KNOWN


def test_nesting_without_end_is_refused():
    """Deeply nested structures in the metadata are refused, as by Envoy's own message."""
    value = b""
    for _ in range(200):
        value = b"\x2a" + _long(b"\x0a" + _long(b"\x0a\x01k\x12" + _long(value)))
    tower = b"\x0a" + _long(
        b"\x0a\x08tidegate\x12" + _long(b"\x0a" + _long(b"\x12" + _long(value)))
    )
    data = b"\x12" + _long(b"\x0a" + _long(b"\x0a" + _long(b"\x8a\x01" + _long(tower))))
    with pytest.raises(DecodeError):
        full_log.parse(data)
    one_message(data)


def _long(content: bytes) -> bytes:
    size, made = len(content), bytearray()
    while size > 0x7F:
        made.append(0x80 | size & 0x7F)
        size >>= 7
    return bytes([*made, size]) + content
