"""Verbs that need no server: ``validate``, ``envoy-bootstrap``, ``certs`` and ``tokens``."""

from __future__ import annotations

import datetime as dt
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.mistakes import address, servers, some_servers
from tidegate.cli.options import ClientTlsFlags, OutputOption, ProtocolOption, XdsProtocol
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB
from tidegate.terminal.errors import CliError
from tidegate.terminal.output import Output, emit
from tidegate_api.addresses import ADS_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidegate.stack.envoy import BootstrapTls
    from tidegate_common.tls.rpc import ClientTls
    from xds_server.fleet.model.fleet import Fleet

MAX_FILE_BYTES = 4 * 2**20


class TokenRole(StrEnum):
    """What the holder of a token may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


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
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="OLD", help="Say what changes from this fleet file."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help="Say what changes from the fleet of this control server (its admin address).",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    *,
    tls: ClientTlsFlags,
) -> None:
    """Validate a fleet file without a server; every error names its line."""
    if schema:
        import json

        from xds_server.fleet.model.fleet import json_schema

        print(json.dumps(json_schema(), indent=2))
        return
    if fleet is None:
        raise typer.BadParameter("name a fleet file, or use --schema")
    if against is not None and server is not None:
        raise typer.BadParameter("compare with --against or with --server, not with both")
    from xds_server.fleet.members.origins import origins_of
    from xds_server.fleet.rules.warnings import picker_needs, warnings

    text, source = read_text(fleet)
    loaded = load(text, source)
    if envoy:
        hold_with_envoy(loaded, source)
    changes = None if server is None else dry_run(server, text, source, tls.tls)
    finds = [
        f"pool {pool.name} finds replicas: {key}"
        for pool in loaded.pools
        for key in origins_of(pool)
    ]
    if against is not None:
        from xds_server.fleet.diff import diff

        changes = list(diff(load(*read_text(against)), loaded))
    needs, warned = picker_needs(loaded), [*warnings(loaded), *missing_policies(loaded)]
    endpoints = sum(len(pool.endpoints) for pool in loaded.pools)
    if output is not Output.TABLE:
        found: dict[str, object] = {"source": source, "pools": len(loaded.pools)}
        found |= {"endpoints": endpoints, "envoy": envoy or None}
        found |= {
            "finds": finds,
            "needs_a_picker": list(needs),
            "warnings": warned,
            "changes": changes,
        }
        drained = None if changes is None else list(draining_fields(changes))
        emit(found | {"drains": drained}, [], output)
        return
    opinion = "; Envoy accepts it" if envoy else ""
    print(f"{source} is valid: {len(loaded.pools)} pools, {endpoints} endpoints{opinion}")
    sentences = [*(needs or ["no request needs a picker"]), *(f"warning: {one}" for one in warned)]
    print("\n".join(f"  {one}" for one in [*finds, *sentences]))
    if changes is not None:
        _print_changes(against or f"the fleet in force at {server}", changes)


def missing_policies(fleet: Fleet) -> list[str]:
    """Return a sentence for each policy of another package that is not installed here.

    Raises:
        CliError: An installed package offers a policy that no picker would take.
    """
    named = {
        (pool.name, policy)
        for pool in fleet.pools
        for policy in (pool.routing.policy, *pool.routing.allow_override)
        if "." in policy  # as of other packages alone
    }
    if not named:
        return []
    from ext_proc.packages import PackageError, load_policies

    try:
        installed = load_policies()
    except PackageError as error:
        raise CliError(str(error)) from error
    return [
        f"pool {pool} names the policy {policy}, which no package that is installed here offers:"
        " install it with each picker, or correct the name; pickers without it refuse the pool"
        for pool, policy in sorted(named)
        if policy not in installed
    ]


def hold_with_envoy(fleet: Fleet, source: str) -> None:
    """Let the installed Envoy validate a fleet's resources.

    Raises:
        CliError: No Envoy is installed, or it refuses the fleet.
    """
    from tidegate.cli import envoy_check

    binary = envoy_check.find_envoy()
    if binary is None:
        from tidegate.stack.assets import ExtraMissingError

        raise CliError(f"no Envoy is installed: {ExtraMissingError('Envoy', 'envoy')}")
    envoy_check.hold(fleet, source, binary)


def _print_changes(old: str, changes: Sequence[str]) -> None:
    print(f"changes from {old}:")
    for line in changes or ["no difference"]:
        print(f"  {line}")
    if changes and not draining_fields(changes):
        print("  drains no connection of the listener")


def dry_run(
    server: str, text: str, source: str, tls: ClientTls | None, *, force: bool = False
) -> list[str]:
    """Return what a fleet file would change at a control server; nothing is applied.

    ``force``: return it also where applying it would have to be forced.

    Raises:
        CliError: The server cannot be reached, or refuses the fleet.
    """
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate_api.admin.v1.admin_pb2 import ApplyRequest, ChangeOptions

    options = ChangeOptions(dry_run=True, force=force)
    request = ApplyRequest(fleet=text, source=source, options=options)
    with admin(server, tls) as stub:
        return list(stub.Apply(request, timeout=READ_TIMEOUT_S).changes)


def load(text: str, source: str) -> Fleet:
    """Return the fleet of a file's text.

    Raises:
        CliError: It is none; each error is named with its line.
    """
    from xds_server.fleet.load import FleetError, load_text

    try:
        return load_text(text, source)
    except FleetError as error:
        raise CliError(str(error)) from error


def draining_fields(changes: Iterable[str]) -> tuple[str, ...]:
    """Return the fields, named by lines of a difference, that drain the listener's connections."""
    from xds_server.fleet.diff import DRAINS

    lines = (line.removeprefix(DRAINS) for line in changes if line.startswith(DRAINS))
    return tuple(name for line in lines for name in line.split(", "))


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
    pickers: Annotated[
        str,
        typer.Option(
            "--pickers",
            metavar="HOST:PORT,...",
            callback=some_servers,
            help="Pickers that it asks before others, as those of its host or zone.",
        ),
    ] = "",
    xds: Annotated[
        str,
        typer.Option(
            "--xds",
            metavar="HOST:PORT,...",
            callback=servers,
            help="ADS address of the control server; of several, with commas, the one that leads"
            " is used.",
        ),
    ] = ADS_ADDRESS,
    admin: Annotated[
        str,
        typer.Option(
            "--admin", metavar="HOST:PORT", callback=address, help="Address of Envoy's admin page."
        ),
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
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            metavar="DIR",
            help="Folder for two small files that name the certificates' files, which Envoy then"
            " reads again when they change; needed with --tls-cert.",
        ),
    ] = None,
    *,
    tls: ClientTlsFlags,
) -> None:
    """Print a bootstrap file for Envoy, which receives all other configuration over ADS."""
    from tidegate.stack.envoy import render_bootstrap, secrets_of

    found = _bootstrap_tls(tls, secrets)
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
            pickers=pickers,
            tls=found,
        )
        if found is not None:
            found.folder.mkdir(parents=True, exist_ok=True)
            for name, content in secrets_of(found).items():
                found.folder.joinpath(name).write_text(content, "utf-8")
    except ValueError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"cannot write {error.filename}: {error.strerror}") from error
    sys.stdout.write(text)


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="DNS name or IP address of a server besides this machine's, repeatable.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="How long they are valid, days.")
    ] = 30,
    pickers: Annotated[
        list[str] | None,
        typer.Option(
            "--picker",
            metavar="ID",
            help="Id of a picker that has the role's certificate, repeatable; default: picker-1"
            " and picker-HOST.",
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replica",
            metavar="ID",
            help="Id of a replica for which the reporter's certificate speaks, repeatable.",
        ),
    ] = None,
) -> None:
    """Make a development authority and a certificate for each role, with `openssl`."""
    from tidegate.stack.certificates import CertificateError, make

    try:
        paths = make(folder, hosts or (), days, pickers=pickers or (), replicas=replicas or ())
    except CertificateError as error:
        raise CliError(str(error)) from error
    print("\n".join(map(str, paths)))


