"""``diff``: differences between two revisions, or between a file and the fleet in force."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.options import ReadFlags  # noqa: TC001 - typer reads annotations at runtime


def diff(
    old: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[OLD]", help="Revision; see `tidegate history`."),
    ] = None,
    new: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[NEW]", help="Revision; default: the one in force."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FLEET",
            help="Compare this fleet file with the fleet in force; `-` reads stdin.",
        ),
    ] = None,
    *,
    flags: ReadFlags,
) -> None:
    """Show the differences of two revisions, or what a fleet file would change."""
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.cli.verbs.files import dry_run, read_text
    from tidegate.terminal.output import emit
    from tidegate_api.admin.v1.admin_pb2 import DiffRequest

    if (old is None) == (fleet is None):
        raise typer.BadParameter("name a revision to compare from, or a file with -f")
    if fleet is not None:
        changes = dry_run(flags.server, *read_text(fleet), flags.tls, force=True)
    else:
        with admin(flags.server, flags.tls) as stub:
            asked = DiffRequest(old_revision=old or 0, new_revision=new or 0)
            changes = list(stub.Diff(asked, timeout=READ_TIMEOUT_S).changes)
    emit({"changes": changes}, ["\n".join(changes) or "no difference"], flags.output)
