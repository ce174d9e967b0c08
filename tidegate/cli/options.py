"""Options that several verbs share."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from tidegate.terminal.output import Output
from tidegate_api.addresses import ADMIN_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_api.admin.v1.admin_pb2 import ChangeOptions

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
        metavar="HOST:PORT",
        help="Admin address of the control server (`tidegate xds --admin`).",
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
        help="Limit of --wait, seconds.",
    ),
]
ProtocolOption = Annotated[
    XdsProtocol, typer.Option("--protocol", help="xDS variant that Envoy speaks.")
]
LogFormatOption = Annotated[
    LogFormatName, typer.Option("--log-format", help="Log format (on stderr).")
]
LogLevelOption = Annotated[LogLevelName, typer.Option("--log-level", help="Lowest level to log.")]


@dataclass(frozen=True, slots=True)
class ReadFlags:
    """Options of every verb that asks the control server."""

    server: ServerOption = ADMIN_ADDRESS
    output: OutputOption = Output.TABLE


@dataclass(frozen=True, slots=True)
class ChangeFlags:
    """Options of every verb that changes the fleet."""

    reason: ReasonOption = ""
    author: AuthorOption = ""
    dry_run: DryRunOption = False
    wait: WaitOption = True
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S
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
        )


@dataclass(frozen=True, slots=True)
class LogFlags:
    """Options of every verb that runs a service."""

    log_format: LogFormatOption = LogFormatName.CONSOLE
    log_level: LogLevelOption = LogLevelName.INFO


BUNDLES: Final = (ReadFlags, ChangeFlags, LogFlags)


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
        if kind in BUNDLES:
            options = get_type_hints(kind, include_extras=True)
            bundles[name] = (kind, tuple(options))
            parameters += [
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default).replace(
                    annotation=options[field.name]
                )
                for field in fields(kind)
            ]
        else:
            parameters.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, (kind, options) in bundles.items():
            given[name] = kind(**{option: given.pop(option) for option in options})
        verb(**given)

    # What typer reads.
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def os_user() -> str:
    """Return the name of the OS user, ``unknown`` if the user id has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without an entry in passwd
        return "unknown"
