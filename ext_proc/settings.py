"""The picker's settings. Importing them loads no gRPC."""

from __future__ import annotations

import re
import socket
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from tidegate_api.addresses import (
    ADS_ADDRESS,
    MAX_MEMBERS,
    PICKER_ADDRESS,
    PICKER_METRICS_ADDRESS,
)
from tidegate_common.flags import Shown
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - pydantic reads annotations
from tidegate_common.tls import servers
from tidegate_common.tls.settings import IdentitySettings, ServerName

EXIT_USAGE: Final = 2

Transport = Literal["auto", "grpc", "nghttp2"]

Destinations = Literal["list", "one"]

_EVERY: Final = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - not bound, but refused
_ONE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


def _address(given: str) -> str:
    if _ONE.fullmatch(given) is None:
        raise ValueError("no address; write host:port, for example 127.0.0.1:18001")
    return given


def _addresses(given: str) -> str:
    for each in given.split(","):
        _address(each)
    return given


Address = Annotated[str, AfterValidator(_address), Shown("HOST:PORT")]
"""``host:port``, IPv6 in brackets."""

Addresses = Annotated[str, AfterValidator(_addresses), Shown("HOST:PORT")]
"""One or more addresses, separated by commas."""

Servers = Annotated[
    str, AfterValidator(_addresses), AfterValidator(servers.checked), Shown("HOST:PORT,...")
]
"""One or more control servers, separated by commas."""

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
    """Worker processes of this picker; worker N listens on the port plus N. Lists of addresses,
    separated by commas, give each its own."""
    listen: Addresses = PICKER_ADDRESS
    """ext_proc address for Envoys."""
    advertise: Addresses | None = None
    """Address by which the fleet's pickers.addresses knows this picker, if it is not that of
    --listen. Envoys with several pickers return log entries to the one that made the pick."""
    xds: Servers = ADS_ADDRESS
    """ADS address of the control server; of several, with commas, the one that leads is used."""
    group_listen: Annotated[Addresses | None, Shown("HOST:PORT")] = None
    """Address, over TLS, for the other pickers of a group, which learn it from the control
    server."""
    group_members: Annotated[Addresses | None, Shown("HOST:PORT,...")] = None
    """The --group-listen of all pickers, on several hosts, that decide as one, and of each of their
    workers, in place of what the control server knows; this one's own may be among them. Without
    its list, halves that are cut off from each other may place a sequence twice."""
    metrics: Addresses = PICKER_METRICS_ADDRESS
    """Address of metrics and debug pages."""
    id: Annotated[str, Field(min_length=1, max_length=128), Shown("NAME")] = Field(
        default_factory=default_id
    )
    """Unique name of this picker."""
    zone: Annotated[str, Field(max_length=128), Shown("NAME", "TIDEGATE_ZONE")] = ""
    """Zone of this picker, for pools that prefer replicas of the same zone."""
    transport: Transport = "auto"
    """gRPC server: grpc (grpc.aio), or nghttp2, which takes a third of its CPU and needs
    tidegate[fast]; auto is nghttp2 if that is installed, else grpc."""
    scrape_interval: Annotated[float, Field(ge=0.05, le=60)] = 0.25
    """Interval of scrapes of a replica, seconds."""
    destinations: Destinations = "list"
    """Picks for proxies that the control server does not configure: a list in the order of trials,
    or one address, for clusters of type ORIGINAL_DST."""
    require_pick: bool = False
    """Refuse requests without a pick with 503, instead of leaving them to the proxy."""
    require_model: bool = False
    """Refuse inferences in OpenAI's and Anthropic's forms that name no model with 400, instead of
    sending them to the default pool."""
    otlp: Address | None = None
    """OpenTelemetry collector (OTLP/HTTP, usually port 4318) that receives spans of decisions;
    needs tidegate[otel]; default: no spans."""
    drain: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Time for open streams at shutdown, seconds."""
    tls_server_name: ServerName = ""
    """Name in the server's certificate, if it is not the host of its address."""
    log_format: LogFormat = "console"
    """Log format (on stderr)."""
    log_level: LogLevel = "info"
    """Lowest level to log."""

    @model_validator(mode="after")
    def _group(self) -> Self:
        if self.group_listen is None:
            if self.group_members is not None:
                raise ValueError("--group-members needs --group-listen, this picker's own address")
            return self
        if self.tls_cert is None:
            raise ValueError("--group-listen needs --tls-cert, --tls-key and --tls-ca")
        if self.group_members is None:
            if wildcard := _EVERY.intersection(map(_host, self.group_listen.split(","))):
                raise ValueError(
                    f"--group-listen {self.group_listen}: other pickers cannot reach"
                    f" {min(wildcard)}; give the address of this host"
                )
        elif (count := self.group_members.count(",") + 1) > MAX_MEMBERS:
            raise ValueError(
                f"--group-members: {count} addresses; at most {MAX_MEMBERS} are allowed"
            )
        return self


def _host(address: str) -> str:
    return address.rpartition(":")[0]