def tokens(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Token file; made with mode 0600 if missing.")
    ],
    name: Annotated[str, typer.Argument(help="Who the token is for; author of its changes.")],
    role: Annotated[
        TokenRole, typer.Option("--role", help="What its holder may do.")
    ] = TokenRole.VIEWER,
    days: Annotated[
        int | None,
        typer.Option("--days", min=1, max=3650, help="Days until it ends; default: it does not."),
    ] = None,
) -> None:
    """Make a token, print it once, and add its hash to the file of `tidegate xds --admin-tokens`.

    A second token of the same name is valid beside the first, until that line is deleted.
    """
    from xds_server.admin.access.tokens import TokensError, line_of, new_token, parse

    until = None if days is None else dt.datetime.now(dt.UTC).date() + dt.timedelta(days=days)
    made = new_token()
    try:
        line = line_of(name, role.value, made, until)
        known = file.read_text("utf-8") if file.exists() else ""
        parse(f"{known}\n{line}", str(file))
        _append(file, line if not known or known.endswith("\n") else f"\n{line}")
    except TokensError as error:
        raise CliError(str(error)) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{file} is no text (UTF-8)") from error
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error
    print(made)
    print(
        f"{file} has its hash; the token itself is kept nowhere: give it to {name} now",
        file=sys.stderr,
    )


def _append(file: Path, line: str) -> None:
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "a", encoding="utf-8") as out:
        out.write(f"{line}\n")


def _bootstrap_tls(tls: ClientTlsFlags, secrets: Path | None) -> BootstrapTls | None:
    """Return how Envoy reaches the control server; its files may be on another machine.

    Raises:
        CliError: Only some of the options are given, or a path is relative.
    """
    from tidegate.stack.envoy import BootstrapTls

    files = (tls.tls_cert, tls.tls_key, tls.tls_ca)
    if not any(files):
        return None
    if tls.tls_cert is None or tls.tls_key is None or tls.tls_ca is None or secrets is None:
        raise CliError(
            "--tls-cert, --tls-key, --tls-ca and --secrets belong together; give all four"
        )
    for path in (tls.tls_cert, tls.tls_key, tls.tls_ca, secrets):
        if not path.is_absolute():
            raise CliError(f"{path} is relative; give the absolute path that Envoy finds it by")
    return BootstrapTls(tls.tls_cert, tls.tls_key, tls.tls_ca, secrets, tls.tls_server_name)
