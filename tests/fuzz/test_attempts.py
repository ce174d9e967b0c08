"""Entries of the log applied to a router: real messages, bent, mixed and random."""

from __future__ import annotations

from pathlib import Path

from fuzz.attempts import one_stream
from fuzz.corpus import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.blame.evidence import Ended
from support import full_log
from support.record_access_log import ATTEMPTS, messages

RECORDED = Path(__file__).resolve().parents[1] / "contract" / "fixtures" / "envoy-1.40"
REAL = [*messages(RECORDED / ATTEMPTS), *messages(RECORDED / "access_log.bin")]
SMALL = [data for data in REAL if len(data) < 16_384]
CASES = inputs("attempts")
FLAGS = dict(full_log.ENDS)


def framed(*parts: bytes) -> bytes:
    """Frame messages as the target reads them."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


@st.composite
def entries(draw) -> bytes:
    """Draw a message of one entry about a request that runs, or has run, on a known replica."""
    message = full_log.parse(b"")
    entry = message.http_logs.log_entry.add()
    common, number = entry.common_properties, draw(st.integers(0, 5))
    common.upstream_cluster = draw(st.sampled_from(["llm/stable/http", "gone/x/http", ""]))
    place = common.upstream_remote_address.socket_address
    place.address, place.port_value = f"10.0.0.{draw(st.integers(1, 4))}", 8080
    common.start_time.seconds = draw(st.sampled_from([0, 1_000, -5, 2**40]))
    common.duration.seconds = draw(st.sampled_from([0, 1, 100, -1]))
    common.upstream_request_attempt_count = draw(st.integers(0, 3))
    for name in ("time_to_first_upstream_tx_byte", "time_to_first_upstream_rx_byte"):
        if draw(st.booleans()):
            getattr(common, name).nanos = draw(st.integers(0, 999_999_999))
    ended = draw(st.sampled_from([None, *FLAGS]))
    if ended in FLAGS and ended is not Ended.DONE:
        setattr(common.response_flags, draw(st.sampled_from(FLAGS[ended])), True)
    entry.response.response_code.value = draw(st.sampled_from([0, 200, 400, 500, 503, 504]))
    entry.response.response_body_bytes = draw(st.sampled_from([0, 5]))
    if draw(st.booleans()):
        common.access_log_type = full_log.accesslog_pb2.UpstreamEnd
        entry.request.request_headers["x-tidegate-ticket"] = f"x-{number};p;"
        entry.request.request_body_bytes = draw(st.sampled_from([0, 5]))
    else:
        common.metadata.filter_metadata["tidegate"]["picker"] = "p"
        common.metadata.filter_metadata["tidegate"]["ticket"] = f"x-{number}" if number else ""
        common.intermediate_log_entry = draw(st.booleans())
    return message.SerializeToString()


def test_the_corpus():
    """Each stored stream keeps every promise."""
    assert len(CASES) > 3
    for case in CASES:
        try:
            one_stream(case.data)
        except Exception as error:
            raise AssertionError(case.name) from error


@given(st.lists(entries(), max_size=12))
@settings(deadline=None)
def test_entries_in_any_order(parts):
    """Late, repeated and contradictory entries of attempts and requests."""
    one_stream(framed(*parts))


@given(st.lists(st.sampled_from(SMALL), min_size=1, max_size=3), st.data())
@settings(deadline=None)
def test_bent_messages(parts, data):
    """Real messages with changed bytes."""
    bent = bytearray(framed(*parts))
    for _ in range(data.draw(st.integers(0, 4))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    one_stream(bytes(bent))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes(data):
    """Random bytes are refused, or apply to nothing."""
    one_stream(data)
