"""Verbs that need no server: ``validate`` and ``envoy-bootstrap``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import ProtocolOption, XdsProtocol
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB
from tidegate.terminal.errors import CliError
from tidegate_api.addresses import ADS_ADDRESS

MAX_FILE_BYTES = 4 * 2**20


def read_text(name: str) -> tuple[str, str]:
    """Read a fleet file, or stdin for ``-``; return its text and its name in messages.

    Raises:
        CliError: The file cannot be read, is not UTF-8 text or is larger than 4 MiB.
    """
    source = "<stdin>" if name == "-" else name
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise CliError(f"{source} is larger than {MAX_FILE_BYTES} bytes; is it a fleet file?")
        return raw.decode("utf-8"), source
    except OSError as error:
        raise CliError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{source} is not UTF-8 text (byte {error.start})") from error


def validate(
    fleet: Annotated[
        str | None, typer.Argument(metavar="[FLEET]", help="Fleet file; `-` reads stdin.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of fleet files and exit.")
    ] = False,
    envoy: Annotated[
        bool, typer.Option("--envoy", help="Also validate with the installed Envoy.")
    ] = False,
) -> None:
    """Validate a fleet file without a server; every error names its line."""
    if schema:
        import json

        from xds_server.fleet.model.json_schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return
    if fleet is None:
        raise typer.BadParameter("name a fleet file, or use --schema")
    from xds_server.fleet.load import FleetError, load_text
    from xds_server.fleet.rules.picker_needs import picker_needs
    from xds_server.fleet.rules.warnings import warnings

    text, source = read_text(fleet)
    try:
        loaded = load_text(text, source)
    except FleetError as error:
        raise CliError(str(error)) from error
    if envoy:
        from tidegate.cli import envoy_check

        binary = envoy_check.find_envoy()
        if binary is None:
            from tidegate.stack.assets import ExtraMissingError

            raise CliError(f"no Envoy is installed: {ExtraMissingError('Envoy', 'envoy')}")
        envoy_check.hold(loaded, source, binary)
    endpoints = sum(len(pool.endpoints) for pool in loaded.pools)
    opinion = "; Envoy accepts it" if envoy else ""
    print(f"{source} is valid: {len(loaded.pools)} pools, {endpoints} endpoints{opinion}")
    for sentence in picker_needs(loaded) or ["no request needs a picker"]:
        print(f"  {sentence}")
    for sentence in warnings(loaded):
        print(f"  warning: {sentence}")


def envoy_bootstrap(
    node_id: Annotated[
        str, typer.Option("--node-id", metavar="NAME", help="Unique name of this Envoy.")
    ] = "envoy-1",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Cluster name of this Envoy.")
    ] = "tidegate",
    node_group: Annotated[
        str,
        typer.Option(
            "--node-group", metavar="NAME", help="Group of Envoys that try changes before all."
        ),
    ] = "",
    xds: Annotated[
        str, typer.Option("--xds", metavar="HOST:PORT", help="ADS address of the control server.")
    ] = ADS_ADDRESS,
    admin: Annotated[
        str, typer.Option("--admin", metavar="HOST:PORT", help="Address of Envoy's admin page.")
    ] = "127.0.0.1:19000",
    protocol: ProtocolOption = XdsProtocol.DELTA,
    max_heap: Annotated[
        int,
        typer.Option("--max-heap", metavar="MIB", help="Bound of Envoy's heap, in MiB."),
    ] = MAX_HEAP_MIB,
    max_connections: Annotated[
        int,
        typer.Option("--max-connections", metavar="N", help="Bound of clients' connections."),
    ] = MAX_CONNECTIONS,
) -> None:
    """Print a bootstrap file for Envoy, which receives all other configuration over ADS."""
    from tidegate.stack.envoy import render_bootstrap

    try:
        text = render_bootstrap(
            node_id,
            cluster,
            xds,
            admin,
            protocol.value,
            max_heap_mib=max_heap,
            max_connections=max_connections,
            node_group=node_group,
        )
    except ValueError as error:
        raise CliError(str(error)) from error
    sys.stdout.write(text)
