"""Options that several verbs share."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.terminal.output import Output

if TYPE_CHECKING:
    from tidegate_api.admin.v1.admin_pb2 import ChangeOptions

DEFAULT_SERVER: Final = "127.0.0.1:18010"
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_TIMEOUT_S: Final = 86_400.0


class XdsProtocol(StrEnum):
    """The xDS variant that Envoy speaks."""

    DELTA = "delta"
    SOTW = "sotw"


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


@dataclass(frozen=True, slots=True)
class ChangeFlags:
    """Options common to all changes."""

    server: str
    reason: str
    author: str
    dry_run: bool
    wait: bool
    timeout_s: float

    def to_proto(self) -> ChangeOptions:
        """Return the options as a message of the admin API."""
        from tidegate_api.admin.v1.admin_pb2 import ChangeOptions

        return ChangeOptions(
            author=self.author or os_user(),
            reason=self.reason,
            dry_run=self.dry_run,
            wait=self.wait and not self.dry_run,
            timeout_seconds=self.timeout_s,
        )


def os_user() -> str:
    """Return the name of the OS user, ``unknown`` if the user id has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without an entry in passwd
        return "unknown"
