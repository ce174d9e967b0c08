"""The verb ``doctor``: examines the machine, the fleet's files and replicas, running services."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.mistakes import addresses
from tidegate.cli.options import (  # noqa: TC001 - typer reads annotations at runtime
    ClientTlsFlags,
    OutputOption,
)
from tidegate.terminal.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text

    from tidegate.doctor.diagnosis import Diagnosis
    from tidegate_common.tls.rpc import ClientTls
    from xds_server.fleet.model.fleet import Fleet

_ABOUT_ENVOY = "Admin address of an Envoy to examine, repeatable (`--admin` of its bootstrap)."


def doctor(
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", "-f", metavar="FLEET", help="Fleet file; `-` reads stdin."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            envvar="TIDEGATE_SERVER",
            metavar="ADDRESS",
            help="Admin address of a running control server to examine.",
        ),
    ] = None,
    envoys: Annotated[
        list[str] | None,
        typer.Option("--envoy", metavar="HOST:PORT", callback=addresses, help=_ABOUT_ENVOY),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Folder of `tidegate xds --state`."),
    ] = None,
    output: OutputOption = Output.TABLE,
    *,
    tls: ClientTlsFlags,
) -> None:
    """Examine this machine, a fleet's files and replicas, and services; name each fix.

    Run it where Envoy and the picker run: they see the same addresses and files.
    """
    from tidegate.doctor.diagnosis import Level
    from tidegate.terminal.output import emit, spinner

    with spinner("examining"):
        found = list(_examine(fleet, server, envoys or [], state, tls.tls))
    faults = sum(each.level is Level.FAULT for each in found)
    data: dict[str, Any] = {
        "faults": faults,
        "risks": len(found) - faults,
        "findings": [each._asdict() | {"level": each.level.value} for each in found],
    }
    emit(data, _shown(found, faults), output)
    if faults:
        raise typer.Exit(1)


def _shown(found: list[Diagnosis], faults: int) -> list[Table | str | Text]:
    from rich.text import Text

    shown: list[Table | str | Text] = [
        Text(f"{each.level.value}: {each.about} {each.says}\n  fix: {each.fix}") for each in found
    ]
    if not found:
        return ["nothing is wrong with what was examined"]
    return [*shown, f"{_count(faults, 'fault')}, {_count(len(found) - faults, 'risk')}"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _examine(
    fleet: str | None,
    server: str | None,
    envoys: list[str],
    state: Path | None,
    tls: ClientTls | None,
) -> Iterator[Diagnosis]:
    from tidegate.doctor import host

    loaded = None if fleet is None else _loaded(fleet)
    facts = host.read_host()
    yield from host.judge_host(facts, loaded)
    if state is not None:
        yield from host.judge_state(host.read_state(state))
    if loaded is not None:
        yield from _of_fleet(loaded)
    if server is not None:
        yield from _of_server(server, tls)
    for each in envoys:
        yield from _of_envoy(each, facts.cpus)


def _loaded(name: str) -> Fleet:
    from tidegate.cli.verbs.files import load, read_text

    return load(*read_text(name))


def _of_fleet(fleet: Fleet) -> Iterator[Diagnosis]:
    import asyncio

    from tidegate.doctor import certificates, replicas
    from tidegate.doctor.diagnosis import risk
    from xds_server.fleet.rules.warnings import warnings

    for each in warnings(fleet):
        yield risk("the fleet file", f"warns: {each}", "see `tidegate validate`")
    for files in certificates.files_of(fleet):
        yield from certificates.examine(files)
    yield from asyncio.run(replicas.examine(fleet))


def _of_server(server: str, tls: ClientTls | None) -> Iterator[Diagnosis]:
    from tidegate.cli import views
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.doctor.diagnosis import fault
    from tidegate.doctor.services import judge_status
    from tidegate.terminal.errors import CliError
    from tidegate_api.admin.v1.admin_pb2 import GetStatusRequest

    try:
        with admin(server, tls) as stub:
            answer = stub.GetStatus(GetStatusRequest(), timeout=READ_TIMEOUT_S)
    except CliError as error:
        what, _, fix = error.message.partition("; ")
        yield fault(server, f"cannot be asked: {what}", fix or "look at its log")
        return
    yield from judge_status(views.status(answer), server)


def _of_envoy(address: str, cpus: int) -> Iterator[Diagnosis]:
    import asyncio

    from tidegate.doctor.diagnosis import fault
    from tidegate.doctor.services import judge_envoy, read_envoy

    try:
        facts = asyncio.run(read_envoy(address))
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        yield fault(
            f"Envoy at {address}",
            f"does not show its admin page: {reason}"[:300],
            "start it, or name the address that its bootstrap file has as `admin`",
        )
        return
    yield from judge_envoy(facts, address, cpus)
