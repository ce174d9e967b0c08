"""The picker's settings. Importing them loads no gRPC."""

from __future__ import annotations

import socket
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegate_api.addresses import ADS_ADDRESS, PICKER_ADDRESS, PICKER_METRICS_ADDRESS
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - pydantic reads annotations

EXIT_USAGE: Final = 2

Transport = Literal["auto", "grpc", "nghttp2"]

Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]
"""``host:port``, IPv6 in brackets."""

_ONE: Final = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
Addresses = Annotated[str, Field(pattern=rf"^{_ONE}(,{_ONE})*$")]
"""One or more addresses, separated by commas."""

MAX_WORKERS: Final = 64


class MissingExtraError(RuntimeError):
    """A setting needs an extra that is not installed; the message names it."""


def _default_id() -> str:
    return f"picker-{socket.gethostname()}"


class PickerSettings(BaseModel):
    """Settings of a picker."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Processes that decide as one picker. Each has its own addresses: those listed, separated by
    commas, or the given port and the ports after it."""
    listen: Addresses = PICKER_ADDRESS
    """Address of the gRPC server that Envoy calls."""
    advertise: Addresses | None = None
    """Address by which the fleet's `pickers.addresses` knows this picker, if it is not `listen`.
    Envoys with several pickers use it to return log entries to the picker that made the pick."""
    xds: Address = ADS_ADDRESS
    """Address of the control server."""
    metrics: Addresses = PICKER_METRICS_ADDRESS
    """Address that serves `/metrics`, `/debug/state` and `/healthz`."""
    id: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_default_id)
    """Name of this picker, unique among all pickers."""
    zone: Annotated[str, Field(max_length=128)] = ""
    """Zone of this picker; pools with `prefer_zone` prefer replicas of the same `zone`."""
    transport: Transport = "auto"
    """gRPC implementation: `grpc` (grpc.aio), or `nghttp2`, which takes a third of the CPU and
    needs the extra `fast`. `auto` is `nghttp2` where that is installed."""
    scrape_interval: Annotated[float, Field(ge=0.05, le=60)] = 0.25
    """Seconds between two scrapes of a replica."""
    otlp: Address | None = None
    """OpenTelemetry collector (OTLP over gRPC, no TLS) that receives a span for each decision whose
    caller traces the request. Needs the extra `otel`."""
    drain: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that open streams may continue after SIGTERM."""
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"
