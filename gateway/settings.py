"""The gateway's settings. Importing them loads no gRPC."""

from __future__ import annotations

import socket
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from tidegate_api.addresses import (
    ADS_ADDRESS,
    GATEWAY_ADMIN_ADDRESS,
    GATEWAY_ADMIN_GRPC_ADDRESS,
    GATEWAY_GRPC_ADDRESS,
    GATEWAY_HTTP_ADDRESS,
    GATEWAY_METRICS_ADDRESS,
)
from tidegate_common.logs import LogFormat, LogLevel  # noqa: TC001 - pydantic reads annotations
from tidegate_common.tls.settings import IdentitySettings

Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]
"""``host:port``, IPv6 in brackets."""


def _default_id() -> str:
    return f"gateway-{socket.gethostname()}"


class GatewaySettings(IdentitySettings):
    """Settings of a gateway."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )

    PORTS: ClassVar = ("http", "grpc", "admin", "admin_grpc", "metrics")

    http: Address = GATEWAY_HTTP_ADDRESS
    """Address of the HTTP server that Envoy forwards questions to."""
    grpc: Address = GATEWAY_GRPC_ADDRESS
    """Address of the gRPC server that Envoy forwards questions to."""
    admin: Address = GATEWAY_ADMIN_ADDRESS
    """Address for operators over HTTP: calls that change replicas, which go to all of them."""
    admin_grpc: Address = GATEWAY_ADMIN_GRPC_ADDRESS
    """The same over gRPC."""
    xds: Address = ADS_ADDRESS
    """Address of the control server."""
    tls_server_name: Annotated[str, Field(max_length=253)] = ""
    """Name in the control server's certificate, if it is not the host of `--xds`."""
    metrics: Address = GATEWAY_METRICS_ADDRESS
    """Address that serves `/metrics` and `/healthz`."""
    id: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_default_id)
    """Name of this gateway, unique among all clients of the control server."""
    admin_by_envoy: bool = False
    """Take changes of replicas from Envoys too, for clients of theirs that are operators: they say
    whose certificate it is (`x-forwarded-client-cert`). For listeners with `operators`."""
    timeout: Annotated[float, Field(ge=0.05, le=60)] = 5.0
    """Seconds that a question waits for replicas; those that are late are named in the answer."""
    admin_timeout: Annotated[float, Field(ge=1, le=3600)] = 600.0
    """Seconds that a change of replicas, such as loading a model, may take."""
    ready_percent: Annotated[float, Field(gt=0, le=100)] = 50.0
    """Share of each pool's replicas that must be usable for the server to be ready, in percent; at
    least one must be, and replicas that drain do not count."""
    drain: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds that open calls may continue after SIGTERM."""
    log_format: LogFormat = "console"
    log_level: LogLevel = "info"
