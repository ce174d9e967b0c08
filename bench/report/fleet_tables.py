"""Tables and charts of the suite ``fleet``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.report.parts import UNKNOWN, Bars, Table, grouped, median, name_missing, number, span
from bench.suites.summary import median_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.report.parts import ReportSection


def write_fleet(suite: Mapping[str, Any], section: ReportSection) -> None:
    """Add text, tables and charts of the suite to its section."""
    section.text.append(
        f"{suite['replicas']} emulated replicas, runs of {suite['seconds']:g} s, the first"
        f" {suite['warmup']:.0%} of the requests not measured. Times are emulated seconds; the"
        " routers' clocks are not scaled, so relative to the replicas every router decides and"
        " learns slower by that factor. `in time` counts failed requests as late."
    )
    name_missing(suite, section)
    _runs(suite, section)
    heads = (
        *("contender", "runs", "TTFT mean", "p50", "p90", "p99", "e2e mean", "e2e p50", "e2e p90"),
        *("e2e p99", "in time", "hits", "spread", "errors before / in answers", "late ms"),
        "busy cores",
    )
    plain = [row for row in suite["rows"] if not row["fault"]]
    for (workload, load), rows in grouped(plain, "workload", "load").items():
        about = suite["workloads"][workload]
        title = (
            f"{workload}, {load:.0%} = {rows[0]['rate']:.3g} requests/s, {about['scale']:g} times"
            f" faster than real time, TTFT limit {about['slo_s']:.3g} s"
        )
        section.tables.append(Table(title, heads, _fleet_lines(rows)))
        for key, what in (("mean", "mean"), ("p99", "p99")):
            bars = {}
            for (name,), runs in grouped(rows, "contender").items():
                if (value := median_of(runs, "ttft", key)) is not None:
                    bars[name] = value
            section.plots.append(
                Bars(f"TTFT {what}, {workload} at {load:.0%}", "emulated seconds", bars)
            )
    faulty = [row for row in suite["rows"] if row["fault"]]
    for (fault,), rows in grouped(faulty, "fault").items():
        what = {
            "kill": "a replica is killed and returns with an empty cache",
            "slow": "a replica runs at a quarter of its speed from 40 % of the run on",
            "hang": "a replica is suspended for a while with its connections open",
        }[fault]
        title = f"Fault: {what} ({rows[0]['workload']}, {rows[0]['load']:.0%})"
        section.tables.append(Table(title, heads, _fleet_lines(rows)))
        if any("phase" in row for row in rows):
            title = f"The same, requests from the fault on ({fault})"
            section.tables.append(Table(title, _PHASE_HEADS, _phase_lines(rows)))


_PHASE_HEADS = ("contender", "runs", "TTFT mean", "p50", "p99", "e2e mean", "p99", "in time")


def _phase_lines(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    lines = []
    for (name,), all_runs in grouped(rows, "contender").items():
        runs = [run for run in all_runs if "phase" in run]
        in_time = median_of(runs, "phase", "goodput")
        lines.append(
            (
                name,
                str(len(runs)),
                *(span(median_of(runs, "phase", "ttft", key)) for key in ("mean", "p50", "p99")),
                *(span(median_of(runs, "phase", "e2e", key)) for key in ("mean", "p99")),
                UNKNOWN if in_time is None else f"{in_time['median']:.1%}",
            )
        )
    return lines


def _runs(suite: Mapping[str, Any], section: ReportSection) -> None:
    """Add the number, dates and commits of the runs, and the number of missing runs."""
    rows = suite["rows"]
    commits = {row["commit"]: None for row in rows if "commit" in row}
    if commits:
        dates = sorted(row["date"] for row in rows)
        took = sum(row["took_s"] for row in rows) / 60
        same = ", whose code is the same" if len(commits) > 1 else ""
        section.text.append(
            f"{len(rows)} runs, {took:.0f} minutes in total, {dates[0]} to {dates[-1]}, at"
            f" {', '.join(commits)}{same}; the same command resumes the suite"
            f" ({suite['journal']})."
        )
    if suite.get("left"):
        section.text.append(f"{suite['left']} runs are missing.")
    section.text.extend(f"FAILED: {each}" for each in suite.get("broken", ()))


def _fleet_lines(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    lines = []
    for (name,), runs in grouped(rows, "contender").items():
        before = sum(run["failed_before"] for run in runs)
        begun = sum(run["failed_begun"] for run in runs)
        in_time = median_of(runs, "goodput")
        hits = median_of(runs, "hit_ratio")
        lines.append(
            (
                name,
                str(len(runs)),
                *(span(median_of(runs, "ttft", key)) for key in ("mean", "p50", "p90", "p99")),
                *(span(median_of(runs, "e2e", key)) for key in ("mean", "p50", "p90", "p99")),
                UNKNOWN if in_time is None else f"{in_time['median']:.1%}",
                UNKNOWN if hits is None else f"{hits['median']:.1%}",
                span(median_of(runs, "spread_computed")),
                f"{before} / {begun}",
                number(max(run["lag_p99_ms"] for run in runs), 1),
                number(median(runs, "busy_cores")),
            )
        )
    return lines
