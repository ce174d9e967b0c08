"""``up``: run a control server, a picker and Envoy for replicas that already run."""

from __future__ import annotations

import asyncio
import shlex
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ext_proc.settings import MAX_WORKERS
from ext_proc.workers.plan import PlanError, spread
from tidegate.cli.verbs.files import read_text
from tidegate.stack.addresses import Addresses, GatewayAddresses
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.local import LocalStack
from tidegate.stack.probes import server_answers
from tidegate.stack.processes.supervisor import Crash, CrashError
from tidegate.stack.processes.waiting import StackError
from tidegate.terminal.errors import FAILED, OK, USAGE, CliError
from tidegate.terminal.output import command_line, console
from tidegate_api.addresses import (
    GATEWAY_ADMIN_ADDRESS,
    GATEWAY_ADMIN_GRPC_ADDRESS,
    GATEWAY_METRICS_ADDRESS,
)
from tidegate_common.unix import is_unix, path_of, resolved
from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.model.fields import split_host_port

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from tidegate.stack.envoy import XdsProtocol
    from xds_server.fleet.model.fleet import Fleet

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """Options of ``up``; addresses are ``ip:port``."""

    fleet: Path
    ads: str
    admin: str
    envoy_admin: str
    metrics: str
    picker_metrics: str
    state: Path | None
    protocol: XdsProtocol


def plan_addresses(fleet: Fleet, options: UpOptions) -> Addresses:
    """Return the listen addresses, from the fleet and the options.

    If the fleet names several pickers, ``up`` starts one picker with a worker at each address.

    Raises:
        CliError: The fleet names no picker, or more than ``MAX_WORKERS``; or an option's value is
            no address.
    """
    pickers = fleet.pickers.addresses
    if not 1 <= len(pickers) <= MAX_WORKERS:
        raise CliError(
            f"the fleet names {len(pickers)} pickers but `up` starts 1 to {MAX_WORKERS}; start "
            "each process yourself with `tidegate xds`, `tidegate picker` and Envoy"
        )
    try:
        pages = spread("picker-metrics", options.picker_metrics, len(pickers))
    except PlanError as error:
        raise CliError(str(error), USAGE) from error
    named = {
        "--ads": options.ads,
        "--admin": options.admin,
        "--envoy-admin": options.envoy_admin,
        "--metrics": options.metrics,
    }
    for option, given in (*named.items(), *(("--picker-metrics", page) for page in pages)):
        try:
            if option == "--admin" and is_unix(given):
                path_of(given)
                continue
            split_host_port(f"{given[:-1]}1" if given.endswith(":0") else given)
        except ValueError:
            raise CliError(
                f"up: {option}: '{given}' is no address; write ip:port, for example"
                " 127.0.0.1:18000",
                USAGE,
            ) from None
    return Addresses(
        listener=fleet.listener.address,
        ads=options.ads,
        admin=resolved(options.admin),
        control_metrics=options.metrics,
        picker=pickers[0],
        more_pickers=tuple(pickers[1:]),
        more_picker_metrics=tuple(pages[1:]),
        picker_metrics=pages[0],
        envoy_admin=options.envoy_admin,
        gateway=_gateway(fleet),
    )


def _gateway(fleet: Fleet) -> GatewayAddresses | None:
    if fleet.gateway is None:
        return None
    given = fleet.gateway
    if len(given.http) + len(given.grpc) > 2:  # noqa: PLR2004 - one of each
        raise CliError(
            "the fleet names several gateways but `up` starts one; start each process yourself"
            " with `tidegate xds`, `tidegate picker`, `tidegate gateway` and Envoy"
        )
    return GatewayAddresses(
        given.http[0],
        given.grpc[0],
        GATEWAY_ADMIN_ADDRESS if given.operators is None else given.operators.http[0],
        GATEWAY_ADMIN_GRPC_ADDRESS if given.operators is None else given.operators.grpc[0],
        GATEWAY_METRICS_ADDRESS,
    )


async def run(options: UpOptions) -> int:
    """Start all processes, wait for SIGINT, SIGTERM or a crash, and return the exit code.

    Raises:
        CliError: The fleet file is invalid, or a process did not start.
    """
    text, source = read_text(str(options.fleet))
    try:
        fleet = load_text(text, source)
    except FleetError as error:
        raise CliError(str(error)) from error
    addresses = plan_addresses(fleet, options)
    if await server_answers(addresses.admin):
        raise CliError(
            f"up: a control server runs at {addresses.admin} already, and this shows its state:\n"
            f"{_shown(addresses.admin)}\n"
            "end it first, or give this one addresses of its own, --admin among them"
        )
    out = console()
    stack = LocalStack(
        replicas=(),
        fleet_file=options.fleet.resolve(),
        addresses=addresses,
        state=options.state,
        protocol=options.protocol,
        on_progress=lambda step, detail: out.print(f"{step}: {detail}", markup=False),
    )
    try:
        async with stack:
            crash = await _stay(out, stack)
    except (CrashError, StackError, ExtraMissingError) as error:
        raise CliError(str(error)) from error
    if crash is None:
        return OK
    console(stderr=True).print(f"tidegate: {crash}", markup=False, style="red")
    return FAILED


def _shown(admin: str) -> str:
    return shlex.join((*command_line(), "status", "--server", admin))


async def _stay(out: Console, stack: LocalStack) -> Crash | None:
    """Wait for a signal (``None``) or a crash."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    stack.keep_running(
        lambda crash: out.print(f"up: {crash.how}; it is started again", markup=False)
    )
    out.print(
        f"up: HTTP and gRPC at {stack.http_address}; edits of {stack.fleet_file} are applied; "
        f"logs are in {stack.run.logs}; Ctrl-C stops; this shows the state:\n"
        f"{_shown(stack.admin_address)}",
        markup=False,
        soft_wrap=True,
    )
    crashed = asyncio.create_task(stack.crashed())
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({crashed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return crashed.result() if crashed in done else None
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        for task in (crashed, stopped):
            task.cancel()
        await asyncio.gather(crashed, stopped, return_exceptions=True)
