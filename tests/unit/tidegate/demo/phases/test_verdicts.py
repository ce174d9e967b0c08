"""Verdicts of the demo's phases."""

from __future__ import annotations

from collections import Counter

import pytest

from tidegate.demo.counters import ReplicaCounters
from tidegate.demo.load import Tally
from tidegate.demo.phases import affinity, canary, picker_loss, replica_loss, traffic

VARIANTS = {"r1": "stable", "r2": "canary"}


def counted(r1: int = 3, r2: int = 0, vision: int = 5) -> dict[str, ReplicaCounters]:
    """Return the counters of two replicas."""
    return {
        "r1": ReplicaCounters({("toy-llm", "1"): r1, ("vision", "1"): vision}),
        "r2": ReplicaCounters({("toy-llm", "2"): r2}),
    }


def test_traffic_holds_when_every_request_is_counted_once() -> None:
    """Traffic passes if each request is counted once at the right replicas."""
    verdict = traffic.assess(counted(), VARIANTS, {"toy-llm": 3, "vision": 5}, [])
    assert verdict.holds


@pytest.mark.parametrize(
    ("counts", "sent", "reason"),
    [
        (counted(vision=4), {"toy-llm": 3, "vision": 5}, "replicas count 4"),
        (counted(r2=1), {"toy-llm": 4, "vision": 5}, "canary weight 0"),
        (counted(r1=0), {"toy-llm": 0, "vision": 5}, "r1 served no"),
    ],
)
def test_traffic_names_what_is_wrong(
    counts: dict[str, ReplicaCounters], sent: dict[str, int], reason: str
) -> None:
    """A lost request, a serving canary without weight and an idle replica fail the phase."""
    verdict = traffic.assess(counts, VARIANTS, sent, [])
    assert not verdict.holds
    assert reason in verdict.text


def policy_run(
    reused: float | None, ttft: list[float], failed: bool = False
) -> affinity.AffinityRun:
    """Return the measurements of one policy."""
    run = affinity.AffinityRun("policy", reused, 1000, ttft)
    if failed:
        run.tally.fail(OSError("gone"))
    return run


def test_affinity_holds_when_it_reuses_more_and_answers_sooner() -> None:
    """Affinity passes if both reuse and TTFT are better."""
    verdict = affinity.assess(policy_run(0.3, [0.4, 0.5]), policy_run(0.7, [0.1, 0.2]))
    assert verdict.holds
    assert "70.0%" in verdict.text


@pytest.mark.parametrize(
    ("affine", "reason"),
    [
        (policy_run(0.3, [0.1]), "not more than round robin"),
        (policy_run(0.9, [0.4]), "not below round robin's"),
        (policy_run(None, [0.1]), "no prompt tokens"),
        (policy_run(0.9, []), "no stream was answered"),
        (policy_run(0.9, [0.1], failed=True), "1 of 1 requests failed"),
    ],
)
def test_affinity_does_not_hold_otherwise(affine: affinity.AffinityRun, reason: str) -> None:
    """Equal reuse, equal time, missing measurements or a failed turn fail the phase."""
    verdict = affinity.assess(policy_run(0.3, [0.4]), affine)
    assert not verdict.holds
    assert reason in verdict.text


def test_a_canary_holds_inside_the_interval() -> None:
    """A canary passes if its share is within the random interval."""
    assert canary.assess(0, 215, 1000, []).holds


@pytest.mark.parametrize(
    ("before", "hits", "problems", "reason"),
    [(1, 200, [], "weight was 0"), (0, 300, [], "outside"), (0, 200, ["lost"], "lost")],
)
def test_a_canary_fails_outside(before: int, hits: int, problems: list[str], reason: str) -> None:
    """A share outside the interval, an early request or a failure fails the phase."""
    verdict = canary.assess(before, hits, 1000, problems)
    assert not verdict.holds
    assert reason in verdict.text


def test_a_replica_loss_holds_without_failures() -> None:
    """A loss passes if the killed replica was in use and no request failed."""
    assert replica_loss.assess("r1", Counter(r1=3), Tally().failed, []).holds
    assert not replica_loss.assess("r1", Counter(r2=3), 0, []).holds
    assert not replica_loss.assess("r1", Counter(r1=3), 1, ["1 failed"]).holds


@pytest.mark.parametrize(
    ("before", "after", "problems", "holds"),
    [
        (5, 3, [], True),
        (0, 3, [], False),
        (None, 3, [], False),
        (5, None, [], False),
        (5, 3, ["lost"], False),
    ],
)
def test_a_picker_loss_needs_picks_before_and_after(
    before: int | None, after: int | None, problems: list[str], holds: bool
) -> None:
    """The picker must pick before and after its loss, and no request may fail."""
    assert picker_loss.assess(before, after, problems).holds is holds
