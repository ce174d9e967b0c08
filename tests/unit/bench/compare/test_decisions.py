"""Cells of a measurement beside the simulator."""

from __future__ import annotations

from random import Random

import pytest

from bench.compare.decisions import answered, cells, slice_of
from bench.simulate.generators import sessions
from bench.simulate.workload import Job, Workload


def test_a_restart_is_measured_beside_a_run_without() -> None:
    """Both have the same seed, and different keys."""
    calm, restarted = cells(["a"], [0.7], 1, restart=True)
    assert (calm.restart, restarted.restart) == ("without", "with")
    assert calm.key != restarted.key
    assert calm.seed == restarted.seed


def test_peers_have_the_same_cells() -> None:
    """Each router has a cell of its own, with another key."""
    ours, theirs = cells(["a"], [0.7], 1, ["tidegate", "llm-d-chart"])
    assert (ours.seed, ours.load, theirs.contender) == (theirs.seed, theirs.load, "llm-d-chart")
    assert ours.key != theirs.key


def test_each_seed_has_other_requests_at_the_same_rate() -> None:
    """A seed takes the jobs after those of the one before, scaled to the rate."""
    whole = sessions(300, Random(0), 4.8)
    parts = [slice_of(whole, 5.0, 20.0, seed) for seed in range(3)]
    assert [job.index for part, _ in parts for job in part.jobs] == list(range(300))
    for part, times in parts:
        assert len(part.jobs) == len(times) == 100
        assert times[0] == 0.0
        assert times[-1] == pytest.approx(20.0)
    with pytest.raises(ValueError, match="seed 3 needs more"):
        slice_of(whole, 5.0, 20.0, 3)


def test_a_step_comes_after_the_answer_to_the_one_before() -> None:
    """8,000 tokens and 100 of an answer take an idle replica 1.635 s; others do not wait."""
    named = ("a", "a", "b", None, "a")
    jobs = [Job(index, 0.0, 8_000, 100, (), name) for index, name in enumerate(named)]
    part, times = answered(Workload("w", jobs), [0.0, 1.6, 1.6, 1.6, 5.0])
    assert [job.index for job in part.jobs] == [0, 2, 3, 1, 4]
    assert times == pytest.approx([0.0, 1.6, 1.6, 1.635, 5.0])
