"""The picker's settings. Importing them loads no gRPC."""

from __future__ import annotations

import re
import socket
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from tidegate_api.addresses import ADS_ADDRESS, PICKER_ADDRESS, PICKER_METRICS_ADDRESS
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - pydantic reads annotations
from tidegate_common.tls.settings import IdentitySettings

EXIT_USAGE: Final = 2

Transport = Literal["auto", "grpc", "nghttp2"]

Destinations = Literal["list", "one"]

_ONE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def _address(given: str) -> str:
    if _ONE.fullmatch(given) is None:
        raise ValueError("no address; write host:port, for example 127.0.0.1:18001")
    return given


def _addresses(given: str) -> str:
    for each in given.split(","):
        _address(each)
    return given


Address = Annotated[str, AfterValidator(_address)]
"""``host:port``, IPv6 in brackets."""

Addresses = Annotated[str, AfterValidator(_addresses)]
"""One or more addresses, separated by commas."""

MAX_WORKERS: Final = 64


class AddressError(OSError):
    """An address cannot be bound; the message names it and the remedy."""


class MissingExtraError(RuntimeError):
    """A setting needs an extra that is not installed; the message names it."""


def default_id() -> str:
    """Return the id of a picker that is given none."""
    return f"picker-{socket.gethostname()}"


class PickerSettings(IdentitySettings):
    """Settings of a picker."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

    PORTS: ClassVar = ("listen", "metrics")

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
    tls_server_name: Annotated[str, Field(max_length=253)] = ""
    """Name in the control server's certificate, if it is not the host of `--xds`."""
    metrics: Addresses = PICKER_METRICS_ADDRESS
    """Address that serves `/metrics`, `/debug/state` and `/healthz`."""
    id: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=default_id)
    """Name of this picker, unique among all pickers."""
    zone: Annotated[str, Field(max_length=128)] = ""
    """Zone of this picker; pools with `prefer_zone` prefer replicas of the same `zone`."""
    transport: Transport = "auto"
    """gRPC implementation: `grpc` (grpc.aio), or `nghttp2`, which takes a third of the CPU and
    needs the extra `fast`. `auto` is `nghttp2` where that is installed."""
    scrape_interval: Annotated[float, Field(ge=0.05, le=60)] = 0.25
    """Seconds between two scrapes of a replica."""
    destinations: Destinations = "list"
    """What picks are for proxies that the control server does not configure: a `list` of addresses
    in the order of trials, or `one`, for clusters of type ORIGINAL_DST, which read no list."""
    require_pick: bool = False
    """Refuse requests without a pick with 503, instead of leaving them to the proxy."""
    require_model: bool = False
    """Refuse inferences in OpenAI's and Anthropic's forms that name no model with 400, instead of
    sending them to the default pool."""
    otlp: Address | None = None
    """OpenTelemetry collector (OTLP over gRPC, no TLS) that receives a span for each decision whose
    caller traces the request. Needs the extra `otel`."""
    drain: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that open streams may continue after SIGTERM."""
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"
