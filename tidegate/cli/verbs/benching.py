"""``bench``: measure Tidegate beside its peers, from a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate.cli.errors import USAGE, CliError
from tidegate.cli.output import console

ROOT: Final = Path(__file__).resolve().parents[3]


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...",
            help="throughput, overhead, picker, fleet, real, control, scale; default: all.",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="The long form: two hours, not minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Results and report; default: build/bench."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, max=100, help="Seeds 0 to N-1; default 1, long form 3."),
    ] = None,
    contenders: Annotated[
        str, typer.Option("--contenders", metavar="A,B,...", help="Only these routers.")
    ] = "",
    workloads: Annotated[
        str, typer.Option("--workloads", metavar="A,B,...", help="Only these of the suite fleet.")
    ] = "",
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=2, help="Length of a run of the suite fleet.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option("--scale", min=0.1, max=100, help="Emulated seconds per second, same suite."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Drop runs of the suite fleet that are there already.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report of earlier results anew.")
    ] = False,
    docs: Annotated[
        Path | None,
        typer.Option("--docs", metavar="FILE", help="Write the results into this page as well."),
    ] = None,
) -> None:
    """Measure Tidegate and other routers side by side, and report (docs/performance.md)."""
    run = _load()
    try:
        options = run.Options(
            suites=tuple(suites or ()),
            full=full,
            out=out,
            seeds=seeds,
            contenders=_names(contenders),
            workloads=_names(workloads),
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


def _load() -> Any:
    """Return the module ``bench.run`` of the checkout that this code runs from.

    Raises:
        CliError: There is no checkout, or an extra is not installed.
    """
    if not (ROOT / "bench" / "run.py").is_file():
        raise CliError("the bench is not part of the package: run it from a checkout, make bench")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("bench.run")
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is missing: pip install -e '.[demo,bench]' in {ROOT}"
        ) from None
