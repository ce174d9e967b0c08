"""``top``: pools, variants and replicas at a glance, refreshed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import ReadFlags  # noqa: TC001 - typer reads annotations at runtime
from tidegate.cli.top.model import Sort

if TYPE_CHECKING:
    from tidegate.cli.top.model import Glance

PIPED_WIDTH = 100
"""Width in columns if the output is no terminal."""


def top(
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Only this pool.")] = "",
    sort: Annotated[Sort, typer.Option("--sort", help="Order of the rows at first.")] = Sort.NAME,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.5, max=60, metavar="SECONDS", help="Time between looks."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once, also on a terminal.")
    ] = False,
    *,
    flags: ReadFlags,
) -> None:
    """Show pools, variants and replicas on the whole terminal: requests, errors, times, states.

    Keys: q quits, s changes the order, r reverses it. Without a terminal it prints once.
    """
    from tidegate.cli.top.screen import screen
    from tidegate.terminal.output import Output, emit

    def look() -> Glance:
        return _look(flags, pool)

    if flags.output is not Output.TABLE:
        found = look()
        data = {
            **found._asdict(),
            "variants": [each._asdict() for each in found.variants],
            "replicas": [each._asdict() for each in found.replicas],
        }
        emit(data, (), flags.output)
    elif once or not sys.stdout.isatty():
        print("\n".join(screen(look(), _width(), 0, sort)))
    else:
        from tidegate.cli.top.loop import Terminal, follow

        look()  # a wrong address is said on the first screen
        with Terminal() as terminal:
            follow(look, terminal, sort, interval)


def _look(flags: ReadFlags, pool: str) -> Glance:
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.cli.mistakes import close
    from tidegate.cli.top.model import glance
    from tidegate.cli.verbs.reading import replica_states
    from tidegate.terminal.errors import CliError
    from tidegate_api.admin.v1 import admin_pb2 as api

    with admin(flags.server, flags.tls) as stub:
        status = stub.GetStatus(api.GetStatusRequest(), timeout=READ_TIMEOUT_S)
        replicas = replica_states(stub, READ_TIMEOUT_S)
    names = [each.pool for each in status.pools]
    if pool and pool not in names:
        raise CliError(f"no pool '{pool}'; {close(pool, names)}")
    return glance(status, replicas, pool)


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((PIPED_WIDTH, 0)).columns
