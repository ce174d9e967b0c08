"""Rollouts over a real control: revisions, two operators, weights by hand, kills, a full disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest
from google.protobuf import any_pb2

from support.controls import WAIT, World, weight
from support.fleets import fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE
from tidegate_common.canary import ALL, SessionFailure, SessionRecord
from xds_server.applications.canary.controller import RolloutSpec, StartError
from xds_server.applications.canary.guards import ArmReplicas, PoolAlerts
from xds_server.applications.canary.plan import CanaryPlan, CanaryPlanError
from xds_server.applications.canary.rollout import ActionError
from xds_server.applications.keepers import canary_keeper
from xds_server.applications.keepers.canary_keeper import AUTHOR, CanaryKeeper
from xds_server.applications.traffic.reading import ToldSessions
from xds_server.control.operation import Busy, ChangeOptions
from xds_server.fleet.change import BadChange, UnknownName, set_weights
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.store import RevisionStore, StoreError

VARIANTS = [
    {"name": "stable", "weight": 100, "model_version": "1"},
    {"name": "canary", "weight": 0, "model_version": "2"},
]
FLEET = fleet(pool(default=True, variants=VARIANTS)).model_dump_json()
PLAN = CanaryPlan((5.0, 50.0, 100.0), 60.0, 1)
BEGAN_S = 1_800_000_000.0
_WELL = ArmReplicas(3, 3)


class Kept:
    """A control, its keeper, and what was stored."""

    def __init__(self, store: RevisionStore) -> None:
        self.world = World(store)
        self.control = self.world.control
        self.now_s = BEGAN_S
        self.replicas = {"canary": _WELL, "stable": _WELL}
        self.stored: list[str] = []
        self.full = False
        self.alerts = PoolAlerts()
        self.keeper = self.restarted()

    def restarted(self) -> CanaryKeeper:
        """Return a keeper that has nothing but what was stored last."""
        made = CanaryKeeper(
            self.control,
            lambda _, variant: self.replicas[variant],
            self._store,
            lambda: self.now_s,
            lambda: 0.25,
            lambda _: self.alerts,
        )
        if self.stored:
            made.recall(self.stored[-1])
            made.settle()
        return made

    async def _store(self, text: str) -> None:
        if self.full:
            raise StoreError("no space left on device")
        self.stored.append(text)

    async def start(self) -> str:
        """Start a rollout."""
        return await self.keeper.start("llm", "canary", "ann", plan=PLAN, kinds=())

    async def pass_minutes(self, minutes: int, fails: float = 0.0, sessions: int = 400) -> None:
        """Let pickers tell of sessions, half of them the canary's, and look."""
        for number in range(minutes):
            found = self.keeper._rollouts["llm"]
            records = []
            for each in range(sessions):
                canary = each % 2 == 0
                bad = canary and each < fails * sessions
                failure = SessionFailure(int(self.now_s // 60), 0) if bad else None
                digest = hash((self.now_s, number, each)) & (2**64 - 1)
                begun_ms = int(self.now_s * 1000)
                records.append(SessionRecord(digest, begun_ms, 0, canary, None, failure))
            self.now_s += 60.0
            told = ToldSessions("llm", found.spec.rollout, records, ALL, self.now_s)
            self.keeper.take("p1", told)
            await self.keeper.look()


async def by_hand(kept: Kept, weights: dict[str, int]) -> None:
    """Set weights as an operator does."""
    await kept.control.change(lambda fleet: set_weights(fleet, "llm", weights), WAIT)


@pytest.fixture
async def kept():
    """Return the parts with a pool whose stable has all of the weight."""
    with closing(RevisionStore(None)) as store:
        made = Kept(store)
        await made.control.start(FLEET, "fleet.yaml")
        yield made
        await made.control.stop()


async def test_each_step_is_a_revision_with_its_numbers(kept: Kept) -> None:
    """To the whole, by itself."""
    line = await kept.start()
    assert line == "canary llm: canary at 5 %, running"
    await kept.pass_minutes(20)
    newest = list(await kept.control.revisions(3))
    assert [each.author for each in newest] == [AUTHOR, AUTHOR, "ann"]
    assert "100 %: no worse in all checks" in newest[0].reason
    assert "sessions of the canary" in newest[1].reason
    assert weight(kept.control, "stable") == 0
    assert kept.keeper.report("llm")["phase"] == "promoted"
    assert kept.keeper.lines() == []


def told(kept: Kept) -> pool_pb2.Pool:
    """Return what pickers hold of the pool."""
    held = kept.world.publisher.in_force("picker").resources(POOL_TYPE)["llm"]
    message = pool_pb2.Pool()
    any_pb2.Any.FromString(held.any).Unpack(message)
    return message


async def test_pickers_are_told_of_a_rollout_with_its_weights(kept: Kept) -> None:
    """The step and its weights come in one resource, and weights of no step tell of none."""
    assert not told(kept).HasField("canary")
    await kept.start()
    rollout = kept.keeper.report("llm")["rollout"]
    said = pool_pb2.Canary(rollout=rollout, canary="canary", stable="stable", step=0)
    assert told(kept).canary == said
    assert told(kept).variants[1].weight > 0
    await kept.pass_minutes(2)
    said.step = 1
    assert told(kept).canary == said
    await by_hand(kept, {"stable": 90, "canary": 10})
    assert not told(kept).HasField("canary")
    await kept.pass_minutes(1)
    await kept.keeper.ask("llm", "resume", "ann")
    assert told(kept).canary == said
    await kept.keeper.ask("llm", "abort", "ann")
    assert not told(kept).HasField("canary")


async def test_a_canary_that_fails_is_rolled_back_in_one_revision(kept: Kept) -> None:
    """To the weights of before, whatever the store says, and the evidence is kept."""
    await kept.start()
    kept.full = True
    await kept.pass_minutes(1, fails=0.2)
    assert (weight(kept.control, "stable"), weight(kept.control)) == (100, 0)
    told = kept.keeper.report("llm")
    assert told["phase"] == "rolled-back"
    assert told["failed_sessions"]["canary"] > 0


async def test_an_alert_ends_a_rollout_and_an_unknown_one_holds_it(kept: Kept) -> None:
    """A Prometheus that is away is no reason to go on, nor to go back."""
    await kept.start()
    kept.alerts = PoolAlerts(unknown=["http://p: refuses connections"])
    await kept.pass_minutes(20)
    assert weight(kept.control) == kept.keeper._rollouts["llm"]._weight(5.0)
    assert kept.keeper.lacking("llm")[0] == "alerts: http://p: refuses connections (holds the step)"
    kept.alerts = PoolAlerts(["TidegateSlow"])
    await kept.pass_minutes(1)
    assert weight(kept.control) == 0
    assert kept.keeper.report("llm")["reason"] == "alert: TidegateSlow"


async def test_a_step_forward_waits_for_the_store(kept: Kept) -> None:
    """A kill would otherwise lose it; the next look makes it."""
    await kept.start()
    kept.full = True
    await kept.pass_minutes(2)
    assert kept.keeper.report("llm")["percent"] == 5.0
    kept.full = False
    await kept.pass_minutes(1)
    assert kept.keeper.report("llm")["percent"] == 50.0


async def test_a_rollout_needs_a_pool_whose_stable_has_everything(kept: Kept) -> None:
    """And only one runs in a pool."""
    with pytest.raises(StartError, match="no pool nowhere"):
        await kept.keeper.start("nowhere", "canary", "ann", plan=PLAN)
    await by_hand(kept, {"canary": 5})
    with pytest.raises(StartError, match="has a weight already"):
        await kept.start()
    await by_hand(kept, {"canary": 0})
    await kept.start()
    with pytest.raises(StartError, match="abort it first"):
        await kept.start()
    with pytest.raises(ActionError, match="has had no rollout"):
        kept.keeper.report("other")


async def test_two_operators_cannot_both_act(kept: Kept) -> None:
    """The second is told what the first did."""
    await kept.start()
    assert kept.keeper._rollouts["llm"].transitions == 1
    seen = 1
    await kept.keeper.ask("llm", "promote", "ann", seen)
    with pytest.raises(ActionError, match=r"seen 1; promoted at 100 %: promote by ann\. Look"):
        await kept.keeper.ask("llm", "abort", "bob", seen)
    with pytest.raises(ActionError, match="start: pool llm changed meanwhile, it is at 2"):
        await kept.keeper.begin("llm", "stable", "bob", {}, seen=seen)
    with pytest.raises(ActionError, match="has ended"):
        await kept.keeper.ask("llm", "abort", "bob")
    assert weight(kept.control) > 0
    await kept.keeper.begin("llm", "stable", "bob", {"shadow": "true"}, seen=2)
    with pytest.raises(ActionError, match="at 3 transitions and you have seen 2; running at 0 %: "):
        await kept.keeper.ask("llm", "abort", "ann", 2)
    assert kept.restarted()._rollouts["llm"].transitions == 3


async def test_a_start_that_fails_is_not_made_by_a_restart(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored as intended before the weights could not be changed."""

    async def busy(*_: object) -> None:
        raise Busy("too many changes wait")

    monkeypatch.setattr(kept.control, "change", busy)
    with pytest.raises(Busy):
        await kept.start()
    monkeypatch.undo()
    kept.keeper = kept.restarted()
    await kept.keeper.look()
    assert (kept.keeper.rollouts(), weight(kept.control)) == ({}, 0)


async def test_a_start_whose_weights_are_changed_goes_on_though_the_store_is_full(
    kept: Kept,
) -> None:
    """A variant with weight has its rollout, which a restart takes up."""
    kept.control._on_revision = lambda _: setattr(kept, "full", True)
    await kept.start()
    assert weight(kept.control) > 0
    assert kept.keeper.rollouts()["llm"].running
    assert kept.restarted().rollouts()["llm"].running
    kept.full = False
    await kept.keeper.look()
    assert kept.restarted().rollouts()["llm"].transitions == 1


async def test_what_leaves_the_weights_as_they_are_is_in_the_history(kept: Kept) -> None:
    """Who paused, resumed and froze, and why."""
    await kept.start()
    await kept.keeper.ask("llm", "pause", "ann", reason="lunch")
    await kept.keeper.ask("llm", "resume", "bob")
    await kept.keeper.freeze("eve", "incident 7")
    found = [(each.author, *each.changes) for each in await kept.control.revisions(3)]
    assert found == [
        ("eve", "all rollouts frozen"),
        ("bob", "canary canary of pool llm: resume by bob"),
        ("ann", "canary canary of pool llm: pause by ann (lunch)"),
    ]
    assert (await kept.control.revisions(1))[0].reason == "all rollouts frozen (incident 7)"


async def test_weights_that_are_changed_between_look_and_step_are_not_overwritten(
    kept: Kept,
) -> None:
    """The control refuses, and the next look pauses."""
    await kept.start()
    with pytest.raises(BadChange, match="changed meanwhile"):
        await kept.control.change(
            lambda fleet: set_weights(fleet, "llm", {"canary": 1}, {"canary": 7}), ChangeOptions()
        )
    await by_hand(kept, {"stable": 80, "canary": 20})
    await kept.pass_minutes(5, fails=0.5)
    assert (weight(kept.control, "stable"), weight(kept.control)) == (80, 20)
    assert "set by hand: 20 % in place of 5 %" in kept.keeper.lines()[0]


async def test_frozen_nothing_moves_by_itself_and_operators_may(kept: Kept) -> None:
    """Also after a restart; the line says who froze it."""
    await kept.start()
    await kept.keeper.freeze("ann", "incident 7")
    kept.keeper = kept.restarted()
    with pytest.raises(ActionError, match="you have seen 0; frozen by ann: incident 7"):
        await kept.keeper.freeze("bob", seen=0, frozen=False)
    await kept.pass_minutes(5)
    assert kept.keeper.report("llm")["percent"] == 5.0
    assert "waits for frozen by ann: incident 7" in kept.keeper.lines()[0]
    with pytest.raises(ActionError, match="frozen by ann"):
        await kept.start()
    await kept.keeper.ask("llm", "abort", "bob")
    assert weight(kept.control) == 0


@pytest.mark.parametrize("writes", range(1, 5))
async def test_a_kill_after_any_write_goes_on_where_it_was(kept: Kept, writes: int) -> None:
    """The start stores twice, and so does each step."""
    await kept.start()
    await kept.pass_minutes(1)
    assert len(kept.stored) >= 4
    kept.stored = kept.stored[:writes]
    kept.keeper = kept.restarted()
    await kept.keeper.look()
    await kept.pass_minutes(20)
    told = kept.keeper.report("llm")
    # A store that lost a whole step finds weights that are not its own.
    lost = writes < 3
    assert told["phase"] == ("paused" if lost else "promoted"), told["reason"]


async def test_an_unfinished_rollback_is_finished_at_the_start(kept: Kept) -> None:
    """What was intended is stored before the weights change."""
    await kept.start()
    kept.replicas["canary"] = ArmReplicas(2, 0)
    was = len(kept.stored)
    await kept.keeper.look()
    kept.stored = kept.stored[: was + 1]
    await by_hand(kept, kept.keeper._rollouts["llm"]._weights(_state_before(kept)))
    kept.keeper = kept.restarted()
    await kept.keeper.look()
    assert (weight(kept.control, "stable"), weight(kept.control)) == (100, 0)
    assert kept.keeper.report("llm")["phase"] == "rolled-back"


def _state_before(kept: Kept):
    found = kept.keeper._rollouts["llm"]
    return found.state._replace(phase=type(found.state.phase).RUNNING)


async def test_rollouts_are_bounded_by_pools(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ended one makes room; a running one does not."""
    monkeypatch.setattr(canary_keeper, "MAX_POOLS", 1)
    await kept.start()
    with pytest.raises(StartError, match="1 rollouts run already"):
        await kept.keeper.start("other", "canary", "ann", plan=PLAN)
    await kept.keeper.ask("llm", "abort", "ann")
    with pytest.raises(StartError, match="no pool other"):
        await kept.keeper.start("other", "canary", "ann", plan=PLAN)


async def test_reports_of_another_rollout_are_left_out(kept: Kept) -> None:
    """A picker may be behind."""
    await kept.start()
    record = SessionRecord(1, int(BEGAN_S * 1000), 0, True)
    kept.keeper.take("p1", ToldSessions("llm", "llm-0", [record], ALL, BEGAN_S + 60.0))
    kept.keeper.take("p1", ToldSessions("nowhere", "llm-0", [record], ALL, BEGAN_S + 60.0))
    assert kept.keeper._rollouts["llm"].book._sessions == {}


def _counting_tokens(fleet: Fleet) -> Fleet:
    one = fleet.pools[0]
    telemetry = one.telemetry.model_copy(update={"usage": True})
    return fleet.model_copy(update={"pools": (one.model_copy(update={"telemetry": telemetry}),)})


async def test_the_cost_of_a_rollout_has_what_is_told_after_its_end(kept: Kept) -> None:
    """A guard ends one within seconds; a restart keeps it."""
    await kept.start()
    rollout = kept.keeper.report("llm")["rollout"]
    await kept.keeper.ask("llm", "abort", "ann")
    failure = SessionFailure(int(BEGAN_S // 60), 0)
    record = SessionRecord(1, int(BEGAN_S * 1000), 0, True, None, failure)
    kept.keeper.take("p1", ToldSessions("llm", rollout, [record], ALL, BEGAN_S + 5.0))
    await kept.keeper.look()
    for keeper in (kept.keeper, kept.restarted()):
        told = keeper.report("llm")
        assert (told["sessions"]["canary"], told["failed_sessions"]["canary"]) == (1, 1)


async def test_a_plan_of_words_is_that_of_the_file_with_other_values(kept: Kept) -> None:
    """A wrong word names what there is; a right one counts for this rollout alone."""
    for words, said in (
        ({"stps": "1,100"}, "no setting 'stps' of canary; it has steps"),
        ({"steps": "50,10"}, "must rise and end with 100"),
        ({"undecided": "never"}, "canary.undecided"),
        ({"least_time": "soon"}, "is no duration"),
        ({"times": "per-token"}, "pool llm cannot measure per-token without token counts: set"),
        ({"cache": "true", "times": "per-token,whole"}, "cannot measure per-token and cache"),
    ):
        with pytest.raises(CanaryPlanError, match=said):
            await kept.keeper.begin("llm", "canary", "ann", words)
    await kept.control.change(_counting_tokens, WAIT)
    words = {
        "steps": "10, 100",
        "least_time": "2s",
        "window": "1",
        "times": "whole,per-token",
        "cache": "true",
    }
    await kept.keeper.begin("llm", "canary", "ann", words)
    plan = kept.keeper.rollouts("llm")["llm"].plan
    assert (plan.steps, plan.least_s, plan.minute_s) == ((10.0, 100.0), 2.0, 1.0)
    checks = {each["check"] for each in kept.keeper.report("llm")["checks"]}
    assert {"failures", "whole p50", "per-token p50", "cache"} <= checks
    with pytest.raises(UnknownName):
        await kept.keeper.begin("llmm", "canary", "ann", {})


async def test_weights_are_not_set_beside_a_rollout(kept: Kept) -> None:
    """Before and after it they may be, and once they were forced."""
    kept.keeper.refuse_weights("llm")
    await kept.start()
    with pytest.raises(ActionError, match="canary at 5 %, running: it moves the weights"):
        kept.keeper.refuse_weights("llm")
    await by_hand(kept, {"stable": 90, "canary": 10})
    await kept.pass_minutes(1)
    assert "set by hand" in kept.keeper.lines()[0]
    kept.keeper.refuse_weights("llm")
    await kept.keeper.ask("llm", "abort", "ann", reason="not today")
    assert "abort by ann (not today)" in kept.keeper.report("llm")["reason"]
    kept.keeper.refuse_weights("llm")


async def test_copies_come_before_the_first_step(kept: Kept) -> None:
    """For the least time; the first step, or an end, takes them away in its revision."""
    line = await kept.keeper.begin("llm", "canary", "ann", {"shadow": "true", "least_time": "90s"})
    assert line == "canary llm: canary at copies, 0 %, running"

    def copied() -> bool:
        return kept.control.written.pools[0].shadow is not None

    assert copied()
    await kept.pass_minutes(1)
    assert (copied(), weight(kept.control)) == (True, 0)
    assert kept.keeper.lacking("llm") == ["30 s of the step's least time of 90 s"]
    kept.replicas["canary"] = ArmReplicas(3, 0)
    await kept.pass_minutes(1)
    assert copied(), "no step is made onto replicas that are out of use"
    kept.keeper = kept.restarted()
    kept.replicas["canary"] = _WELL
    await kept.keeper.look()
    assert not copied()
    assert weight(kept.control) > 0
    await kept.keeper.ask("llm", "abort", "ann")
    await kept.keeper.begin("llm", "canary", "ann", {"shadow": "true"})
    kept.replicas["canary"] = ArmReplicas(3, 3, starved=["r3"])
    await kept.pass_minutes(1)
    assert (copied(), weight(kept.control)) == (False, 0)
    assert kept.keeper.report("llm")["reason"] == "memory: r3 has none left"


async def test_copies_that_fail_end_it_before_a_client_sees_the_canary(kept: Kept) -> None:
    """Its weight was never above 0; until enough were answered no step comes."""
    await kept.keeper.begin("llm", "canary", "ann", {"shadow": "true", "least_time": "60s"})
    asked: list[str] = []

    async def count(specs: Sequence[RolloutSpec]) -> None:
        asked.append(",".join(each.canary for each in specs))

    kept.keeper._count = count
    kept.replicas["canary"] = ArmReplicas(3, 3, uncopied=True)
    await kept.pass_minutes(3)
    assert kept.keeper.lacking("llm") == ["copies: fewer than 20 were answered (holds the step)"]
    kept.replicas["canary"] = ArmReplicas(3, 3, copies=["9 of 20 failed, of stable 0 %"])
    await kept.pass_minutes(1)
    told = kept.keeper.report("llm")
    assert (told["phase"], told["reason"]) == (
        "rolled-back",
        "copies: 9 of 20 failed, of stable 0 %",
    )
    assert {each["percent"] for each in told["log"]} == {0.0}
    assert kept.control.written.pools[0].shadow is None
    await kept.keeper.look()
    assert asked == ["canary"] * 4 + [""], "they are counted before each look"


async def test_a_picker_that_left_is_not_waited_for(kept: Kept) -> None:
    """One that is connected and silent holds the step."""
    connected = {"p1", "p2"}
    kept.keeper._pickers = lambda: connected
    await kept.start()
    rollout = kept.keeper.report("llm")["rollout"]
    kept.keeper.take("p2", ToldSessions("llm", rollout, [], ALL, kept.now_s))
    await kept.pass_minutes(3)
    assert "picker p2 is not heard" in kept.keeper.lacking("llm")
    connected.remove("p2")
    await kept.pass_minutes(1)
    assert "picker p2 is not heard" not in kept.keeper.lacking("llm")


async def test_steps_may_take_seconds(kept: Kept) -> None:
    """The seam of tests: evidence of a second is judged together, and outcomes are known in ten."""
    words = {"steps": "50,100", "least_time": "2s", "least_sessions": "20", "window": "1"}
    await kept.keeper.begin("llm", "canary", "ann", words | {"failures_below": "20", "times": ""})
    rollout = kept.keeper.report("llm")["rollout"]
    for second in range(20):
        begun_ms = int(kept.now_s * 1000)
        records = [
            SessionRecord(100 * second + each, begun_ms, 0, each % 2 == 0) for each in range(40)
        ]
        kept.now_s += 1.0
        kept.keeper.take("p1", ToldSessions("llm", rollout, records, ALL, kept.now_s))
        await kept.keeper.look()
    assert kept.keeper.report("llm")["phase"] == "promoted"
    assert weight(kept.control, "stable") == 0
