"""Verbs that stay: ``demo``, ``up``, ``xds``, ``picker``, ``reporter``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import ProtocolOption, XdsProtocol

MIN_REPLICAS = 3
"""Two stable ones to choose between, and the canary."""
MAX_REPLICAS = 8


class LogFormat(StrEnum):
    """How the services log."""

    CONSOLE = "console"
    JSON = "json"


class Transport(StrEnum):
    """What carries the picker's gRPC."""

    AUTO = "auto"
    GRPC = "grpc"
    NGHTTP2 = "nghttp2"


class LogLevel(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How to log (stderr).")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Least level to log.")]
FleetOption = Annotated[Path, typer.Option("--fleet", metavar="FLEET", help="The fleet file.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where revisions are kept; memory if omitted."),
]


def demo(
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=MIN_REPLICAS,
            max=MAX_REPLICAS,
            help="Tritons; the last is the canary.",
        ),
    ] = 3,
    requests: Annotated[
        int,
        typer.Option("--requests", min=1000, max=1_000_000, help="Scales the traffic."),
    ] = 1000,
    exit_: Annotated[
        bool, typer.Option("--exit", help="End after the phases; exit 0 only if all held.")
    ] = False,
    protocol: ProtocolOption = XdsProtocol.DELTA,
) -> None:
    """Run the whole system on this machine: real Triton, real Envoy, real traffic."""
    import asyncio

    from tidegate.stack.assets import DemoExtraMissingError
    from tidegate.stack.envoy import envoy_binary
    from tidegate.stack.tritons.replica import find_triton
    from tidegate.terminal.errors import CliError

    try:
        find_triton()
        envoy_binary()
    except DemoExtraMissingError as error:
        raise CliError(str(error)) from None
    # Only now: the demo's clients need the extra to be imported at all.
    from tidegate.demo.run import DemoOptions, run

    options = DemoOptions(
        replicas=replicas, requests=requests, stay=not exit_, protocol=protocol.value
    )
    raise typer.Exit(asyncio.run(run(options)))


def up(
    fleet: Annotated[Path, typer.Option("--file", "-f", metavar="FLEET", help="The fleet file.")],
    ads: Annotated[
        str, typer.Option("--ads", metavar="HOST:PORT", help="ADS address.")
    ] = "127.0.0.1:18000",
    admin: Annotated[
        str, typer.Option("--admin", metavar="HOST:PORT", help="Admin address.")
    ] = "127.0.0.1:18010",
    envoy_admin: Annotated[
        str, typer.Option("--envoy-admin", metavar="HOST:PORT", help="Envoy's own admin page.")
    ] = "127.0.0.1:19000",
    state: StateOption = None,
    protocol: ProtocolOption = XdsProtocol.DELTA,
) -> None:
    """Start control server, picker and Envoy for replicas that already run; stay up."""
    import asyncio

    from tidegate.cli.verbs.up import UpOptions, run

    options = UpOptions(
        fleet=fleet,
        ads=ads,
        admin=admin,
        envoy_admin=envoy_admin,
        state=state,
        protocol=protocol.value,
    )
    raise typer.Exit(asyncio.run(run(options)))


def xds(
    fleet: FleetOption,
    ads: Annotated[
        str, typer.Option("--ads", metavar="HOST:PORT", help="Where Envoys and pickers connect.")
    ] = "127.0.0.1:18000",
    admin: Annotated[
        str, typer.Option("--admin", metavar="HOST:PORT", help="Where operators connect.")
    ] = "127.0.0.1:18010",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Where Prometheus scrapes.")
    ] = "127.0.0.1:18080",
    state: StateOption = None,
    log_format: LogFormatOption = LogFormat.CONSOLE,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run the control server: it feeds Envoys and pickers over ADS."""
    from xds_server.__main__ import main

    arguments = [
        *("--fleet", str(fleet)),
        *("--ads", ads),
        *("--admin", admin),
        *("--metrics", metrics),
        *(("--state", str(state)) if state else ()),
        *("--log-format", log_format.value),
        *("--log-level", log_level.value),
    ]
    raise typer.Exit(main(arguments))


def picker(
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=1,
            max=64,
            help="Processes that decide as one picker, each on a port of its own, counted up.",
        ),
    ] = 1,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where Envoys ask.")
    ] = "127.0.0.1:18001",
    xds_: Annotated[
        str, typer.Option("--xds", metavar="HOST:PORT", help="ADS address of the control server.")
    ] = "127.0.0.1:18000",
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Where Prometheus scrapes.")
    ] = "127.0.0.1:18081",
    name: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="Name of this picker, unique.")
    ] = None,
    zone: Annotated[
        str,
        typer.Option(
            "--zone",
            envvar="TIDEGATE_ZONE",
            metavar="NAME",
            help="Where this picker stands, for pools that prefer their own zone.",
        ),
    ] = "",
    transport: Annotated[
        Transport,
        typer.Option(
            "--transport",
            help="What carries gRPC: grpc (grpc.aio), or nghttp2, which costs a third of its CPU"
            " and needs tidegate\\[fast]; auto is nghttp2 where that is installed.",
        ),
    ] = Transport.AUTO,
    scrape_interval: Annotated[
        float,
        typer.Option(
            "--scrape-interval", min=0.05, max=60, help="Seconds between two scrapes of a replica."
        ),
    ] = 0.25,
    otlp: Annotated[
        str | None,
        typer.Option(
            "--otlp",
            metavar="HOST:PORT",
            help="OpenTelemetry collector (OTLP/HTTP, usually port 4318) for spans of decisions;"
            " needs tidegate\\[otel].",
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option("--drain", min=0, max=3600, help="Seconds that streams may take at the end."),
    ] = 10.0,
    log_format: LogFormatOption = LogFormat.CONSOLE,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run a picker: it tells Envoy which replica gets each request."""
    from ext_proc.__main__ import main

    arguments = [
        *("--workers", str(workers)),
        *("--listen", listen),
        *("--xds", xds_),
        *("--metrics", metrics),
        *(("--id", name) if name else ()),
        *(("--zone", zone) if zone else ()),
        *("--transport", transport.value),
        *("--scrape-interval", str(scrape_interval)),
        *(("--otlp", otlp) if otlp else ()),
        *("--drain", str(drain)),
        *("--log-format", log_format.value),
        *("--log-level", log_level.value),
    ]
    raise typer.Exit(main(arguments))


def reporter(
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="ID", help="Id of the replica in the fleet file.")
    ],
    pickers: Annotated[
        list[str],
        typer.Option("--picker", metavar="HOST:PORT", help="A picker; repeat for each."),
    ],
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="URL", help="The replica's metrics page.")
    ] = "http://127.0.0.1:8002/metrics",
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.01, max=10, help="Seconds between two looks."),
    ] = 0.05,
    log_format: LogFormatOption = LogFormat.CONSOLE,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run beside a replica: push what its metrics page says to the pickers as it changes."""
    import asyncio

    from tidegate.reporter.run import ReporterOptions, run
    from tidegate_common import logs

    logs.configure(log_format.value, log_level.value)
    options = ReporterOptions(endpoint, metrics, tuple(pickers), interval)
    raise typer.Exit(asyncio.run(run(options)))
