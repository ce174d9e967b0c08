"""Parses load reports in response headers (ORCA). Pure.

Source: ``xds/data/orca/v3/orca_load_report.proto`` and gRPC's proposal A51. A replica sends one of

* ``endpoint-load-metrics: TEXT key=value, ...`` or ``JSON {...}`` or ``BIN <base64>``; the keyword
  is optional, and ``:`` may replace ``=`` (Triton and vLLM write the one, Envoy reads the other);
* ``endpoint-load-metrics-bin``: the message itself, in base64.

Rules:

1. An invalid entry - an unknown key, a number that is negative or not finite, a share above 1 - is
   left out. A report that has no valid entry, or that cannot be parsed, is no report.
2. At most ``MAX_BYTES`` are read, and ``MAX_KEYS`` keys.
3. Named metrics are recognized by the names that Triton, TensorRT-LLM, vLLM and SGLang use.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import TYPE_CHECKING, Any, Final

import orjson
from google.protobuf.message import DecodeError
from xds.data.orca.v3 import orca_load_report_pb2

from ext_proc.routing.values.reading import Reading
from tidegate_api.names import LOAD_BIN_HEADER, LOAD_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_BYTES: Final = 8 * 1024
MAX_KEYS: Final = 64

_NAMED: Final = "named_metrics."
_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    # key: (field of a reading, maximum)
    "cpu_utilization": ("cpu_used", 1e3),
    "mem_utilization": ("memory_used", 1.0),
    "rps_fractional": ("rps", math.inf),
    "rps": ("rps", math.inf),
    _NAMED + "kv_cache_utilization": ("kv_used", 1.0),
    _NAMED + "kv_cache_usage_perc": ("kv_used", 1.0),
    _NAMED + "token_usage": ("kv_used", 1.0),
    _NAMED + "num_requests_waiting": ("queued", math.inf),
    _NAMED + "queue_size": ("queued", math.inf),
    _NAMED + "num_requests_running": ("running", math.inf),
    _NAMED + "gpu_utilization": ("gpu_used", 1.0),
}
_TEXT, _JSON, _BIN = "TEXT", "JSON", "BIN"
_SCALARS: Final = ("cpu_utilization", "mem_utilization", "rps_fractional")


class NoReportError(ValueError):
    """The headers contain no load report."""


def read(headers: Iterable[tuple[str, str]], at: float) -> Reading:
    """Parse the load report in response headers.

    Args:
        headers: Response headers, lower-case names; others than the two are ignored.
        at: Time of their arrival, monotonic seconds.

    Raises:
        NoReportError: The headers contain nothing usable.
    """
    values: dict[str, float] = {}
    for name, text in headers:
        if len(text) > MAX_BYTES:
            raise NoReportError(f"more than {MAX_BYTES} bytes")
        if name == LOAD_BIN_HEADER:
            values.update(_binary(text))
        elif name == LOAD_HEADER:
            values.update(_plain(text))
    if not values:
        raise NoReportError("no known entry")
    return Reading(at, **values)  # type: ignore[arg-type]  # the fields are all floats


def _plain(text: str) -> dict[str, float]:
    form, _, rest = text.strip().partition(" ")
    if form == _BIN:
        return _binary(rest)
    if form == _JSON or text.lstrip().startswith("{"):
        return _json(rest if form == _JSON else text)
    return _kept(_pairs(rest if form == _TEXT else text))


def _pairs(text: str) -> Iterator[tuple[str, Any]]:
    for item in text.split(",", MAX_KEYS)[:MAX_KEYS]:
        key, found, value = item.replace("=", ":", 1).partition(":")
        if found:
            yield key.strip(), value.strip()


def _json(text: str) -> dict[str, float]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NoReportError("not JSON") from error
    if not isinstance(found, dict):
        raise NoReportError("not an object")
    named = found.get("named_metrics")
    inner = named.items() if isinstance(named, dict) else ()
    return _kept((*found.items(), *((_NAMED + str(key), value) for key, value in inner)))


def _binary(text: str) -> dict[str, float]:
    try:
        # gRPC omits the padding.
        data = base64.b64decode(text.strip() + "=" * (-len(text.strip()) % 4), validate=True)
        report = orca_load_report_pb2.OrcaLoadReport.FromString(data)
    except (binascii.Error, DecodeError, ValueError) as error:
        raise NoReportError("not an OrcaLoadReport in base64") from error
    # In proto3 a scalar 0 may mean zero or unset, so zeros are treated as unset.
    scalars = [(name, value) for name in _SCALARS if (value := getattr(report, name))]
    named = [(_NAMED + name, value) for name, value in report.named_metrics.items()]
    return _kept((*scalars, *named))


def _kept(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for number, (key, value) in enumerate(pairs):
        known = _FIELDS.get(key)
        if known is None or number >= MAX_KEYS or isinstance(value, bool):
            continue
        field, most = known
        try:
            amount = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if 0.0 <= amount <= most and amount != math.inf:
            values[field] = amount
    return values
