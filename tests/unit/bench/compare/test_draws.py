"""Fleets drawn at random, and constants that are made wrong."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

import pytest

from bench.compare.beside import CAUSES, beside
from bench.compare.constants import CONSTANTS, POOL, Constant, changed
from bench.compare.draws import FIRST, KEYS, Found, drawn, measured, results, summary
from bench.journal import Journal
from bench.simulate.experiment import RunPlan, run_one
from bench.simulate.generators import sessions
from bench.simulate.schedulers.production import _cut
from bench.simulate.workload import Job
from ext_proc.routing.latency import model
from ext_proc.routing.values import scale
from ext_proc.routing.values.pool import Pool


def test_a_draw_is_a_function_of_its_seed():
    """Within the family's bounds; other seeds give other fleets."""
    fleets = [drawn(seed) for seed in range(FIRST, FIRST + 50)]
    assert fleets[0] == drawn(FIRST)
    assert len({each.bytes_per_token for each in fleets}) == 50
    assert all(0.25 <= (each.bytes_per_token or 0.0) <= 8.0 for each in fleets)
    assert {each.counts for each in fleets} == {True, False}


def test_a_draw_is_compared_with_the_oracle_on_the_same_arrivals():
    """The same again gives the same figures, whoever else runs."""
    found = measured(FIRST, "shared-prefix", 80, 1)
    assert found == measured(FIRST, "shared-prefix", 80, 1)
    assert found is not None
    assert 0.5 < found.mean < 5.0


def test_a_stored_draw_is_not_run_again(tmp_path: Path) -> None:
    """Nor is one that sustains no rate."""
    journal = Journal(tmp_path, "draws", {}, KEYS)
    stored = Found(FIRST, "agents", 1.0, 1.1, 1.2, 1.0, 1.0)
    journal.add({"seed": FIRST, "traffic": "agents", "found": asdict(stored)})
    journal.add({"seed": FIRST, "traffic": "sessions", "found": None})
    measure = partial(measured, requests=80, runs=1)
    cases = [(FIRST, "agents"), (FIRST, "sessions")]
    assert list(results(cases, measure, journal, 1)) == [(*cases[0], stored), (*cases[1], None)]


def test_the_summary_has_the_median_and_the_worst_draw():
    """Of all draws, and of those whose log tells first tokens, or does not."""
    told = [seed for seed in range(FIRST, FIRST + 50) if drawn(seed).first_tokens][:3]
    rows = [
        Found(seed, "agents", 1.0, 1.0 + 0.1 * place, 2.0, 1.0, 1.0)
        for place, seed in enumerate(told)
    ]
    lines = summary(rows, ["agents", "sessions"])
    assert lines[2:] == [
        f"| agents | {log} | 3 | 1.10 / 2.00 | 1.20 / 2.00 | 1.00 / 1.00 | 1.00 / 1.00 |"
        for log in ("all", "yes")
    ]


def test_the_picker_is_asked_beside_the_oracle():
    """A choice that costs something has a cause, and is shown with what the picker believed."""
    costs = beside(sessions(80, Random(0), 4.8), drawn(FIRST), 0, 8.0)
    assert costs.requests == 80
    assert costs.best_s > 0.0
    assert costs.dearest is not None
    assert costs.dearest["cause"] in CAUSES
    assert set(costs.by_cause) <= set(CAUSES)
    assert costs.dearest["cost_s"] >= costs.first["cost_s"]
    assert costs.dearest["picked"]["true_s"] > costs.dearest["best"]["true_s"]
    assert len(costs.cells().split(" | ")) == len(CAUSES) + 2


@pytest.mark.parametrize("new_bytes", [16, 100, 512, 2_000])
def test_prompts_that_share_text_share_blocks_of_any_size(new_bytes):
    """As many as their common part has; and no others."""
    one, two = Job(1, 0.0, 40, 1, (5, 6, 7, 8)), Job(2, 0.0, 40, 1, (5, 6, 17, 18))
    ours, theirs = (_cut(each, 1_000.0, new_bytes, 4_000) for each in (one, two))
    assert len(ours) == 4_000 // new_bytes
    shared = 2_000 // new_bytes
    assert ours[:shared] == theirs[:shared]
    assert not set(ours[shared:]) & set(theirs[shared:])


def test_the_simulated_picker_learns_the_scale_of_its_text():
    """From the pages of its replicas, as in production."""
    jobs = sessions(120, Random(0), 4.8)
    found = run_one(jobs, drawn(FIRST), RunPlan("auto", 0, None), None).metrics
    assert found.ttft_mean is not None


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda each: each.name)
def test_a_wrong_constant_is_wrong_only_for_its_runs(constant):
    """It exists, is changed where it is used, and is as before afterwards."""
    before = (scale.BYTES_PER_TOKEN, model.COLD_TOKENS_PER_S, Pool("").block_chars)
    with changed(constant, 10.0):
        pass
    assert (scale.BYTES_PER_TOKEN, model.COLD_TOKENS_PER_S, Pool("").block_chars) == before


def test_a_wrong_constant_reaches_all_who_use_it():
    """Importers, defaults of arguments, and defaults of a pool."""
    with changed(Constant("routing.latency.model", "COLD_TOKENS_PER_S"), 10.0):
        assert model.FleetLatencyModel().seconds_per_token == pytest.approx(1 / 80_000)
    assert model.FleetLatencyModel().seconds_per_token == pytest.approx(1 / 8_000)
    with changed(Constant(POOL, "block_chars"), 2.0):
        assert Pool("").block_chars == 512
    assert Pool("").block_chars == 256
