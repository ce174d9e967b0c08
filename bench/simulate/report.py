"""Report of an experiment: rows per load and policy, as tables or JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from bench.simulate.measure import METRICS, MeanEstimate, estimate, paired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.experiment import Result
    from bench.simulate.scenario import Scenario
    from bench.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class Row:
    """Estimates of one policy at one load, over all seeds."""

    policy: str
    load: float | None
    rate: float | None
    metrics: dict[str, MeanEstimate | None]
    versus: dict[str, MeanEstimate | None]
    """Relative difference to the baseline policy, paired by seed."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one experiment."""

    workload: str
    jobs: int
    native_rate: float
    scenario: Scenario
    seeds: int
    slo_s: float
    saturation: float | None
    """Highest rate that least-in-flight sustains; ``None`` if rates were given."""
    against: str
    rows: tuple[Row, ...]


def build(
    workload: Workload,
    scenario: Scenario,
    results: Sequence[Result],
    *,
    slo_s: float,
    saturation: float | None,
    against: str,
) -> Report:
    """Combine the runs of each policy and load; all must have the same seeds."""
    groups: dict[tuple[float | None, float | None, str], list[Result]] = {}
    for result in sorted(results, key=lambda one: one.plan.seed):
        plan = result.plan
        groups.setdefault((plan.load, plan.rate, plan.policy), []).append(result)
    order = list(dict.fromkeys((one.plan.load, one.plan.rate, one.plan.policy) for one in results))
    rows = []
    for load, rate, policy in order:
        group, other = groups[load, rate, policy], groups[load, rate, against]
        values = {name: [getattr(one.metrics, name) for one in group] for name in METRICS}
        others = {name: [getattr(one.metrics, name) for one in other] for name in METRICS}
        rows.append(
            Row(
                policy,
                load,
                rate,
                {name: estimate(values[name]) for name in METRICS},
                {name: paired(values[name], others[name]) for name in METRICS},
            )
        )
    return Report(
        workload.name,
        len(workload.jobs),
        workload.rate,
        scenario,
        len({one.plan.seed for one in results}),
        slo_s,
        saturation,
        against,
        tuple(rows),
    )


def as_json(report: Report) -> dict[str, Any]:
    """Return the complete report as JSON-serializable data."""
    return asdict(report)


_COLUMNS: Final = (
    ("TTFT mean", "ttft_mean"),
    ("p50", "ttft_p50"),
    ("p90", "ttft_p90"),
    ("p99", "ttft_p99"),
    ("e2e mean", "e2e_mean"),
    ("p50", "e2e_p50"),
    ("p99", "e2e_p99"),
)


def headline(report: Report) -> str:
    """Return one paragraph that describes the experiment."""
    scenario = report.scenario
    seeds = f"{report.seeds} seed{'s' if report.seeds > 1 else ''}"
    parts = [
        f"{report.workload}: {report.jobs} requests, {scenario.replicas} replicas, {seeds}",
        f"first {scenario.warmup:.0%} not measured",
        f"first-token limit {report.slo_s:.3g} s",
    ]
    if report.saturation is not None:
        parts.append(f"least-in-flight sustains {report.saturation:.3g} requests/s")
    return "; ".join(parts) + "."


def titles(report: Report) -> dict[tuple[float | None, float | None], str]:
    """Return the title of each load, in order."""
    found: dict[tuple[float | None, float | None], str] = {}
    for row in report.rows:
        rate = report.native_rate if row.rate is None else row.rate
        load = "" if row.load is None else f"load {row.load:.0%} = "
        found[row.load, row.rate] = f"{load}{rate:.3g} requests/s"
    return found


def columns(report: Report) -> list[str]:
    """Return the column headings of the tables."""
    return [
        "policy",
        *(name for name, _ in _COLUMNS),
        "hits/ideal",
        "spread",
        "in time",
        "shed+lost",
        f"mean vs {report.against}",
    ]


def cells(row: Row) -> list[str]:
    """Return one line of a table; the mean has half the width of its interval."""
    numbers = []
    for number, (_, name) in enumerate(_COLUMNS):
        known = row.metrics[name]
        numbers.append("-" if known is None else _seconds(known, with_width=number == 0))
    hit, ideal = row.metrics["hit_ratio"], row.metrics["hit_ideal"]
    shed, lost = row.metrics["shed"], row.metrics["lost"]
    versus = row.versus["ttft_mean"]
    return [
        row.policy,
        *numbers,
        "-" if hit is None or ideal is None else f"{hit.mean:.1%}/{ideal.mean:.1%}",
        _plain(row.metrics["spread_tokens"], "{:.2f}"),
        _plain(row.metrics["goodput"], "{:.1%}"),
        "-" if shed is None or lost is None else f"{shed.mean + lost.mean:.2%}",
        "-" if versus is None else f"{versus.mean:+.1%} [{versus.low:+.1%}, {versus.high:+.1%}]",
    ]


def tables(report: Report) -> list[Table]:
    """Return one table per load."""
    made = []
    for key, title in titles(report).items():
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for number, name in enumerate(columns(report)):
            table.add_column(
                name, justify="right" if number else "left", header_style="bold", no_wrap=True
            )
        for row in report.rows:
            if (row.load, row.rate) == key:
                table.add_row(*cells(row))
        made.append(table)
    return made


def _seconds(known: MeanEstimate, *, with_width: bool) -> str:
    text = f"{known.mean:.2f}"
    return f"{text} ±{(known.high - known.low) / 2:.2f}" if with_width else text


def _plain(known: MeanEstimate | None, form: str) -> str:
    return "-" if known is None else form.format(known.mean)
