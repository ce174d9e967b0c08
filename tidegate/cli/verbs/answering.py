"""``gateway``: answers questions about a whole fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tidegate.cli.options import (
    IdentityFlags,
    LogFlags,
    ServerNameOption,
    settings_of,
)
from tidegate_api.addresses import (
    ADS_ADDRESS,
    GATEWAY_ADMIN_ADDRESS,
    GATEWAY_ADMIN_GRPC_ADDRESS,
    GATEWAY_GRPC_ADDRESS,
    GATEWAY_HTTP_ADDRESS,
    GATEWAY_METRICS_ADDRESS,
)


@dataclass(frozen=True, slots=True)
class GatewayFlags:
    """Options of a gateway; ``GatewaySettings`` has their meaning."""

    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="HTTP address for Envoys.")
    ] = GATEWAY_HTTP_ADDRESS
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="HOST:PORT", help="gRPC address for Envoys.")
    ] = GATEWAY_GRPC_ADDRESS
    admin: Annotated[
        str,
        typer.Option(
            "--admin",
            metavar="HOST:PORT",
            help="HTTP address for operators: loads, unloads, trace and log settings of all"
            " replicas.",
        ),
    ] = GATEWAY_ADMIN_ADDRESS
    admin_grpc: Annotated[
        str,
        typer.Option("--admin-grpc", metavar="HOST:PORT", help="gRPC address for operators."),
    ] = GATEWAY_ADMIN_GRPC_ADDRESS
    xds: Annotated[
        str, typer.Option("--xds", metavar="HOST:PORT", help="ADS address of the control server.")
    ] = ADS_ADDRESS
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Address of metrics.")
    ] = GATEWAY_METRICS_ADDRESS
    id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="Unique name of this gateway.")
    ] = None
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.05, max=60, help="Time for replicas to answer, seconds."),
    ] = 5.0
    admin_timeout: Annotated[
        float,
        typer.Option(
            "--admin-timeout", min=1, max=3600, help="Time for a change of replicas, seconds."
        ),
    ] = 600.0
    ready_percent: Annotated[
        float,
        typer.Option(
            "--ready-percent",
            min=0.001,
            max=100,
            help="Share of each pool's replicas that must be usable for the server to be ready.",
        ),
    ] = 50.0
    drain: Annotated[
        float,
        typer.Option("--drain", min=0, max=3600, help="Time for open calls at shutdown, seconds."),
    ] = 10.0
    tls_server_name: ServerNameOption = ""
    admin_by_envoy: Annotated[
        bool,
        typer.Option(
            "--admin-by-envoy",
            help="Take changes of replicas from Envoys too, whose clients are operators by the"
            " certificate that Envoy names.",
        ),
    ] = False


def gateway(*, flags: GatewayFlags, identity: IdentityFlags, log: LogFlags) -> None:
    """Run a gateway, which answers questions about the fleet as one Triton would."""
    from gateway.__main__ import run
    from gateway.settings import GatewaySettings

    raise typer.Exit(run(settings_of(GatewaySettings, flags, identity, log)))
