"""Implementation of ``tidegate simulate``: runs one experiment and writes its report."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bench.engine import EngineConfig
from bench.simulate.experiment import (
    CalibrationError,
    Result,
    RunPlan,
    default_slo,
    run_many,
    saturation,
)
from bench.simulate.generators import DEFAULT_JOBS, GENERATORS, PACE_PER_REPLICA
from bench.simulate.page import page
from bench.simulate.plots import PlotsMissingError, require_matplotlib, write_pngs
from bench.simulate.report import as_json, build, headline, tables
from bench.simulate.scenario import Scenario, ScenarioError
from bench.simulate.schedulers.registry import names
from bench.simulate.traces import TraceError, read_trace
from ext_proc.packages import PackageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.report import Report
    from bench.simulate.workload import Workload

__all__ = [
    "FAILURES",
    "EngineConfig",
    "OptionError",
    "Scenario",
    "SimulationOptions",
    "require_matplotlib",
    "simulate",
    "write",
]

FAILURES: Final = (TraceError, ScenarioError, CalibrationError, PlotsMissingError, PackageError)
"""Errors whose messages say what to do."""
WIDTH: Final = 170
"""Width of the tables in columns if the output is not a terminal."""


class OptionError(ValueError):
    """An invalid option; the message names it."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of an experiment, without the fleet."""

    trace: str
    """Path of a trace file, or name of a generator."""
    policies: str
    """Comma-separated names, or ``all``."""
    loads: Sequence[float] | None
    """Fractions of the saturation rate; ``None``: the trace's own arrival times."""
    rates: Sequence[float] | None
    """Requests per second; replaces ``loads``."""
    seeds: int
    requests: int | None
    """Number of requests from the trace's start, or generated; ``None``: all, or the default."""
    against: str
    """Baseline policy; empty: the first one."""
    slo_s: float | None
    """TTFT limit, seconds; ``None``: derived from the prompts."""
    processes: int


def simulate(options: SimulationOptions, scenario: Scenario, err: Console) -> Report:
    """Run an experiment and show its progress on ``err`` if that is a terminal.

    Raises:
        OptionError: The trace or a policy does not exist.
        TraceError: The trace cannot be read.
        ScenarioError: A request does not fit into a replica's cache.
        CalibrationError: No saturation rate was found.
    """
    workload = _workload(options, scenario.replicas)
    policies = _policies(options.policies)
    against = options.against or policies[0]
    if against not in policies:
        raise OptionError(f"--against: {against} is not among the policies that run")
    limit = default_slo(workload, scenario) if options.slo_s is None else options.slo_s
    _fits(workload, scenario)
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*bars, console=err, disable=not err.is_terminal, transient=True) as progress:
        sustained: float | None = None
        paces: list[tuple[float | None, float | None]] = [(None, None)]
        if options.rates is not None:
            paces = [(None, each) for each in options.rates]
        elif options.loads is not None:
            task = progress.add_task("finding saturation", total=None)
            sustained = saturation(
                workload, scenario, limit, on_probe=lambda: progress.advance(task)
            )
            progress.remove_task(task)
            paces = [(each, each * sustained) for each in options.loads]
        plans = [
            RunPlan(name, seed, rate, load)
            for load, rate in paces
            for name in policies
            for seed in range(options.seeds)
        ]
        shown = progress.add_task("simulating", total=len(plans))

        def note(result: Result) -> None:
            progress.update(shown, advance=1, description=result.plan.policy)

        results = run_many(
            workload, scenario, plans, limit, processes=options.processes, on_done=note
        )
    return build(workload, scenario, results, slo_s=limit, saturation=sustained, against=against)


def write(report: Report, *, as_data: bool, html: Path | None, png: Path | None) -> None:
    """Print a report, as JSON or as tables, and write its page and plots.

    Raises:
        OSError: A file cannot be written.
    """
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
    if png is not None:
        write_pngs(report, png)
    if as_data:
        sys.stdout.write(json.dumps(as_json(report), indent=2) + "\n")
        return
    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    out.print(headline(report))
    for table in tables(report):
        out.print()
        out.print(table)


def _workload(options: SimulationOptions, replicas: int) -> Workload:
    trace, requests = options.trace, options.requests
    if trace in GENERATORS:
        # One generated workload for all seeds; seeds change arrival times and random choices.
        rng = Random(0)  # noqa: S311 - repeatable
        return GENERATORS[trace](requests or DEFAULT_JOBS, rng, PACE_PER_REPLICA * replicas)
    if "." not in trace:
        near = difflib.get_close_matches(trace, GENERATORS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"--trace: no file and none of {', '.join(GENERATORS)}: {trace}{hint}")
    workload = read_trace(Path(trace))
    return workload if requests is None else workload.first(requests)


def _policies(text: str) -> list[str]:
    known = names()
    wanted = known if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        near = difflib.get_close_matches(unknown[0], known, 1) if unknown else []
        hint = f"did you mean {near[0]}?" if near else f"use: {', '.join(known)}"
        raise OptionError(f"--policies: {', '.join(unknown) or 'none'} unknown; {hint}")
    return list(dict.fromkeys(wanted))


def _fits(workload: Workload, scenario: Scenario) -> None:
    engine = scenario.engine
    for job in workload.jobs:
        need = -(-(job.input_tokens + job.output_tokens) // engine.block_tokens)
        if need > engine.cache_blocks:
            raise ScenarioError(
                f"request {job.index} of {workload.name} needs {need} cache blocks;"
                f" give at least that by --cache-blocks (now {engine.cache_blocks})"
            )
