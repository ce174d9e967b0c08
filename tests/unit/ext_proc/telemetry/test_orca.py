"""Load reports in response headers."""

from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.orca import MAX_BYTES, MAX_KEYS, NoReportError, read
from tidegate_api.names import LOAD_BIN_HEADER, LOAD_HEADER

TRITON_JSON = 'JSON {"named_metrics": {"kv_cache_utilization": 0.25, "max_token_capacity": 4096}}'
TRITON_TEXT = "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=4096"


def text(value):
    return read([(LOAD_HEADER, value)], 7.0)


def binary(**fields):
    message = OrcaLoadReport(**fields)
    return base64.b64encode(message.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TRITON_JSON, {"kv_used": 0.25}),
        (TRITON_TEXT, {"kv_used": 0.25}),
        (TRITON_TEXT.removeprefix("TEXT ").replace("=", ":"), {"kv_used": 0.25}),
        (TRITON_JSON.removeprefix("JSON "), {"kv_used": 0.25}),
        ("TEXT cpu_utilization:1.5,mem_utilization:0.5,rps_fractional:10,eps:1",
         {"cpu_used": 1.5, "memory_used": 0.5, "rps": 10.0}),
        (('JSON {"cpu_utilization": 0.3, "named_metrics": {"num_requests_waiting": 4,'
          ' "num_requests_running": 2, "gpu_utilization": 0.9}}'),
         {"cpu_used": 0.3, "queued": 4.0, "running": 2.0, "gpu_used": 0.9}),
        ("TEXT named_metrics.queue_size=0", {"queued": 0.0}),
        ("BIN " + binary(cpu_utilization=0.5), {"cpu_used": 0.5}),
    ],
)  # fmt: skip
def test_every_form_is_read(value, expected):
    """Three forms, with and without their keyword, with both separators."""
    assert text(value) == Reading(7.0, **expected)


def test_the_message_itself():
    """In base64 with and without padding; a 0 that may be unset is left out."""
    value = binary(mem_utilization=0.5, named_metrics={"kv_cache_usage_perc": 0.0})
    for written in (value, value.rstrip("=")):
        assert read([(LOAD_BIN_HEADER, written)], 7.0) == Reading(7.0, memory_used=0.5, kv_used=0.0)


@pytest.mark.parametrize(
    "value",
    ["", "TEXT", "JSON", "JSON [1]", "JSON {", "BIN ???", "BIN AAA", "TEXT rps", "TEXT rps=",
     "TEXT rps=x", "TEXT rps=-1", "TEXT rps=nan", "TEXT rps=inf", "TEXT mem_utilization=1.5",
     'JSON {"rps": true}', 'JSON {"rps": null}', "TEXT max_token_capacity=4",
     "TEXT " + "x" * MAX_BYTES],
)  # fmt: skip
def test_nonsense_is_no_report(value):
    """Invalid values are left out and never become 0."""
    with pytest.raises(NoReportError):
        text(value)


def test_keys_are_bounded():
    """Keys beyond the bound are not read."""
    many = ",".join(f"k{n}=1" for n in range(MAX_KEYS))
    with pytest.raises(NoReportError):
        text(f"TEXT {many},rps=1")
    named = {f"k{n}": 1 for n in range(MAX_KEYS)} | {"queue_size": 1}
    with pytest.raises(NoReportError):
        text("JSON " + orjson.dumps({"named_metrics": named}).decode())


@given(st.text(max_size=200) | st.binary(max_size=60).map(lambda b: base64.b64encode(b).decode()))
@example('JSON {"rps": 1e999}')
def test_whatever_comes_is_read_or_refused(value):
    """Only the documented error is raised."""
    for name in (LOAD_HEADER, LOAD_BIN_HEADER):
        for form in ("", "JSON ", "TEXT ", "BIN "):
            try:
                reading = read([(name, form + value)], 0.0)
            except NoReportError:
                continue
            assert 0.0 <= (reading.kv_used or 0.0) <= 1.0
