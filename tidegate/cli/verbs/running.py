"""Verbs that keep running: ``demo``, ``up``, the services; and ``envoy-stop``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.mistakes import address, addresses, page
from tidegate.cli.options import (
    AdminOption,
    ClientTlsFlags,
    LogFlags,
    ProtocolOption,
    XdsProtocol,
)
from tidegate.stack.bounds import STOP_PAUSE_S, STOP_TIMEOUT_S
from tidegate_api.addresses import (
    ADMIN_ADDRESS,
    ADS_ADDRESS,
    CONTROL_METRICS_ADDRESS,
    PICKER_METRICS_ADDRESS,
)

if TYPE_CHECKING:
    from ext_proc.settings import PickerSettings
    from gateway.settings import GatewaySettings
    from xds_server.settings import ControlSettings

MIN_REPLICAS = 3
"""Two replicas of the stable variant and one of the canary."""
MAX_REPLICAS = 8


def demo(
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            min=MIN_REPLICAS,
            max=MAX_REPLICAS,
            help="Number of Triton replicas; the last one is the canary.",
        ),
    ] = 3,
    requests: Annotated[
        int,
        typer.Option(
            "--requests", min=1000, max=1_000_000, help="Requests per phase, approximately."
        ),
    ] = 1000,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Exit after the phases, with 0 if all passed.")
    ] = False,
    protocol: ProtocolOption = XdsProtocol.DELTA,
) -> None:
    """Run the whole system on this machine with real Triton, Envoy and traffic."""
    import asyncio

    from tidegate.stack.assets import ExtraMissingError
    from tidegate.stack.envoy import envoy_binary
    from tidegate.stack.tritons.replica import find_triton
    from tidegate.terminal.errors import CliError

    try:
        find_triton()
        envoy_binary()
    except ExtraMissingError as error:
        raise CliError(str(error)) from None
    # Imported after the check: the demo's clients import packages of the extra.
    from tidegate.demo.run import DemoOptions, run

    options = DemoOptions(
        replicas=replicas, requests=requests, stay=not exit_, protocol=protocol.value
    )
    raise typer.Exit(asyncio.run(run(options)))


def up(
    fleet: Annotated[Path, typer.Option("--file", "-f", metavar="FLEET", help="Fleet file.")],
    ads: Annotated[
        str, typer.Option("--ads", metavar="HOST:PORT", help="ADS address of the control server.")
    ] = ADS_ADDRESS,
    admin: AdminOption = ADMIN_ADDRESS,
    envoy_admin: Annotated[
        str,
        typer.Option("--envoy-admin", metavar="HOST:PORT", help="Address of Envoy's admin page."),
    ] = "127.0.0.1:19000",
    metrics: Annotated[
        str,
        typer.Option("--metrics", metavar="HOST:PORT", help="Metrics of the control server."),
    ] = CONTROL_METRICS_ADDRESS,
    picker_metrics: Annotated[
        str,
        typer.Option(
            "--picker-metrics",
            metavar="HOST:PORT",
            help="Metrics of the picker; its further workers have the next ports.",
        ),
    ] = PICKER_METRICS_ADDRESS,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Folder of revisions; default: memory only."),
    ] = None,
    protocol: ProtocolOption = XdsProtocol.DELTA,
) -> None:
    """Run a control server, a picker and Envoy for running replicas, until Ctrl-C."""
    import asyncio

    from tidegate.cli.verbs.up import UpOptions, run

    options = UpOptions(
        fleet=fleet,
        ads=ads,
        admin=admin,
        envoy_admin=envoy_admin,
        metrics=metrics,
        picker_metrics=picker_metrics,
        state=state,
        protocol=protocol.value,
    )
    raise typer.Exit(asyncio.run(run(options)))


def xds(settings: ControlSettings) -> None:
    """Run the control server, which configures Envoys and pickers over ADS."""
    from xds_server.__main__ import run

    raise typer.Exit(run(settings))


def picker(
    settings: PickerSettings,
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet",
            metavar="FLEET",
            help="Fleet file, watched: the picker then runs without a control server, for proxies"
            " that have their own configuration.",
        ),
    ] = None,
    dns: Annotated[
        list[str] | None,
        typer.Option(
            "--dns",
            metavar="IP:PORT",
            help="Name server for replicas by name, repeatable; default: /etc/resolv.conf.",
        ),
    ] = None,
    require_pick: Annotated[
        bool | None,
        typer.Option(
            "--require-pick/--allow-unpicked",
            help="Refuse requests without a pick with 503, or leave them to the proxy; default:"
            " refuse with --fleet, else leave.",
        ),
    ] = None,
) -> None:
    """Run a picker, which selects the replica of each request for Envoy."""
    required = fleet is not None if require_pick is None else require_pick
    settings = settings.model_copy(update={"require_pick": required})
    if fleet is not None:
        from tidegate.picker.run import run as run_with_fleet

        raise typer.Exit(run_with_fleet(fleet, settings, dns or ()))
    if dns:
        from tidegate.terminal.errors import CliError

        raise CliError("--dns needs --fleet: the control server finds replicas otherwise")
    from ext_proc.__main__ import run

    raise typer.Exit(run(settings))


def gateway(settings: GatewaySettings) -> None:
    """Run a gateway, which answers questions about the fleet as one Triton would."""
    from gateway.__main__ import run

    raise typer.Exit(run(settings))


def reporter(
    endpoint: Annotated[
        str,
        typer.Option("--endpoint", metavar="ID", help="Endpoint id of the replica in the fleet."),
    ],
    pickers: Annotated[
        list[str],
        typer.Option(
            "--picker",
            metavar="HOST:PORT",
            callback=addresses,
            help="Address of a picker; repeatable.",
        ),
    ],
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics", metavar="URL", callback=page, help="Metrics page of the replica."
        ),
    ] = "http://127.0.0.1:8002/metrics",
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.01, max=10, help="Interval of scrapes, seconds."),
    ] = 0.05,
    *,
    tls: ClientTlsFlags,
    log: LogFlags,
) -> None:
    """Push a replica's metrics to pickers when they change; run it beside the replica."""
    import asyncio

    from tidegate.reporter.run import ReporterOptions, run
    from tidegate_common import logs

    logs.configure(log.log_format.value, log.log_level.value)
    options = ReporterOptions(endpoint, metrics, tuple(pickers), interval, tls.tls)
    raise typer.Exit(asyncio.run(run(options)))


