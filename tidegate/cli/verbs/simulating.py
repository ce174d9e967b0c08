"""``simulate``: routing policies on a fleet in simulated time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.errors import USAGE, CliError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.simulate.experiment import Plan, Result
    from tidegate.simulate.report import Report
    from tidegate.simulate.scenario import Scenario
    from tidegate.simulate.workload import Workload

DEFAULT_POLICIES = "round-robin,least-in-flight,prefix-affinity,oracle"
MAX_SEEDS = 100
WIDTH = 170
"""Columns of the table where the output is no terminal."""


class OutputForm(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


def simulate(
    trace: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="FILE|GENERATOR",
            help="A Mooncake (.jsonl) or Azure (.csv) trace, or one of: shared-prefix, sessions,"
            " bursts, mixed.",
        ),
    ],
    policies: Annotated[
        str,
        typer.Option("--policies", metavar="A,B,...", help="Policies, or 'all'; see the docs."),
    ] = DEFAULT_POLICIES,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=10_000)] = 8,
    load: Annotated[
        str,
        typer.Option(
            "--load", metavar="X,...", help="Shares of what least-in-flight sustains, or 'trace'."
        ),
    ] = "0.65,0.9",
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="R,...", help="Requests per second, in place of --load."),
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MAX_SEEDS)] = 5,
    requests: Annotated[
        int | None,
        typer.Option("--requests", min=10, max=1_000_000, help="Only the first N, or N generated."),
    ] = None,
    against: Annotated[
        str, typer.Option("--against", metavar="POLICY", help="Compare with it; default: first.")
    ] = "",
    slo: Annotated[
        float | None,
        typer.Option("--slo", min=0.001, help="Limit of a first token, s; default: from prompts."),
    ] = None,
    slow: Annotated[int, typer.Option("--slow", min=0, help="Replicas at half speed.")] = 0,
    slow_unknown: Annotated[
        bool, typer.Option("--slow-unknown", help="The fleet file does not say which are slow.")
    ] = False,
    join_at: Annotated[
        float | None, typer.Option("--join-at", help="A replica joins cold, at this second.")
    ] = None,
    fail_at: Annotated[
        float | None, typer.Option("--fail-at", help="A replica dies for 60 s, at this second.")
    ] = None,
    brake_at: Annotated[
        float | None,
        typer.Option("--brake-at", help="A replica has a quarter of its speed for 60 s."),
    ] = None,
    slow_start: Annotated[
        float, typer.Option("--slow-start", min=0, help="Ramp window, seconds.")
    ] = 0.0,
    telemetry: Annotated[
        float, typer.Option("--telemetry", min=0, help="Seconds between readings; 0 = none.")
    ] = 1.0,
    telemetry_delay: Annotated[
        float, typer.Option("--telemetry-delay", min=0, help="Age of a reading on arrival, s.")
    ] = 0.1,
    freeze_at: Annotated[
        float | None, typer.Option("--freeze-at", help="Readings stand still from this second on.")
    ] = None,
    freeze: Annotated[float, typer.Option("--freeze", min=0.1, help="For so many seconds.")] = 30.0,
    pickers: Annotated[
        int, typer.Option("--pickers", min=1, max=64, help="Pickers that share readings only.")
    ] = 1,
    cache_blocks: Annotated[
        int, typer.Option("--cache-blocks", min=1, help="512-token blocks a replica can cache.")
    ] = 3_000,
    prefill_rate: Annotated[
        float, typer.Option("--prefill-rate", min=1, help="Prompt tokens per second of a replica.")
    ] = 8_000.0,
    warmup: Annotated[
        float, typer.Option("--warmup", min=0, max=0.99, help="Share not measured at the start.")
    ] = 0.1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, max=256, help="Processes.")] = 1,
    output: Annotated[
        OutputForm, typer.Option("--output", "-o", help="How to print.")
    ] = OutputForm.TABLE,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page (extra: simulate).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Write plots (extra: simulate).")
    ] = None,
) -> None:
    """Compare routing policies on a trace, through the picker's own code in simulated time."""
    from tidegate.simulate.engine import Engine
    from tidegate.simulate.experiment import CalibrationError
    from tidegate.simulate.plots import PlotsMissingError, require_matplotlib
    from tidegate.simulate.scenario import Scenario, ScenarioError
    from tidegate.simulate.traces import TraceError

    try:
        if html or png:
            require_matplotlib()
        scenario = Scenario(
            replicas=replicas,
            engine=Engine(prefill_rate=prefill_rate, cache_blocks=cache_blocks),
            slow_replicas=slow,
            capacities_known=not slow_unknown,
            join_at_s=join_at,
            fail_at_s=fail_at,
            brake_at_s=brake_at,
            telemetry_s=telemetry,
            telemetry_delay_s=telemetry_delay,
            slow_start_s=slow_start,
            freeze_at_s=freeze_at,
            freeze_s=freeze,
            pickers=pickers,
            warmup=warmup,
        )
        report = _run(
            _workload(trace, requests, replicas),
            scenario,
            names=_policies(policies),
            loads=None if load == "trace" else _numbers("--load", load),
            rates=_numbers("--rate", rate) if rate else None,
            seeds=seeds,
            slo_s=slo,
            against=against,
            processes=jobs,
        )
    except (TraceError, ScenarioError, CalibrationError, PlotsMissingError) as error:
        raise CliError(str(error)) from None
    _write(report, output, html, png)


