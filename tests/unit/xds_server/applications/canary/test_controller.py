"""Whole rollouts: pickers that count, a controller that is killed, weights that draw.

Sessions are drawn by the arithmetic of Envoy and pickers, their requests go to two pickers in turn,
and reports are repeated.
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter

import pytest
import xxhash

from ext_proc.canary import KNOWN_S, Arms, CanarySessions
from tidegate_common.canary import ALL, SessionFailure, SessionRecord
from xds_server.applications.canary.controller import (
    MAX_LOG,
    CanaryController,
    RolloutSpec,
    StartError,
    line_of,
    report_of,
    spec_of,
)
from xds_server.applications.canary.evidence import Margins
from xds_server.applications.canary.guards import ArmReplicas, PoolAlerts, guards_of, load_of
from xds_server.applications.canary.plan import CanaryPlan
from xds_server.applications.canary.rollout import ActionError, RolloutPhase, Transition

BEFORE = {"v1": 100, "v2": 0}
SPEC = RolloutSpec("r1", "llm", "v2", "v1", BEFORE, 1_234_567)
PLAN = CanaryPlan((5.0, 50.0, 100.0), 120.0, 20, margins=Margins(failure_floor=0.03))
WELL = ArmReplicas(3, 3)
BEGAN_S = 1_800_000_000.0


class Pool:
    """A pool with two pickers, its clients, and a control server that may be killed."""

    def __init__(self, seed: int, rate: dict[str, float], plan: CanaryPlan = PLAN) -> None:
        self.rng = random.Random(seed)
        self.rate = rate
        self.weights = dict(BEFORE)
        self.controller = CanaryController(SPEC, plan, BEGAN_S, kinds=())
        self.pickers = [CanarySessions(-KNOWN_S) for _ in range(2)]
        self.now_s = 0.0
        self.kill_at: set[str] = set()
        self.truth: Counter[tuple[str, str]] = Counter()
        self.revisions: list[tuple[dict[str, int], str]] = []
        self._ticket = 0

    def kill(self) -> None:
        """Kill the control server and start it from what it stored."""
        stored = json.loads(json.dumps(self.controller.dump()))
        self.controller = CanaryController.restored(stored)
        again = self.controller.resumed(self.weights, BEGAN_S + self.now_s)
        if again is not None:
            self.make(again)

    def make(self, transition: Transition) -> None:
        """Store the intent, change the weights, store that it is done; be killed in between."""
        self.controller.intend(transition)
        if "before" in self.kill_at:
            self.kill_at.remove("before")
            self.kill()
            return
        weights = self.controller.weights_after(transition)
        if weights is not None:
            self.weights = dict(weights)
            self.revisions.append((self.weights, transition.reason))
        if "after" in self.kill_at:
            self.kill_at.remove("after")
            self.kill()
            return
        self.controller.done(transition, BEGAN_S + self.now_s)

    def minute(self, canary: ArmReplicas = WELL) -> None:
        """Let a minute of 300 sessions pass, then look."""
        state = self.controller.state
        arms = Arms("r1", "v2", "v1", max(0, state.step))
        for picker in self.pickers:
            picker.set_arms(arms, 0.0)
        for number in range(300):
            self._session(number)
        for name, picker in enumerate(self.pickers):
            told = picker.untold()
            for _ in range(2):
                self.controller.take(f"p{name}", told, ALL, BEGAN_S + self.now_s + 60.0)
            picker.told(told)
        self.now_s += 60.0
        found = self.controller.look(BEGAN_S + self.now_s, self.weights, canary, WELL)
        if found is not None:
            self.make(found)

    def run(self, minutes: int = 60, **more: ArmReplicas) -> None:
        """Let minutes pass until the rollout has ended."""
        for _ in range(minutes):
            if self.controller.state.phase is not RolloutPhase.RUNNING:
                return
            self.minute(**more)

    def _session(self, number: int) -> None:
        name = f"{self.now_s}-{number}"
        place = xxhash.xxh64_intdigest(name) % sum(self.weights.values())
        variant = "v1" if place < self.weights["v1"] else "v2"
        digest = xxhash.xxh3_64_intdigest(name)
        at = self.now_s + 60.0 * self.rng.random() * 0.9
        fails = False
        for turn in range(3):
            picker = self.pickers[turn % 2]
            self._ticket += 1
            picked_at = at + turn
            if not picker.goes_on(self._ticket, digest, variant, picked_at):
                picker.begins(self._ticket, digest, variant, picked_at, BEGAN_S + picked_at)
            failed = self.rng.random() < self.rate[variant] / 3.0
            fails |= failed
            picker.ended(self._ticket, BEGAN_S + at + turn + 0.5, failed=failed, good=not failed)
        self.truth[variant, "begun"] += 1
        self.truth[variant, "failed"] += fails


def test_a_good_variant_goes_to_the_whole_by_itself() -> None:
    """Step by step, each as a revision with its numbers, and every session is counted once."""
    pool = Pool(1, {"v1": 0.01, "v2": 0.01})
    pool.run()
    assert pool.controller.state.phase is RolloutPhase.PROMOTED
    assert pool.weights == {"v1": 0, "v2": 1_234_567}
    shares = [weights["v2"] / sum(weights.values()) for weights, _ in pool.revisions]
    assert shares == pytest.approx([0.05, 0.5, 1.0], abs=1e-6)
    assert "sessions of the canary" in pool.revisions[-1][1]
    told = report_of(pool.controller)
    for arm, variant in (("canary", "v2"), ("stable", "v1")):
        # Those of before the first step are stable's too: it had all of the weight.
        assert told["sessions"][arm] == pool.truth[variant, "begun"]
        assert told["failed_sessions"][arm] == pool.truth[variant, "failed"]
    low, high = told["failure_ratio"]["low"], told["failure_ratio"]["high"]
    assert low < 1.0 < high
    assert json.dumps(told)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_bad_variant_is_rolled_back_at_its_first_step(rate: float) -> None:
    """To the weights of before, with no more failed sessions than the step's share gives."""
    pool = Pool(2, {"v1": 0.01, "v2": rate})
    pool.run()
    assert pool.controller.state.phase is RolloutPhase.ROLLED_BACK
    assert pool.weights == BEFORE
    assert "worse: failures" in pool.controller.state.reason
    assert pool.truth["v2", "failed"] <= 30
    assert pool.now_s <= 900.0