def envoy_stop(
    admin: Annotated[
        str,
        typer.Option(
            "--admin", metavar="HOST:PORT", callback=address, help="Address of Envoy's admin page."
        ),
    ] = "127.0.0.1:19000",
    pause: Annotated[
        float,
        typer.Option(
            "--pause",
            min=0,
            max=600,
            help="Time in which new connections are still taken, while load balancers learn that"
            " this Envoy goes, seconds.",
        ),
    ] = STOP_PAUSE_S,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=1, max=86_400, help="Most time in all, the pause included, seconds."
        ),
    ] = STOP_TIMEOUT_S,
) -> None:
    """Take an Envoy out of service and wait until it is idle: then SIGTERM cuts no answer.

    For hooks that stop Envoy, which exits at once at SIGTERM. It is left running.
    """
    from tidegate.stops.envoy import admin_page, leave
    from tidegate.terminal.errors import UNFINISHED, UNREACHABLE, CliError

    try:
        left = leave(admin_page(admin), pause, timeout)
    except (OSError, ValueError) as error:
        raise CliError(
            f"cannot ask Envoy's admin page at {admin}: {error}; name the address that its"
            " bootstrap file has as `admin`",
            UNREACHABLE,
        ) from error
    if left.active:
        raise CliError(
            f"{left.active} requests are still active after {timeout:g} s, and a stop now cuts"
            " them; new connections are refused. Repeat the command to wait on",
            UNFINISHED,
        )
    print("Envoy has ended" if left.ended else "Envoy is idle: stopping it cuts no answer")
