"""Reports: one row per policy and load, the interval at the mean, unknown as a dash."""

from __future__ import annotations

import random
from io import StringIO

from rich.console import Console

from bench.simulate.experiment import Result, RunPlan, run_many
from bench.simulate.generators import GENERATORS
from bench.simulate.report import Report, build, cells, columns, headline, tables
from bench.simulate.scenario import Scenario

SCENARIO = Scenario(replicas=2)
WORKLOAD = GENERATORS["sessions"](60, random.Random(0), 1.0)


def results() -> list[Result]:
    """Run two policies at two loads under two seeds."""
    plans = [
        RunPlan(policy, seed, rate, load)
        for load, rate in ((0.5, 1.0), (0.9, 1.8))
        for policy in ("round-robin", "oracle")
        for seed in (0, 1)
    ]
    return run_many(WORKLOAD, SCENARIO, plans, 5.0)


def report(runs: list[Result] | None = None) -> Report:
    """Build a report against round-robin."""
    return build(
        WORKLOAD,
        SCENARIO,
        runs or results(),
        slo_s=5.0,
        saturation=2.0,
        against="round-robin",
    )


def test_rows_keep_the_order_of_the_plans() -> None:
    """Rows are ordered by load, then policy; the baseline's difference to itself is 0."""
    made = report()
    assert [(row.load, row.policy) for row in made.rows] == [
        (0.5, "round-robin"),
        (0.5, "oracle"),
        (0.9, "round-robin"),
        (0.9, "oracle"),
    ]
    assert made.rows[0].versus["ttft_mean"].mean == 0.0
    assert made.rows[1].versus["ttft_mean"].mean < 0.0
    assert made.seeds == 2


def test_the_tables_for_people() -> None:
    """One table per load, headed by share and rate, with a column per number."""
    made = report()
    out = StringIO()
    for table in tables(made):
        Console(file=out, width=200).print(table)
    text = out.getvalue()
    assert "load 50% = 1 requests/s" in text
    assert text.count("oracle") == 2
    assert "mean vs round-robin" in text
    assert "least-in-flight sustains 2 requests/s" in headline(made)
    assert len(cells(made.rows[0])) == len(columns(made))
