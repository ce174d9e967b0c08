"""The ``tidegate`` command: its verbs, their order and examples, and the exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from tidegate.cli.options import expand_bundles
from tidegate.cli.verbs import (
    benching,
    changing,
    comparing,
    explaining,
    files,
    reading,
    running,
    simulating,
    tuning,
)
from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

app = typer.Typer(
    name="tidegate",
    help="An inference router for NVIDIA Triton: Envoy proxies, Tidegate picks the replica.",
    epilog="Start with: tidegate demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_RUN = "Run"
_READ = "Inspect"
_CHANGE = "Change"


def _version(show: bool) -> None:
    if show:
        from importlib.metadata import version

        print(f"tidegate {version('tidegate')}")
        raise typer.Exit


@app.callback()
def _root(
    _show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """An inference router for NVIDIA Triton: Envoy proxies, Tidegate picks the replica."""


class _Verb(NamedTuple):
    name: str
    panel: str
    run: Callable[..., None]
    example: str


VERBS: Final = (
    _Verb("demo", _RUN, running.demo, "tidegate demo --replicas 3 --exit"),
    _Verb("up", _RUN, running.up, "tidegate up -f fleet.yaml"),
    _Verb("xds", _RUN, running.xds, "tidegate xds --fleet fleet.yaml --state /var/lib/tidegate"),
    _Verb("picker", _RUN, running.picker, "tidegate picker --xds 127.0.0.1:18000 --id picker-1"),
    _Verb(
        "reporter",
        _RUN,
        running.reporter,
        "tidegate reporter --endpoint r1 --picker 10.0.0.2:18001",
    ),
    _Verb(
        "envoy-bootstrap",
        _RUN,
        files.envoy_bootstrap,
        "tidegate envoy-bootstrap --node-id edge-1 > envoy.yaml",
    ),
    _Verb("get", _READ, reading.get, "tidegate get endpoints -o json"),
    _Verb("status", _READ, reading.status, "tidegate status"),
    _Verb("history", _READ, reading.history, "tidegate history -n 5"),
    _Verb("diff", _READ, comparing.diff, "tidegate diff 7 9"),
    _Verb("explain", _READ, explaining.explain, "tidegate explain --pool llm --not r2"),
    _Verb("validate", _READ, files.validate, "tidegate validate fleet.yaml"),
    _Verb(
        "simulate",
        _READ,
        simulating.simulate,
        "tidegate simulate --trace sessions --policies round-robin,prefix-affinity --seeds 3",
    ),
    _Verb("bench", _READ, benching.bench, "tidegate bench throughput --quick"),
    _Verb(
        "apply", _CHANGE, changing.apply, "tidegate apply -f fleet.yaml --reason 'more replicas'"
    ),
    _Verb("weight", _CHANGE, changing.weight, "tidegate weight llm stable=90 canary=10"),
    _Verb("breaker", _CHANGE, tuning.breaker, "tidegate breaker llm max-requests=512"),
    _Verb(
        "slow-start", _CHANGE, tuning.slow_start, "tidegate slow-start llm window=60s aggression=2"
    ),
    _Verb("shed", _CHANGE, tuning.shed, "tidegate shed llm 25 --reason 'overload'"),
    _Verb(
        "drain", _CHANGE, changing.drain, "tidegate drain r2 --timeout 120 --reason 'new driver'"
    ),
    _Verb("undrain", _CHANGE, changing.undrain, "tidegate undrain r2"),
    _Verb("rollback", _CHANGE, changing.rollback, "tidegate rollback 7 --reason 'v2 is slower'"),
)
"""All verbs, in the order of the help page."""

for _one in VERBS:
    app.command(_one.name, rich_help_panel=_one.panel, epilog=f"Example: {_one.example}")(
        expand_bundles(_one.run)
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and raise ``SystemExit``: 0 success, 1 failure, 2 usage, 130 Ctrl-C."""
    try:
        app(args=argv, prog_name="tidegate")
    except CliError as error:
        print(f"tidegate: {error.message}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a pager) closed the pipe; suppress the second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
