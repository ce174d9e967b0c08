"""The gateway's settings. Importing them loads no gRPC."""

from __future__ import annotations

import socket
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from tidegate_api.addresses import (
    ADS_ADDRESS,
    GATEWAY_ADMIN_ADDRESS,
    GATEWAY_ADMIN_GRPC_ADDRESS,
    GATEWAY_GRPC_ADDRESS,
    GATEWAY_HTTP_ADDRESS,
    GATEWAY_METRICS_ADDRESS,
)
from tidegate_common.flags import Shown
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - pydantic reads annotations
from tidegate_common.tls import servers
from tidegate_common.tls.settings import IdentitySettings, ServerName

_ONE = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"

Address = Annotated[str, Field(pattern=f"^{_ONE}$"), Shown("HOST:PORT")]
"""``host:port``, IPv6 in brackets."""

Servers = Annotated[
    str,
    Field(pattern=f"^{_ONE}(,{_ONE})*$"),
    AfterValidator(servers.checked),
    Shown("HOST:PORT,..."),
]
"""One or more control servers, separated by commas."""


def _default_id() -> str:
    return f"gateway-{socket.gethostname()}"


class GatewaySettings(IdentitySettings):
    """Settings of a gateway."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

    PORTS: ClassVar = ("http", "grpc", "admin", "admin_grpc", "metrics")

    http: Address = GATEWAY_HTTP_ADDRESS
    """HTTP address for Envoys."""
    grpc: Address = GATEWAY_GRPC_ADDRESS
    """gRPC address for Envoys."""
    admin: Address = GATEWAY_ADMIN_ADDRESS
    """HTTP address for operators: loads, unloads, trace and log settings of all replicas."""
    admin_grpc: Address = GATEWAY_ADMIN_GRPC_ADDRESS
    """gRPC address for operators."""
    xds: Servers = ADS_ADDRESS
    """ADS address of the control server; of several, with commas, the one that leads is used."""
    metrics: Address = GATEWAY_METRICS_ADDRESS
    """Address of metrics."""
    id: Annotated[str, Field(min_length=1, max_length=128), Shown("NAME")] = Field(
        default_factory=_default_id
    )
    """Unique name of this gateway."""
    timeout: Annotated[float, Field(ge=0.05, le=60)] = 5.0
    """Time for replicas to answer, seconds; those that are late are named in the answer."""
    admin_timeout: Annotated[float, Field(ge=1, le=3600)] = 600.0
    """Time for a change of replicas, seconds."""
    ready_percent: Annotated[float, Field(gt=0, le=100)] = 50.0
    """Share of each pool's replicas that must be usable for the server to be ready; at least one
    must be, and replicas that drain do not count."""
    drain: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Time for open calls at shutdown, seconds."""
    tls_server_name: ServerName = ""
    """Name in the server's certificate, if it is not the host of its address."""
    admin_by_envoy: bool = False
    """Take changes of replicas from Envoys too, whose clients are operators by the certificate that
    Envoy names."""
    log_format: LogFormat = "console"
    """Log format (on stderr)."""
    log_level: LogLevel = "info"
    """Lowest level to log."""
