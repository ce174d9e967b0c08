"""Options of a control server about its operators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import Annotated

import typer

AdminOption = Annotated[
    str,
    typer.Option(
        "--admin",
        metavar="ADDRESS",
        help="Admin addresses of the control server: local (a Unix socket of this user), unix:PATH"
        " or IP:PORT; several with commas.",
    ),
]


@dataclass(frozen=True, slots=True)
class OperatorFlags:
    """How operators reach a control server, and who may do what."""

    admin_http: Annotated[
        str,
        typer.Option(
            "--admin-http",
            metavar="ADDRESS",
            help="Addresses of the admin API over HTTP with JSON; default: none.",
        ),
    ] = ""
    admin_host: Annotated[
        list[str] | None,
        typer.Option(
            "--admin-host",
            metavar="NAME",
            help="Host name by which HTTP clients call it, besides localhost and IP addresses,"
            " repeatable.",
        ),
    ] = None
    admin_group: Annotated[
        str | None,
        typer.Option(
            "--admin-group",
            metavar="GROUP",
            help="Group whose members may open Unix sockets, as operators; default: the user of the"
            " server alone.",
        ),
    ] = None
    admin_user: Annotated[
        list[str] | None,
        typer.Option(
            "--admin-user",
            metavar="ROLE=USER",
            help="Role (viewer, operator, admin) of a member of that group, repeatable.",
        ),
    ] = None
    admin_tokens: Annotated[
        Path | None,
        typer.Option(
            "--admin-tokens",
            metavar="FILE",
            help="File of the hashes of bearer tokens (`tidegate tokens`), read again when it"
            " changes.",
        ),
    ] = None
    audit: Annotated[
        Path | None,
        typer.Option(
            "--audit",
            metavar="DIR",
            help="Folder of the record of all admin calls; default: that of --state, or the log.",
        ),
    ] = None
