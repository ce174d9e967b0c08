"""``bench``: measure Tidegate and other routers; needs a checkout."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at runtime
from typing import Annotated

import typer

from tidegate.cli import laboratory
from tidegate.terminal.errors import USAGE, CliError
from tidegate.terminal.output import console


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...",
            help="Suites: throughput, overhead, picker, fleet, real, abuse, control, scale;"
            " default: all.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Long form (hours) or short form (minutes).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder of results; default: build/bench."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=100, help="Seeds 0 to N-1; default: 1, with --full 3."),
    ] = None,
    contenders: Annotated[
        str, typer.Option("--contenders", metavar="A,B,...", help="Routers; default: all.")
    ] = "",
    workloads: Annotated[
        str,
        typer.Option("--workloads", metavar="A,B,...", help="Workloads of `fleet`; default: all."),
    ] = "",
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            metavar="A,B,...",
            help="Policies of `real`; default: auto, round-robin, least-in-flight.",
        ),
    ] = "",
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=2, help="Length of one run of `fleet`, seconds."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option("--scale", min=0.1, max=100, help="Emulated seconds per second in `fleet`."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard stored runs of `fleet`.")] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Measure nothing; rewrite the report.")
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option("--docs", metavar="FILE", help="Also write the verdicts into this page."),
    ] = None,
) -> None:
    """Measure Tidegate and other routers and write a report. Needs a checkout."""
    run = laboratory.load("bench.run", "bench", "make bench")
    try:
        options = run.BenchOptions(
            suites=tuple(suites or ()),
            full=full,
            out=out,
            seeds=seeds,
            contenders=_names(contenders),
            workloads=_names(workloads),
            policies=_names(policies),
            seconds=seconds,
            scale=scale,
            fresh=fresh,
            report_only=report_only,
            docs=docs,
        )
    except run.UsageError as error:
        raise CliError(str(error), USAGE) from None
    code: int = run.run(options, console(stderr=True))
    if code:
        raise typer.Exit(code)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
