"""The evidence of a rollout as a whole, and what a judgement makes of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from math import log

import pytest

from xds_server.applications.canary.evidence import (
    KINDS,
    SHOWN,
    CanaryCheck,
    CanaryEvidence,
    Margins,
    Minute,
    shown,
)
from xds_server.applications.canary.judgement import judge
from xds_server.applications.canary.statistics.cache import CacheCell, CacheEvidence
from xds_server.applications.canary.statistics.times import TimeCell


def minute(rng: random.Random, share: float = 0.5, fails: float = 0.02) -> Minute:
    """Draw a minute of 200 sessions, with one kind of time and a cache."""
    begun, failed = [0, 0], [0, 0]
    times: list[Counter[int]] = [Counter(), Counter()]
    short = [0, 0]
    for _ in range(200):
        arm = int(rng.random() >= share)
        begun[arm] += 1
        failed[arm] += rng.random() < fails
        times[arm][100 + int(rng.gauss(0.0, 20.0))] += 1
        short[arm] += rng.random() < 0.02
    return Minute(
        {(share, 1.0 - share): (failed[0], failed[1])},
        (begun[0], begun[1]),
        (begun[0], failed[0]),
        {"first-token": {"s": TimeCell(*times)}},
        CacheCell(begun[0], short[0], begun[1], short[1]),
    )


def check(name: str, weight: float, worse: float, better: float, **more: object) -> CanaryCheck:
    """Return a check."""
    told = {"condition": True, "timed": False, "gain": None, **more}
    return CanaryCheck(name, weight, worse, better, **told)  # type: ignore[arg-type]


def test_evidence_that_was_stored_goes_on_as_if_nothing_had_been() -> None:
    """A control server that is killed loses no minute that it had stored."""
    rng = random.Random(1)
    minutes = [minute(rng) for _ in range(12)]
    through = CanaryEvidence(cache=True)
    for each in minutes:
        through.fold(each)
    first = CanaryEvidence(cache=True)
    for each in minutes[:6]:
        first.fold(each)
    second = CanaryEvidence.restored(Margins(), json.loads(json.dumps(first.dump())))
    for each in minutes[6:]:
        second.fold(each)
    for one, other in zip(through.checks(), second.checks(), strict=True):
        assert one._replace(gain=None) == other._replace(gain=None)
    assert second.begun == through.begun
    assert second.failed == through.failed


def test_weights_of_the_checks_are_one_together() -> None:
    """Otherwise their weighted mean is no e-value."""
    for kinds, cache in (((), False), ((), True), (KINDS[:1], False), (KINDS, True)):
        checks = CanaryEvidence(kinds=kinds, cache=cache).checks()
        assert sum(each.weight for each in checks) == pytest.approx(1.0)
        assert len({each.name for each in checks}) == len(checks)


def test_p99_is_a_guard_and_no_condition() -> None:
    """It would take hours to show."""
    held = {each.name for each in CanaryEvidence(kinds=KINDS).checks() if not each.condition}
    assert held == {f"{kind} p99" for kind in KINDS}


def test_a_good_canary_misses_less_and_less_until_nothing() -> None:
    """And the estimate of the minutes that are left falls to that."""
    rng = random.Random(3)
    evidence = CanaryEvidence(cache=True)
    estimates = []
    for number in range(1, 101):
        evidence.fold(minute(rng))
        judged = judge(evidence.checks(), load=1.0)
        assert not judged.worse
        if number % 10 == 0:
            estimates.append(judged.minutes)
        if judged.good:
            break
    assert judged.good
    assert number > 5
    assert any(each is not None and 0 < each < 200 for each in estimates)


def test_a_canary_that_fails_twice_as_often_is_called_worse_by_its_failures() -> None:
    """The judgement names the check."""
    rng = random.Random(4)
    evidence = CanaryEvidence()
    for _ in range(60):
        good, bad = minute(rng, fails=0.02), minute(rng, fails=0.1)
        key = (0.5, 0.5)
        both = (bad.failures[key][0], good.failures[key][1])
        evidence.fold(good._replace(failures={key: both}))
    judged = judge(evidence.checks(), load=1.0)
    assert judged.worse
    assert judged.blames == "failures"
    low, high = evidence.failure_interval()
    assert 1.5 < low < 5.0 < high


def test_the_weighted_mean_decides_not_a_single_check() -> None:
    """A check of a tenth of the weight needs ten times the evidence."""
    quiet = check("a", 0.9, -50.0, 9.0)
    assert not judge([quiet, check("b", 0.1, log(190.0), 9.0)]).worse
    judged = judge([quiet, check("b", 0.1, log(210.0), 9.0)])
    assert judged.worse
    assert judged.blames == "b"
    assert not judged.good


def test_times_pass_only_where_the_canary_carries_its_load() -> None:
    """An idle replica is fast; an unknown load is no load."""
    checks = [check("failures", 0.5, 0.0, 4.0), check("first-token p50", 0.5, 0.0, 9.0, timed=True)]
    assert judge(checks, load=0.8).good
    for load, said in ((0.5, "50%"), (None, "an unknown share")):
        judged = judge(checks, load=load)
        assert [each.check for each in judged.missing] == ["first-token p50"]
        assert said in judged.missing[0].why
        assert judged.minutes is None


def test_what_is_missing_is_said_with_its_time() -> None:
    """At the pace of the last minutes, and not at all where there is none."""
    half = 0.5 * log(20.0)
    judged = judge([check("a", 0.5, 0.0, half, gain=0.1), check("b", 0.5, 0.0, -1.0, gain=-0.1)])
    first, second = judged.missing
    assert (first.minutes, second.minutes) == (15, None)
    assert "50%" in first.why
    assert "0%" in second.why
    assert judged.minutes is None


def test_a_cold_canary_is_not_held_to_be_worse_by_its_cache() -> None:
    """It has fewer predictions, of which as many hold."""
    evidence = CacheEvidence()
    for _ in range(60):
        evidence.fold(CacheCell(20, 0, 80, 1))
    assert evidence.log_worse < 0.0
    assert evidence.log_not_worse > log(20.0)


def test_a_cache_that_forgets_is_found() -> None:
    """Half of its predictions fall short, where a tenth of stable's do."""
    evidence = CacheEvidence()
    for _ in range(10):
        evidence.fold(CacheCell(20, 10, 80, 8))
    assert evidence.log_worse > log(20.0)
    assert evidence.log_not_worse < 0.0


def test_a_number_for_people_is_bounded() -> None:
    """An e-value of a long rollout has hundreds of digits."""
    assert shown(1e4) == pytest.approx(SHOWN)
    assert shown(log(20.0)) == pytest.approx(20.0)