def _workload(trace: str, requests: int | None, replicas: int) -> Workload:
    from random import Random

    from tidegate.simulate.generators import DEFAULT_JOBS, GENERATORS, PACE_PER_REPLICA
    from tidegate.simulate.traces import read_trace

    if trace in GENERATORS:
        # One generated workload for all seeds: what differs is the arrivals and the chance.
        rng = Random(0)  # noqa: S311 - repeatable
        return GENERATORS[trace](requests or DEFAULT_JOBS, rng, PACE_PER_REPLICA * replicas)
    if "." not in trace:
        raise CliError(f"--trace: no file and none of {', '.join(GENERATORS)}: {trace}", USAGE)
    workload = read_trace(Path(trace))
    return workload if requests is None else workload.first(requests)


def _policies(text: str) -> list[str]:
    from tidegate.simulate.choosers.registry import names

    known = names()
    wanted = known if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise CliError(
            f"--policies: {', '.join(unknown) or 'none'} unknown; use: {', '.join(known)}", USAGE
        )
    return list(dict.fromkeys(wanted))


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < 1e6 for number in numbers):  # noqa: PLR2004 - sane
        raise CliError(f"{option}: {text!r} is not a list of positive numbers", USAGE)
    return numbers


def _run(
    workload: Workload,
    scenario: Scenario,
    *,
    names: Sequence[str],
    loads: Sequence[float] | None,
    rates: Sequence[float] | None,
    seeds: int,
    slo_s: float | None,
    against: str,
    processes: int,
) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tidegate.cli.output import console
    from tidegate.simulate.experiment import default_slo, run_many, saturation
    from tidegate.simulate.report import build

    if against and against not in names:
        raise CliError(f"--against: {against} is not among the policies that run", USAGE)
    limit = default_slo(workload, scenario) if slo_s is None else slo_s
    _fits(workload, scenario)
    err = console(stderr=True)
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*bars, console=err, disable=not err.is_terminal, transient=True) as progress:
        sustained: float | None = None
        paces: list[tuple[float | None, float | None]] = [(None, None)]
        if rates is not None:
            paces = [(None, each) for each in rates]
        elif loads is not None:
            task = progress.add_task("finding saturation", total=None)
            sustained = saturation(
                workload, scenario, limit, on_probe=lambda: progress.advance(task)
            )
            progress.remove_task(task)
            paces = [(each, each * sustained) for each in loads]
        plans = _plans(names, paces, seeds)
        shown = progress.add_task("simulating", total=len(plans))

        def note(result: Result) -> None:
            progress.update(shown, advance=1, description=result.plan.policy)

        results = run_many(
            workload,
            scenario,
            plans,
            limit,
            processes=processes,
            on_done=note,
        )
    return build(
        workload,
        scenario,
        results,
        slo_s=limit,
        saturation=sustained,
        against=against or names[0],
    )


def _plans(
    names: Sequence[str], paces: Sequence[tuple[float | None, float | None]], seeds: int
) -> list[Plan]:
    from tidegate.simulate.experiment import Plan

    return [
        Plan(name, seed, rate, load)
        for load, rate in paces
        for name in names
        for seed in range(seeds)
    ]


def _fits(workload: Workload, scenario: Scenario) -> None:
    engine = scenario.engine
    for job in workload.jobs:
        need = -(-(job.input_tokens + job.output_tokens) // engine.block_tokens)
        if need > engine.cache_blocks:
            raise CliError(
                f"request {job.index} of {workload.name} needs {need} cache blocks;"
                f" give at least that by --cache-blocks (now {engine.cache_blocks})"
            )


def _write(report: Report, output: OutputForm, html: Path | None, png: Path | None) -> None:
    import json
    import sys

    from rich.console import Console

    from tidegate.simulate.report import as_json, headline, tables

    try:
        if html is not None:
            from tidegate.simulate.page import page

            html.write_text(page(report), encoding="utf-8")
        if png is not None:
            from tidegate.simulate.plots import write_pngs

            write_pngs(report, png)
    except OSError as error:
        raise CliError(f"{error.filename}: {error.strerror}") from None
    if output is OutputForm.JSON:
        sys.stdout.write(json.dumps(as_json(report), indent=2) + "\n")
        return
    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    out.print(headline(report))
    for table in tables(report):
        out.print()
        out.print(table)
