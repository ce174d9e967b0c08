"""Off-policy evaluation: a policy's cost estimated from the incumbent's log."""

from __future__ import annotations

import random

import pytest

from ext_proc.routing.learning.value import LEAST_EVIDENCE, PATIENCE, Value

EXPLORE = 0.02
COSTS = (1.0, 1.3, 0.9)


def log(
    value: Value, target: int, count: int, *, predicted: tuple[float, ...] = COSTS, seed: int = 1
) -> None:
    """Log an incumbent that selects 0 and explores all three candidates, with varying costs."""
    rng = random.Random(seed)
    for _ in range(count):
        done = int(rng.random() * 3) if rng.random() < EXPLORE else 0
        value.add(
            cost=COSTS[done] + rng.gauss(0.0, 0.1),
            propensity=(1 - EXPLORE) * (done == 0) + EXPLORE / 3,
            done=done,
            incumbent=0,
            targets=(target,),
            predicted=dict(enumerate(predicted)),
        )


def test_the_difference_is_found_with_a_right_model() -> None:
    """The estimate is the evaluated policy's mean cost minus the incumbent's."""
    value = Value()
    log(value, 2, 20_000)
    assert value.mean == pytest.approx(-0.1, abs=0.02)
    assert value.judge(10_000) is True


def test_a_wrong_model_is_corrected_by_the_trials() -> None:
    """The model predicts that 1 is the best; the log shows that it is the worst."""
    value = Value()
    log(value, 1, 40_000, predicted=(1.0, 0.2, 0.9))
    assert value.mean == pytest.approx(0.3, abs=0.2)
    assert value.judge(10_000) is False


def test_agreement_is_no_difference() -> None:
    """A policy that selects the same as the incumbent has a difference of 0."""
    value = Value()
    log(value, 0, 20_000)
    assert (value.mean, value.upper) == (0.0, 0.0)
    assert value.judge(10_000) is None
    assert value.judge(20_000 // PATIENCE) is False


def test_nothing_is_judged_early() -> None:
    """It needs enough decisions, and enough trials among them."""
    value = Value()
    assert value.upper is None
    log(value, 2, 999)
    assert value.judge(1_000) is None
    untried = Value()
    for _ in range(2_000):
        untried.add(
            cost=1.0, propensity=1.0, done=0, incumbent=0, targets=(1,), predicted={0: 1.0, 1: 0.5}
        )
    assert untried.mean == -0.5
    assert untried.evidence < LEAST_EVIDENCE
    assert untried.judge(1_000) is None
    assert untried.judge(2_000 // PATIENCE) is False
    untried.clear()
    assert (untried.count, untried.evidence, untried.mean) == (0, 0, 0.0)


def test_false_proofs_are_rare() -> None:
    """If both policies are equal, few of many evaluations call the evaluated one better."""
    rng = random.Random(7)
    proofs = 0
    for _ in range(100):
        value = Value()
        for _ in range(4_000):
            done = int(rng.random() * 2) if rng.random() < EXPLORE else 0
            value.add(
                cost=1.0 + rng.gauss(0.0, 0.3),
                propensity=(1 - EXPLORE) * (done == 0) + EXPLORE / 2,
                done=done,
                incumbent=0,
                targets=(1,),
                predicted={0: 1.0, 1: 1.0},
            )
        proofs += bool(value.judge(4_000))
    assert proofs <= 12


def test_a_draw_among_equals_is_judged_as_one() -> None:
    """A trial of any target is evidence, weighted by its probability to be drawn."""
    value, rng = Value(), random.Random(1)
    for _ in range(20_000):
        done = int(rng.random() * 3) if rng.random() < EXPLORE else 0
        value.add(
            cost=COSTS[done],
            propensity=(1 - EXPLORE) * (done == 0) + EXPLORE / 3,
            done=done,
            incumbent=0,
            targets=(1, 2),
            predicted={0: 1.0, 1: 1.0, 2: 1.0},
        )
    assert value.mean == pytest.approx(0.1, abs=0.05)
    assert value.evidence == pytest.approx(20_000 * EXPLORE * 2 / 3, rel=0.2)
