"""``config-dump``: the resources of each client, by type, name and version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import ReadFlags  # noqa: TC001 - typer reads annotations at runtime

if TYPE_CHECKING:
    from rich.table import Table

SHORT_VERSION = 12
"""Characters of a version in a table."""


def config_dump(
    client: Annotated[
        str, typer.Option("--client", metavar="NODE", help="Only of this client (its node id).")
    ] = "",
    type_: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Only this type: CDS, EDS, LDS, RDS, RTDS, SDS, ECDS or POOL.",
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Only resources of this name; * stands for any part."
        ),
    ] = "",
    content: Annotated[
        bool,
        typer.Option("--content", help="With what they say, without secrets; YAML by default."),
    ] = False,
    *,
    flags: ReadFlags,
) -> None:
    """Show the resources of Envoys and pickers: versions sent and acknowledged, and their content.

    Keys, passwords, tokens and values of headers such as authorization are not shown.
    """
    import json

    from tidegate.cli.client import ask
    from tidegate.terminal.output import Output, emit

    answer = ask(flags, "GetConfig", client=client, type=type_, name=name, content=content)
    rows: list[dict[str, Any]] = [
        {
            "client": each.node,
            "kind": each.kind,
            "peer": each.peer,
            "type": one.type,
            "name": one.name,
            "state": one.state,
            "version": one.version or None,
            "version_acked": one.version_acked or None,
            **({"content": json.loads(one.json)} if one.json else {}),
        }
        for each in answer.clients
        for one in each.resources
    ]
    shown: list[Table | str] = [_table(rows) if rows else "no client has such a resource"]
    if answer.left_out:
        shown.append(f"{answer.left_out} more are left out; use --client, --type or --name")
    as_yaml = content and flags.output is Output.TABLE
    emit(rows, shown, Output.YAML if as_yaml else flags.output)


def _table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("client", "type", "name", "version", "state"),
        [
            (
                row["client"],
                row["type"],
                row["name"],
                (row["version"] or "removed")[:SHORT_VERSION],
                _state(row),
            )
            for row in rows
        ],
    )


def _state(row: dict[str, Any]) -> str:
    if row["state"] == "SYNCED":
        return "SYNCED"
    acked = row["version_acked"]
    return f"{row['state']}, has {acked[:SHORT_VERSION]}" if acked else str(row["state"])
