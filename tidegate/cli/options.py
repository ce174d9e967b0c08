"""Options that several verbs share."""

from __future__ import annotations

import getpass
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from tidegate.terminal.errors import CliError
from tidegate.terminal.output import Output
from tidegate_api.addresses import ADMIN_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_api.admin.v1.admin_pb2 import ChangeOptions
    from tidegate_common.tls.rpc import ClientTls

DEFAULT_TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 86_400.0


class XdsProtocol(StrEnum):
    """The xDS variant that Envoy speaks."""

    DELTA = "delta"
    SOTW = "sotw"


class LogFormatName(StrEnum):
    """How the services log."""

    CONSOLE = "console"
    JSON = "json"


class LogLevelName(StrEnum):
    """The least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="TIDEGATE_SERVER",
        metavar="ADDRESS",
        help="Admin address of the control server (`tidegate xds --admin`): HOST:PORT, unix:PATH,"
        " or local, the socket of this user.",
    ),
]
AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        metavar="ADDRESS",
        help="Admin addresses of the control server: local (a Unix socket of this user), unix:PATH"
        " or IP:PORT; several with commas.",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the history.")
]
AuthorOption = Annotated[
    str,
    typer.Option("--author", metavar="NAME", help="Author, recorded; default: the OS user."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it anew every 2 s, until Ctrl-C.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Validate and show the changes; apply nothing.")
]
WaitOption = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait until every client has acknowledged the change."),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        max=MAX_TIMEOUT_S,
        metavar="SECONDS",
        help="Seconds after which it ends without an answer.",
    ),
]
ProtocolOption = Annotated[
    XdsProtocol, typer.Option("--protocol", help="xDS variant that Envoy speaks.")
]
LogFormatOption = Annotated[
    LogFormatName, typer.Option("--log-format", help="Log format (on stderr).")
]
LogLevelOption = Annotated[LogLevelName, typer.Option("--log-level", help="Lowest level to log.")]


CertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert", envvar="TIDEGATE_TLS_CERT", metavar="FILE", help="Own certificate (PEM)."
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", envvar="TIDEGATE_TLS_KEY", metavar="FILE", help="Its key (PEM)."),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="TIDEGATE_TLS_CA",
        metavar="FILE",
        help="Authorities that sign peers' certificates (PEM).",
    ),
]
ServerNameOption = Annotated[
    str,
    typer.Option(
        "--tls-server-name",
        envvar="TIDEGATE_TLS_SERVER_NAME",
        metavar="NAME",
        help="Name in the server's certificate, if it is not the host of its address.",
    ),
]


@dataclass(frozen=True, slots=True)
class ClientTlsFlags:
    """Options of every verb that is a client of one of the services."""

    tls_cert: CertOption = None
    tls_key: KeyOption = None
    tls_ca: CaOption = None
    tls_server_name: ServerNameOption = ""

    @property
    def tls(self) -> ClientTls | None:
        """How to connect; ``None`` = without TLS.

        Raises:
            CliError: Only some of the files are given, or they cannot be used.
        """
        from tidegate_common.tls.files import TlsError, TlsFiles
        from tidegate_common.tls.rpc import ClientTls

        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if not any(files):
            return None
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            raise CliError("--tls-cert, --tls-key and --tls-ca belong together; give all three")
        try:
            return ClientTls.of(
                TlsFiles(self.tls_cert, self.tls_key, self.tls_ca), self.tls_server_name
            )
        except TlsError as error:
            raise CliError(str(error)) from error


@dataclass(frozen=True, slots=True)
class ReadFlags(ClientTlsFlags):
    """Options of every verb that asks the control server."""

    server: ServerOption = ADMIN_ADDRESS
    output: OutputOption = Output.TABLE


@dataclass(frozen=True, slots=True)
class WatchFlags(ReadFlags):
    """Options of every verb that shows what is now."""

    watch: WatchOption = False


@dataclass(frozen=True, slots=True)
class ChangeFlags(ClientTlsFlags):
    """Options of every verb that changes the fleet."""

    reason: ReasonOption = ""
    author: AuthorOption = ""
    dry_run: DryRunOption = False
    wait: WaitOption = True
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S
    based_on: Annotated[
        int,
        typer.Option(
            "--based-on",
            min=0,
            metavar="REVISION",
            help="Revision that you have seen: refused if another one is in force; 0 = any.",
        ),
    ] = 0
    server: ServerOption = ADMIN_ADDRESS
    output: OutputOption = Output.TABLE

    def to_proto(self) -> ChangeOptions:
        """Return the options as the admin API takes them."""
        from tidegate_api.admin.v1.admin_pb2 import ChangeOptions

        return ChangeOptions(
            author=self.author or os_user(),
            reason=self.reason,
            dry_run=self.dry_run,
            wait=self.wait and not self.dry_run,
            timeout_seconds=self.timeout,
            based_on=self.based_on,
        )


@dataclass(frozen=True, slots=True)
class ForcedFlags(ChangeFlags):
    """Options of every verb that can take replicas out of use."""

    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Even if it takes a variant's last usable replica or undoes what others set.",
        ),
    ] = False

    def to_proto(self) -> ChangeOptions:
        """Return the options as the admin API takes them."""
        options = ChangeFlags.to_proto(self)
        options.force = self.force
        return options


@dataclass(frozen=True, slots=True)
class LogFlags:
    """Options of every verb that runs a service."""

    log_format: LogFormatOption = LogFormatName.CONSOLE
    log_level: LogLevelOption = LogLevelName.INFO


def expand_bundles(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with an option for each field of the bundles that it takes.

    A parameter ``change: ChangeFlags`` becomes ``--reason``, ``--author`` and so on, in its place;
    the verb gets the bundle.
    """
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[Parameter] = []
    bundles: dict[str, tuple[type, tuple[str, ...]]] = {}
    for name, parameter in signature(verb).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            options = get_type_hints(kind, include_extras=True)
            bundles[name] = (kind, tuple(options))
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default).replace(
                    annotation=options[field.name]
                )
                for field in sorted(fields(kind), key=_is_of_tls)
            ]
        else:
            parameters.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, (kind, options) in bundles.items():
            given[name] = kind(**{option: given.pop(option) for option in options})
        if any(isinstance(each, WatchFlags) and each.watch for each in given.values()):
            from tidegate.cli.watching import repeat

            repeat(partial(verb, **given))
            return
        verb(**given)

    # What typer reads.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _is_of_tls(field: Field[Any]) -> bool:
    """Sort key: a help page shows options of TLS after the others of a bundle."""
    return field.name.startswith("tls_")


def os_user() -> str:
    """Return the name of the OS user, ``unknown`` if the user id has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without an entry in passwd
        return "unknown"
