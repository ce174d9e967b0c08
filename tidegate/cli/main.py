"""The ``tidegate`` command: its verbs, their order and examples, and the exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from tidegate.cli.mistakes import WRONG_USE, sentence
from tidegate.cli.options import expand_bundles
from tidegate.cli.services import with_settings
from tidegate.cli.verbs import (
    benching,
    changing,
    explaining,
    files,
    reading,
    running,
    simulating,
    status,
    tuning,
)
from tidegate.cli.verbs.loading import model
from tidegate.cli.verbs.look import doctoring, dumping, topping
from tidegate.cli.verbs.rollouts import canary
from tidegate.terminal.errors import FAILED, USAGE, CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

app = typer.Typer(
    name="tidegate",
    help="An inference router for NVIDIA Triton: Envoy proxies, Tidegate picks the replica.",
    epilog="Start with: tidegate demo",
    no_args_is_help=True,
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


class Verb(NamedTuple):
    """A verb of the command line."""

    name: str
    panel: str
    run: Callable[..., None]
    example: str
    settings: str = ""
    """Settings of the service that it runs, ``module:Class``; empty = it runs none."""


VERBS: Final = (
    Verb("demo", _RUN, running.demo, "tidegate demo --replicas 3 --exit"),
    Verb("up", _RUN, running.up, "tidegate up -f fleet.yaml"),
    Verb(
        "xds",
        _RUN,
        running.xds,
        "tidegate xds --fleet fleet.yaml --state /var/lib/tidegate",
        "xds_server.settings:ControlSettings",
    ),
    Verb(
        "picker",
        _RUN,
        running.picker,
        "tidegate picker --xds 127.0.0.1:18000 --id picker-1",
        "ext_proc.settings:PickerSettings",
    ),
    Verb(
        "gateway",
        _RUN,
        running.gateway,
        "tidegate gateway --xds 127.0.0.1:18000",
        "gateway.settings:GatewaySettings",
    ),
    Verb(
        "reporter",
        _RUN,
        running.reporter,
        "tidegate reporter --endpoint r1 --picker 10.0.0.2:18001",
    ),
    Verb(
        "envoy-bootstrap",
        _RUN,
        files.envoy_bootstrap,
        "tidegate envoy-bootstrap --node-id edge-1 > envoy.yaml",
    ),
    Verb("envoy-stop", _RUN, running.envoy_stop, "tidegate envoy-stop --timeout 300"),
    Verb("certs", _RUN, files.certs, "tidegate certs /etc/tidegate/certs --host 10.0.0.2"),
    Verb("tokens", _RUN, files.tokens, "tidegate tokens /etc/tidegate/tokens ann --role operator"),
    Verb("get", _READ, reading.get, "tidegate get endpoints -o json"),
    Verb("status", _READ, status.status, "tidegate status --check"),
    Verb("top", _READ, topping.top, "tidegate top --pool llm --sort errors"),
    Verb("history", _READ, reading.history, "tidegate history -n 5"),
    Verb("diff", _READ, reading.diff, "tidegate diff 7 9"),
    Verb("explain", _READ, explaining.explain, "tidegate explain --pool llm --not r2"),
    Verb("request", _READ, explaining.request, "tidegate request 7f3c1d90"),
    Verb(
        "config-dump", _READ, dumping.config_dump, "tidegate config-dump --type CDS --name 'llm/*'"
    ),
    Verb(
        "doctor",
        _READ,
        doctoring.doctor,
        "tidegate doctor -f fleet.yaml --server 127.0.0.1:18001 --envoy 127.0.0.1:19000",
    ),
    Verb("validate", _READ, files.validate, "tidegate validate fleet.yaml"),
    Verb(
        "simulate",
        _READ,
        simulating.simulate,
        "tidegate simulate --trace sessions --policies round-robin,prefix-affinity --seeds 3",
    ),
    Verb("bench", _READ, benching.bench, "tidegate bench throughput --quick"),
    Verb("apply", _CHANGE, changing.apply, "tidegate apply -f fleet.yaml --reason 'more replicas'"),
    Verb("weight", _CHANGE, changing.weight, "tidegate weight llm stable=90 canary=10"),
    Verb("canary", _CHANGE, canary.canary, "tidegate canary start llm --to v2"),
    Verb("breaker", _CHANGE, tuning.breaker, "tidegate breaker llm max-requests=512"),
    Verb(
        "slow-start", _CHANGE, tuning.slow_start, "tidegate slow-start llm window=60s aggression=2"
    ),
    Verb("shed", _CHANGE, tuning.shed, "tidegate shed llm 25 --reason 'overload'"),
    Verb("drain", _CHANGE, changing.drain, "tidegate drain r2 --timeout 120 --reason 'new driver'"),
    Verb("undrain", _CHANGE, changing.undrain, "tidegate undrain r2"),
    Verb("promote", _CHANGE, changing.promote, "tidegate promote r9 --reason 'more load'"),
    Verb("demote", _CHANGE, changing.demote, "tidegate demote r9"),
    Verb("model", _CHANGE, model.model, "tidegate model load llm ocr --version 3 --timeout 300"),
    Verb("confirm", _CHANGE, changing.confirm, "tidegate confirm llm"),
    Verb("rollback", _CHANGE, changing.rollback, "tidegate rollback 7 --reason 'v2 is slower'"),
)
"""All verbs, in the order of the help page."""


def _listed(verb: Verb) -> Callable[..., None]:
    """Return what the list of verbs needs of a verb."""
    if not verb.settings:
        return expand_bundles(verb.run)

    def run() -> None:
        """Stand for the verb until it is asked for."""

    run.__doc__ = verb.run.__doc__
    return run


for _one in VERBS:
    app.command(_one.name, rich_help_panel=_one.panel, epilog=f"Example: {_one.example}")(
        _listed(_one)
    )


def complete(words: Collection[str] | None = None) -> typer.Typer:
    """Return the command line with all options of the verbs in ``words``; ``None`` = of all."""
    for verb, known in zip(VERBS, app.registered_commands, strict=True):
        if verb.settings and (words is None or verb.name in words):
            known.callback = with_settings(verb.run, verb.settings)
    return app


EXAMPLES: Final = {verb.name: verb.example for verb in VERBS}
TRACEBACK: Final = "TIDEGATE_TRACEBACK"
"""Environment variable: if set, an error of ours shows where it happened."""
COMPLETION: Final = "_TIDEGATE_COMPLETE"
"""Environment variable by which a shell asks for completions."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and raise ``SystemExit``: a code of ``terminal.errors``, 130 Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    complete(None if COMPLETION in os.environ else words)
    try:
        code = app(args=argv, prog_name="tidegate", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except CliError as error:
        _say(error.message)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`head`, a pager) closed the pipe; suppress the second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except WRONG_USE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]  # of typer, which does not export it
        else:
            _say(sentence(error, EXAMPLES))
        sys.exit(USAGE)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        _say(
            f"an error of the program itself: {type(error).__name__}: {error}; set {TRACEBACK}=1 to"
            " see where, and report it"
        )
        sys.exit(FAILED)


def _say(message: str) -> None:
    print(f"tidegate: {message}", file=sys.stderr)