def test_the_report_counts_what_a_minute_that_is_not_over_cost() -> None:
    """A guard may end a rollout before its first minute has."""
    controller = CanaryController(SPEC, PLAN, BEGAN_S, kinds=())
    failure = SessionFailure(int(BEGAN_S // 60.0), 0)
    failed = SessionRecord(1, int(BEGAN_S * 1000.0), 0, canary=True, failure=failure)
    controller.take("p1", [failed], ALL, BEGAN_S + 1.0)
    told = report_of(controller)
    assert told["sessions"] == {"canary": 1, "stable": 0}
    assert told["failed_sessions"] == {"canary": 1, "stable": 0}


@functools.cache
def revisions_in_peace() -> list[dict[str, int]]:
    """Return the weights that a rollout sets which nothing kills."""
    calm = Pool(3, {"v1": 0.01, "v2": 0.01})
    calm.run()
    return [each for each, _ in calm.revisions]


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_kill_in_any_step_changes_nothing(where: str, at: int) -> None:
    """Before or after the weights change: the same revisions, the same end."""
    killed = Pool(3, {"v1": 0.01, "v2": 0.01})
    for _ in range(60):
        if len(killed.revisions) == at:
            killed.kill_at.add(where)
        else:
            killed.kill_at.discard(where)
        if killed.controller.state.phase.ended:
            break
        killed.minute()
    assert [each for each, _ in killed.revisions] == revisions_in_peace()
    assert killed.controller.state.phase is RolloutPhase.PROMOTED


def test_a_kill_during_a_rollback_rolls_back() -> None:
    """The weights of before are set, once."""
    for where in ("before", "after"):
        pool = Pool(4, {"v1": 0.01, "v2": 1.0})
        while pool.controller.state.step < 0:
            pool.minute()
        pool.kill_at.add(where)
        pool.run()
        assert pool.weights == BEFORE
        assert pool.controller.state.phase is RolloutPhase.ROLLED_BACK
        assert len(pool.revisions) == 2


@pytest.mark.parametrize("steps", [0, 1])
def test_an_operator_can_abort_at_each_step(steps: int) -> None:
    """The weights of before come back, and nothing comes after."""
    pool = Pool(5, {"v1": 0.01, "v2": 0.01})
    while pool.controller.state.step < steps:
        pool.minute()
    pool.make(pool.controller.ask("abort", "ann"))
    assert pool.weights == BEFORE
    assert pool.controller.log[-1].reason == "abort by ann"
    pool.minute()
    assert pool.weights == BEFORE
    with pytest.raises(ActionError, match="has ended"):
        pool.controller.ask("promote", "ann")


def test_a_running_canary_is_one_line() -> None:
    """With what it waits for first."""
    pool = Pool(8, {"v1": 0.01, "v2": 0.01})
    pool.minute()
    controller = pool.controller
    view = controller.view(BEGAN_S + pool.now_s, pool.weights, WELL, WELL)
    line = line_of(controller, controller.waiting_for(view))
    start = "canary llm: v2 at 5 %, running; waits for 120 s of the step's least time of 120 s"
    assert line == f"{start} (and 1 more)"
    pool.make(controller.ask("pause", "ann"))
    assert line_of(controller, []) == "canary llm: v2 at 5 %, paused: pause by ann"


def test_a_rollout_starts_only_where_stable_has_all_of_the_weight() -> None:
    """Anything else is an operator's work in progress."""
    for weights, canary, why in (
        ({"v1": 1}, "v2", "no variant v2"),
        ({"v1": 9, "v2": 1}, "v2", "has a weight already"),
        ({"v1": 9, "v3": 1, "v2": 0}, "v2", "now v1, v3"),
        ({"v1": 0, "v2": 0}, "v2", "now none"),
    ):
        with pytest.raises(StartError, match=why):
            spec_of("r", "llm", weights, canary, 0.5)


def test_the_log_of_a_rollout_is_bounded() -> None:
    """Its beginning is kept."""
    pool = Pool(10, {"v1": 0.0, "v2": 0.0})
    pool.minute()
    for _ in range(MAX_LOG):
        for verb in ("pause", "resume"):
            pool.make(pool.controller.ask(verb, "ann"))
    assert len(pool.controller.log) == MAX_LOG
    assert pool.controller.log[0].reason.startswith("step 1 of 3")


def test_a_rollout_of_another_version_is_not_read() -> None:
    """It would be misunderstood."""
    stored = Pool(11, {"v1": 0.0, "v2": 0.0}).controller.dump() | {"version": 0}
    with pytest.raises(ValueError, match="version 0"):
        CanaryController.restored(stored)


def test_guards_end_or_hold_by_what_they_are() -> None:
    """Crash loops, lost replicas and alerts end; loads, parity and capacity hold."""
    sick = ArmReplicas(
        2,
        0,
        [("r3", 3), ("r4", 2)],
        ["r3"],
        ["3 of 9 failed"],
        ["r3: no memory"],
        ["r4: other tokens"],
    )
    found = guards_of(sick, WELL, 5.0, 50.0, PoolAlerts(["TidegateDown"], ["no answer"]))
    assert [each.why.split(":")[0] for each in found if each.ends] == [
        "crash loop",
        "memory",
        "copies",
        "none of 2 canary replicas is usable",
        "alert",
    ]
    assert [each.why.split(":")[0] for each in found if not each.ends] == [
        "alerts",
        "load refused",
        "parity",
        "capacity",
    ]
    assert guards_of(WELL, WELL, 5.0, 100.0) == []
    assert not any(each.ends for each in guards_of(ArmReplicas(2, 0), WELL, 0.0, 5.0))


def test_load_is_the_work_of_a_replica_over_that_of_one_of_stable() -> None:
    """One of three at 20 % is too idle; one of four at 20 % is not."""
    assert load_of(20.0, 1, 3) == pytest.approx(0.75)
    assert load_of(20.0, 1, 4) == pytest.approx(1.0)
    assert load_of(20.0, 0, 4) is None
    assert load_of(100.0, 2, 2) is None
