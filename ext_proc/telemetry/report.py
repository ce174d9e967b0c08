"""Converts readings to and from ``tidegate.telemetry.v1`` messages. Pure.

An invalid value (not finite, negative, a share above 1) rejects the whole report: a reporter with
one wrong number has others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from ext_proc.routing.state.candidates import MAX_READINGS
from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.dialects import ModelVersion
from tidegate_api.telemetry.v1 import telemetry_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_REPORT_BYTES: Final = 65_536
MAX_AGE_S: Final = 60.0
MAX_NAME_CHARS: Final = 256
MAX_ADAPTERS: Final = 128
"""Maximum per reading."""

_FIELDS: Final = (
    # field of the reading, field of the message, maximum
    ("queued", "queued", math.inf),
    ("running", "running", math.inf),
    ("deferred", "deferred", math.inf),
    ("asleep", "asleep", 1),
    ("saturated", "saturated", 1),
    ("kv_used", "kv_used", 1.0),
    ("kv_block_tokens", "kv_block_tokens", math.inf),
    ("kv_blocks", "kv_blocks", math.inf),
    ("reused_blocks", "reused_blocks", math.inf),
    ("gpu_used", "gpu_used", 1.0),
    ("gpu_memory_used", "gpu_memory_used", 1.0),
    ("gpu_memory_free", "gpu_memory_free", math.inf),
    ("gpu_xid", "gpu_xid", math.inf),
    ("adapter_slots", "adapter_slots", math.inf),
    ("queue_s", "queue_seconds", math.inf),
    ("compute_s", "compute_seconds", math.inf),
)
_BY_NAME: Final = {name: (field, most) for field, name, most in _FIELDS}
_TEXTS: Final = ("model", "version")
_ADAPTERS: Final = ("adapters", "adapters_waiting")


class BadReport(ValueError):  # noqa: N818 - reads as what it is
    """The report is invalid; the message states the reason."""


Key = tuple[str | None, str | None]


class ReportUpdate(NamedTuple):
    """One report."""

    endpoint: str
    age_s: float
    readings: tuple[Reading, ...]
    gone: tuple[ModelVersion, ...]
    restarts: int


def read(data: bytes, now: float) -> ReportUpdate:
    """Parse one report that arrived at ``now`` (monotonic seconds).

    Raises:
        BadReport: It is too large, not a report, or contains an invalid value.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise BadReport(f"report of {len(data)} bytes; at most {MAX_REPORT_BYTES} are accepted")
    try:
        message = telemetry_pb2.EndpointReport.FromString(data)
    except DecodeError:
        raise BadReport("the message is not a tidegate.telemetry.v1.EndpointReport") from None
    if not 0 < len(message.endpoint) <= MAX_NAME_CHARS:
        raise BadReport(f"endpoint must have 1 to {MAX_NAME_CHARS} characters")
    age = message.age_seconds
    if not 0 <= age <= MAX_AGE_S:
        raise BadReport(f"age_seconds is {age}; it must be 0 to {MAX_AGE_S:g}")
    if len(message.readings) > MAX_READINGS or len(message.gone) > MAX_READINGS:
        raise BadReport(f"more than {MAX_READINGS} readings")
    return ReportUpdate(
        endpoint=message.endpoint,
        age_s=age,
        readings=tuple(_reading(each, now - age) for each in message.readings),
        gone=tuple(ModelVersion(each.name, each.version or None) for each in message.gone),
        restarts=message.restarts,
    )


def _reading(message: Any, at: float) -> Reading:
    values: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        name = descriptor.name
        field = _BY_NAME.get(name)
        if field is not None:
            own, most = field
            if not 0 <= value <= most or value == math.inf:
                raise BadReport(f"{name} is {value}; it must be 0 to {most:g} and finite")
            values[own] = value
        elif name in _TEXTS:
            if len(value) > MAX_NAME_CHARS:
                raise BadReport(f"{name} has more than {MAX_NAME_CHARS} characters")
            values[name] = value
        elif name in _ADAPTERS:
            values[name] = _adapters(value.names)
    return Reading(at, **values)


def _adapters(names: Collection[str]) -> frozenset[str]:
    if len(names) > MAX_ADAPTERS:
        raise BadReport(f"more than {MAX_ADAPTERS} adapters")
    if any(len(each) > MAX_NAME_CHARS for each in names):
        raise BadReport(f"an adapter name has more than {MAX_NAME_CHARS} characters")
    return frozenset(names)


def _fit(adapters: Collection[str]) -> bool:
    return len(adapters) <= MAX_ADAPTERS and all(len(each) <= MAX_NAME_CHARS for each in adapters)


def write(
    endpoint: str,
    age_s: float,
    readings: Iterable[Reading],
    gone: Iterable[Key] = (),
    restarts: int = 0,
) -> telemetry_pb2.EndpointReport:
    """Build one report; failure counters are not part of it.

    Adapters are left out, as unknown, if a report cannot hold all of them.
    """
    report = telemetry_pb2.EndpointReport(endpoint=endpoint, age_seconds=age_s, restarts=restarts)
    for each in readings:
        message = report.readings.add(model=each.model, version=each.version)
        for field, name, _ in _FIELDS:
            value = getattr(each, field)
            if value is not None:
                setattr(message, name, value)
        for name in _ADAPTERS:
            names = getattr(each, name)
            if names is not None and each.adapters is not None and _fit(each.adapters):
                getattr(message, name).SetInParent()
                getattr(message, name).names.extend(sorted(names))
    for model, version in gone:
        report.gone.add(name=model or "", version=version or "")
    return report


class ReportedValues:
    """The current values of one stream, whose reports are changes.

    Rule: at most ``MAX_READINGS`` models.
    """

    def __init__(self) -> None:
        self._readings: dict[Key, Reading] = {}
        self._restarts: int | None = None
        self.endpoint = ""
        """The stream's endpoint, once it has been named."""

    def take(self, update: ReportUpdate, now: float) -> tuple[tuple[Reading, ...], bool]:
        """Apply a report; return all readings with their age, and whether it signals a restart.

        Raises:
            BadReport: The stream has too many models, or names a second endpoint.
        """
        if self.endpoint and update.endpoint != self.endpoint:
            raise BadReport("a stream reports on one endpoint only")
        self.endpoint = update.endpoint
        restarted = self._restarts is not None and update.restarts > self._restarts
        self._restarts = update.restarts
        for key in update.gone:
            self._readings.pop(key, None)
        if restarted:
            self._readings.clear()
        for each in update.readings:
            self._readings[each.model, each.version] = each
        if len(self._readings) > MAX_READINGS:
            raise BadReport(f"more than {MAX_READINGS} models on one stream")
        # Values that did not change are confirmed: they are as old as this report.
        at = now - update.age_s
        readings = [
            each if each.at == at else replace(each, at=at) for each in self._readings.values()
        ]
        return tuple(readings), restarted
