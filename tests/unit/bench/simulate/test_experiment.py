"""Experiments: reproducible runs, processes, and the search for saturation."""

from __future__ import annotations

import random

import pytest

from bench.simulate import experiment
from bench.simulate.experiment import (
    CalibrationError,
    RunPlan,
    default_slo,
    run_many,
    run_one,
    saturation,
)
from bench.simulate.generators import GENERATORS
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.registry import names
from bench.simulate.workload import Job, Workload

SCENARIO = Scenario(replicas=2)
WORKLOAD, SHORT = (GENERATORS["sessions"](count, random.Random(0), 1.0) for count in (120, 40))


@pytest.mark.parametrize("policy", names())
def test_a_plan_is_a_function(policy: str) -> None:
    """The same plan gives the same numbers under every policy."""
    plan = RunPlan(policy, 3, 2.0)
    one, two = (run_one(SHORT, SCENARIO, plan, 5.0) for _ in range(2))
    assert one == two


def test_processes_change_nothing() -> None:
    """Two processes give the results of one, in the order of the plans."""
    plans = [RunPlan(name, seed, 2.0) for name in ("oracle", "prefix-affinity") for seed in (0, 1)]
    heard: list[object] = []
    alone = run_many(WORKLOAD, SCENARIO, plans, 5.0)
    spread = run_many(WORKLOAD, SCENARIO, plans, 5.0, processes=2, on_done=heard.append)
    assert alone == spread
    assert len(heard) == 4


def test_progress_is_told() -> None:
    """``on_progress`` receives the number of arrived jobs."""
    heard: list[int] = []
    run_one(WORKLOAD, SCENARIO, RunPlan("oracle", 0, 2.0), None, heard.append)
    assert heard == [0]


def test_the_limit_follows_the_prompts() -> None:
    """The limit is 1 s plus twice the prefill time of the p99 prompt."""
    workload = Workload("w", [Job(n, float(n), 8000, 1, ()) for n in range(9)])
    assert default_slo(workload, SCENARIO) == pytest.approx(3.0)


def test_saturation_is_where_the_limit_breaks() -> None:
    """The p99 TTFT holds at the found rate and not at 1.5 times of it; probes are counted."""
    workload = GENERATORS["mixed"](400, random.Random(0), 1.0)
    probes: list[None] = []
    slo = default_slo(workload, SCENARIO)
    rate = saturation(workload, SCENARIO, slo, on_probe=lambda: probes.append(None))
    held = run_one(workload, SCENARIO, RunPlan(experiment.CALIBRATOR, 0, rate), slo)
    broken = run_one(workload, SCENARIO, RunPlan(experiment.CALIBRATOR, 0, rate * 1.5), slo)
    assert held.metrics.ttft_p99 <= slo < broken.metrics.ttft_p99
    assert len(probes) <= experiment.MAX_DOUBLINGS + experiment.BISECTIONS + 1


def test_a_limit_that_cannot_be_met_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no rate or every rate holds, the error names the options to set."""
    monkeypatch.setattr(experiment, "MAX_DOUBLINGS", 2)
    with pytest.raises(CalibrationError, match="no rate"):
        saturation(WORKLOAD, SCENARIO, 1e-6)
    with pytest.raises(CalibrationError, match="any rate"):
        saturation(WORKLOAD, SCENARIO, 1e6)
    with pytest.raises(CalibrationError, match="--rate"):
        saturation(Workload("w", [Job(0, 0.0, 10, 1, ())]), SCENARIO, 1.0)
