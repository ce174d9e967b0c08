"""Evidence about times, from histograms of minutes."""

from __future__ import annotations

import random
from collections import Counter
from math import exp, isclose, log

import pytest
from scipy.stats import nchypergeom_fisher

from tidegate_common.fine_histogram import above, fine_bucket, shift_of, threshold
from xds_server.applications.canary.statistics.times import (
    BETTER,
    FADE,
    LEAST_TIMES,
    MAX_STRATA,
    QUANTILES,
    WORSE,
    TimeCell,
    TimeEvidence,
)


def minute(rng: random.Random, n: int, share: float, slower: float, load: float) -> TimeCell:
    """Draw the times of a minute: log-normal, the canary's ``slower`` times as long."""
    arms: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for _ in range(n):
        canary = rng.random() < share
        seconds = load * exp(rng.gauss(-1.0, 0.5)) * (slower if canary else 1.0)
        arms[not canary][fine_bucket(seconds)] += 1
    return TimeCell(*arms)


def test_evidence_is_the_product_over_cells_of_exact_likelihood_ratios() -> None:
    """Two strata, five minutes, by scipy's distribution and thresholds of earlier minutes."""
    rng = random.Random(1)
    evidence, earlier, exact = TimeEvidence(0.1), {}, dict.fromkeys(WORSE, 0.0)
    for _ in range(5):
        cells = {name: minute(rng, 80, 0.4, 1.3, 1.0) for name in ("a", "b")}
        evidence.fold(cells)
        for name, cell in cells.items():
            before: Counter[int] = earlier.get(name, Counter())
            if sum(before.values()) >= LEAST_TIMES[0.5]:
                limit = threshold(before, 0.5)
                canary, stable = sum(cell.canary.values()), sum(cell.stable.values())
                slow = above(cell.canary, limit + shift_of(0.1))
                both = slow + above(cell.stable, limit)
                null = nchypergeom_fisher(canary + stable, canary, both, 1.0).logpmf(slow)
                for odds in WORSE:
                    law = nchypergeom_fisher(canary + stable, canary, both, odds)
                    exact[odds] += law.logpmf(slow) - null
            faded = {bucket: weight * FADE for bucket, weight in before.items()}
            earlier[name] = Counter(faded)
            for bucket, count in cell.stable.items():
                earlier[name][bucket] += count
    mean = sum(exp(each) for each in exact.values()) / len(WORSE)
    assert isclose(evidence.log_worse(0.5), log(mean), rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("side", ["worse", "better"])
def test_a_canary_slower_by_just_the_margin_is_seldom_decided_on(side: str) -> None:
    """120 rollouts of 20 minutes with a load that drifts; each quantile is looked at."""
    rng = random.Random(31)
    wrong = Counter[float]()
    for _ in range(120):
        evidence = TimeEvidence(0.1)
        reached = set()
        for number in range(20):
            load = 1.0 + 0.1 * number
            evidence.fold({"s": minute(rng, 60, 0.3, 1.1, load)})
            for share in QUANTILES:
                log_e = evidence.log_worse if side == "worse" else evidence.log_not_worse
                if log_e(share) >= log(20.0):
                    reached.add(share)
        wrong.update(reached)
    assert max(wrong.values(), default=0) <= 0.065 * 120, wrong


def test_a_slow_canary_is_found_and_a_good_one_is_shown_to_be_good() -> None:
    """40 minutes of 200 sessions at equal shares."""
    rng = random.Random(5)
    slow, good = TimeEvidence(0.1), TimeEvidence(0.1)
    for _ in range(40):
        slow.fold({"s": minute(rng, 200, 0.5, 1.5, 1.0)})
        good.fold({"s": minute(rng, 200, 0.5, 1.0, 1.0)})
    assert slow.log_worse(0.5) > log(1000.0)
    assert slow.log_worse(0.9) > log(1000.0)
    assert slow.log_not_worse(0.5) < 0.0
    assert good.log_not_worse(0.5) > log(20.0)
    assert good.log_not_worse(0.9) > log(20.0)
    assert good.log_worse(0.5) < 0.0


def test_a_threshold_needs_earlier_times() -> None:
    """The first minute, and p99 with few times, show nothing."""
    rng = random.Random(2)
    evidence = TimeEvidence(0.1)
    evidence.fold({"s": minute(rng, 500, 0.5, 3.0, 1.0)})
    assert evidence.log_worse(0.5) == pytest.approx(0.0)
    evidence = TimeEvidence(0.1)
    for _ in range(3):
        evidence.fold({"s": minute(rng, 100, 0.5, 3.0, 1.0)})
    assert evidence.log_worse(0.5) > 0.0
    assert evidence.log_worse(0.99) == pytest.approx(0.0)


def test_strata_are_bounded() -> None:
    """Times of others are left out."""
    evidence = TimeEvidence(0.1)
    cell = TimeCell({}, {5: 3})
    evidence.fold({f"s{number}": cell for number in range(MAX_STRATA + 10)})
    assert len(evidence.dump()["earlier"]) == MAX_STRATA


def test_a_stratum_without_new_times_is_forgotten() -> None:
    """Its weights fade, so that others have room."""
    evidence = TimeEvidence(0.1)
    evidence.fold({"s": TimeCell({}, {5: 1})})
    for _ in range(200):
        evidence.fold({})
    assert evidence.dump()["earlier"] == {}


def test_a_histogram_divides_by_a_tenth_without_loss() -> None:
    """Four buckets are ten per cent, wherever a value lies in its bucket."""
    rng = random.Random(3)
    assert (shift_of(0.0), shift_of(0.1), shift_of(0.21)) == (0, 4, 8)
    for _ in range(1_000):
        seconds = exp(rng.uniform(-7.0, 7.0))
        assert fine_bucket(seconds * 1.1) - fine_bucket(seconds) in {3, 4, 5}
    assert fine_bucket(0.0) == 0
    assert fine_bucket(1e9) == fine_bucket(1e12)
    assert threshold({}, 0.5) is None
    assert threshold({1: 5, 2: 4, 9: 1}, 0.9) == 2
    assert above({1: 5, 2: 4, 9: 1}, 1) == 5
    assert len(BETTER) == 4
