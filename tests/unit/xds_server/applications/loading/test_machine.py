"""The order of an operation, what is undone, and what a restart does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from xds_server.applications.loading.machine import (
    MAX_RESUMES,
    MAX_TRIES,
    Action,
    Check,
    Compare,
    LoadMachine,
    Look,
    ModelCall,
    ReplicaFinding,
    Warm,
)
from xds_server.applications.loading.operation import ENDED, ModelTarget, Operation, dump, load

if TYPE_CHECKING:
    from xds_server.applications.loading.operation import Kind

CHANGE = ReplicaFinding("change")


def operation(count: int = 3, kind: Kind = "load", parallel: int = 2, **more: Any) -> Operation:
    """Return an operation on as many replicas."""
    given: dict[str, Any] = {"version": "", "author": "ann", "reason": "", "force": False}
    given |= {"dry_run": False, "number": 1, "began_unix_ms": 0}
    targets = [ModelTarget(f"r{each}") for each in range(1, count + 1)]
    return Operation(
        kind=kind, pool="llm", model="m", parallel=parallel, targets=targets, **given | more
    )


def machine(found: ReplicaFinding = CHANGE, **given: Any) -> tuple[LoadMachine, list[Action]]:
    """Return a machine whose replicas are checked, and what it wants."""
    made = LoadMachine(operation(**given), lambda: 7)
    assert made.begin() == [Check()]
    return made, made.checked({each.id: found for each in made.operation.targets})


def places(made: LoadMachine) -> list[str]:
    """Return where the replicas stand."""
    return [each.place for each in made.operation.targets]


def test_a_load_goes_through_all_phases() -> None:
    """Two at a time, then the comparison, then warm-up requests."""
    made, first = machine()
    assert first == [ModelCall("r1", "load", 0), ModelCall("r2", "load", 0)]
    assert made.called("r2") == [ModelCall("r3", "load", 0)]
    assert made.called("r1") == []
    assert made.called("r3") == [Compare()]
    assert made.compared((), warm=True) == [Warm("r1"), Warm("r2")]
    assert made.warmed("r1") == [Warm("r3")]
    assert made.warmed("r3") == made.warmed("r2") == []
    assert (made.operation.phase, made.operation.ended_unix_ms) == ("done", 7)


def test_one_failure_undoes_all() -> None:
    """The one that failed, too; and the call that runs is waited for."""
    made, _ = machine()
    assert made.called("r1", "no memory") == [ModelCall("r1", "unload", 0)]
    assert made.called("r2") == [ModelCall("r2", "unload", 0)]
    assert (made.called("r1"), made.called("r2")) == ([], [Look()])
    assert made.looked("r1, r2, r3: no version") == []
    assert made.operation.phase == "undone"
    assert made.operation.why == "r1: not loaded: no memory"
    assert made.operation.now == "r1, r2, r3: no version"
    assert made.operation.steps[-2].text == "now: r1, r2, r3: no version"
    assert places(made) == ["undone"] * 3


def test_a_refusal_changes_nothing() -> None:
    """All refusals are named at once."""
    made = LoadMachine(operation(2), lambda: 0)
    made.begin()
    refused = {"r1": CHANGE, "r2": CHANGE._replace(refusal="16 MiB are free, 20 MiB are needed")}
    assert made.checked(refused) == []
    assert made.operation.phase == "undone"
    assert made.operation.why == "r2: 16 MiB are free, 20 MiB are needed"


def test_a_replica_that_was_not_checked_is_not_changed() -> None:
    """It has left the pool meanwhile, or its check was lost."""
    made = LoadMachine(operation(2), lambda: 0)
    made.begin()
    assert made.checked({"r1": CHANGE}) == []
    assert made.operation.phase == "undone"


def test_what_was_there_before_stays() -> None:
    """Neither a replica that had the model nor one that had another version is unloaded."""
    made = LoadMachine(operation(3), lambda: 0)
    made.begin()
    wanted = made.checked(
        {"r1": ReplicaFinding("keep"), "r2": ReplicaFinding("reload"), "r3": CHANGE}
    )
    assert wanted == [ModelCall("r2", "load", 0), ModelCall("r3", "load", 0)]
    assert made.called("r2") == []
    assert made.called("r3", "broken") == [ModelCall("r3", "unload", 0)]
    assert made.looked("too early") == []
    assert made.called("r3") == [Look()]
    assert made.looked("r2: version 2") == []
    assert places(made) == ["kept", "kept", "undone"]


def test_a_difference_undoes_all() -> None:
    """Replicas that differ would answer one request in two ways."""
    made, _ = machine(count=1)
    made.called("r1")
    assert made.compared(["r1 has platform b, r2 has platform a"]) == [ModelCall("r1", "unload", 0)]


def test_an_unload_that_fails_is_loaded_again() -> None:
    """All or nothing holds in both directions."""
    made, _ = machine(kind="unload", parallel=1)
    assert made.called("r1") == [ModelCall("r2", "unload", 0)]
    assert made.called("r2", "it is gone") == [ModelCall("r1", "load", 0)]
    assert made.called("r1") == [ModelCall("r2", "load", 0)]
    assert made.called("r2") == [Look()]
    made.looked("r1, r2: version 1")
    assert made.operation.phase == "undone"


def test_undoing_is_given_up_in_the_end() -> None:
    """The replica is named; the others are undone."""
    made, _ = machine(count=1)
    wanted = made.abort("ann")
    assert wanted == []
    wanted = made.called("r1")
    for turn in range(MAX_TRIES):
        assert wanted == [ModelCall("r1", "unload", turn)]
        wanted = made.called("r1", "no answer")
    assert wanted == [Look()]
    made.looked("r1: unknown")
    assert made.operation.phase == "failed"
    assert places(made) == ["stuck"]


def test_a_dry_run_ends_with_the_check() -> None:
    """And tells what it found."""
    made, wanted = machine(ReplicaFinding("change", "9 GiB are free"), dry_run=True)
    assert wanted == []
    assert made.operation.phase == "done"
    assert "r1: 9 GiB are free" in [each.text for each in made.operation.steps]


def test_late_outcomes_change_nothing() -> None:
    """An aborted operation has ended; what it asked for is answered later."""
    made, _ = machine(count=1)
    made.called("r1")
    made.abort("")
    made.called("r1")
    made.looked("r1: no version")
    before = dump(made.operation)
    assert made.called("r1") == made.warmed("r1") == made.compared(()) == made.begin() == []
    assert made.looked("") == []
    assert made.checked({}) == made.called("r9") == made.abort("") == made.restarted() == []
    assert dump(made.operation) == before


def restarted(made: LoadMachine, *, whole: bool = True) -> tuple[LoadMachine, list[Action]]:
    """Return the machine of the next process, and what it wants."""
    after = LoadMachine(load(dump(made.operation)), lambda: 7)
    return after, after.restarted(whole=whole)


def test_a_restart_begins_what_waited() -> None:
    """It has changed nothing yet, and had its turn neither."""
    made, wanted = restarted(LoadMachine(operation(), lambda: 0))
    assert (made.operation.phase, made.operation.resumed, wanted) == ("checking", 0, [Check()])


def test_a_restart_checks_again_before_it_changes_more() -> None:
    """Any time may have passed. A call whose end is unknown is made again."""
    made, _ = machine(parallel=2)
    assert made.called("r1") == [ModelCall("r3", "load", 0)]
    after, wanted = restarted(made)
    assert (after.operation.phase, wanted) == ("checking", [Check()])
    assert places(after) == ["changed"] * 3
    there = {"r1": ReplicaFinding("keep"), "r2": CHANGE, "r3": ReplicaFinding("keep")}
    assert after.checked(there) == [ModelCall("r2", "load", 0)]
    assert after.called("r2") == [Compare()]
    assert after.compared(()) == []
    assert (after.operation.phase, places(after)) == ("done", ["changed"] * 3)


def test_a_change_that_is_lost_over_a_restart_is_made_again() -> None:
    """The replica has restarted, too."""
    made, _ = machine(count=1)
    made.called("r1")
    made.operation.phase = "changing"
    after, _ = restarted(made)
    assert after.checked({"r1": CHANGE}) == [ModelCall("r1", "load", 0)]


def test_a_check_that_refuses_after_a_restart_undoes_all_calls() -> None:
    """Also the one whose end is unknown and that is to be made again."""
    made, _ = machine(parallel=1)
    made.called("r1")
    after, _ = restarted(made)
    found = {
        "r1": ReplicaFinding("keep"),
        "r2": CHANGE,
        "r3": CHANGE._replace(refusal="it is gone"),
    }
    assert after.checked(found) == [ModelCall("r1", "unload", 0)]
    assert after.called("r1") == [ModelCall("r2", "unload", 0)]
    assert after.called("r2") == [Look()]
    after.looked("")
    assert (after.operation.phase, after.operation.why) == ("undone", "r3: it is gone")


def test_an_abort_undoes_calls_that_a_restart_has_left_to_be_made_again() -> None:
    """The earlier one may have had an effect."""
    made, _ = machine(parallel=2)
    after, _ = restarted(made)
    after.operation.parallel = 1
    assert after.checked(dict.fromkeys(("r1", "r2", "r3"), CHANGE)) == [ModelCall("r1", "load", 0)]
    assert after.abort("ann") == []
    assert after.called("r1") == [ModelCall("r1", "unload", 0)]
    assert after.called("r1") == [ModelCall("r2", "unload", 0)]
    assert after.called("r2") == [Look()]
    assert places(after) == ["undone"] * 3


def test_what_had_the_model_before_a_restart_keeps_it() -> None:
    """It has lost the model meanwhile: it is loaded there again, and not unloaded by an abort."""
    made, _ = machine(ReplicaFinding("keep"), count=1)
    made.operation.phase, made.operation.ended_unix_ms = "changing", 0
    after, _ = restarted(made)
    assert after.checked({"r1": CHANGE}) == [ModelCall("r1", "load", 0)]
    after.abort("ann")
    assert after.called("r1") == [Look()]
    after.looked("r1: version 1")
    assert (after.operation.phase, places(after)) == ("undone", ["kept"])


def test_a_restart_compares_and_warms_again() -> None:
    """What was compared may be another model by now; a request more does no harm."""
    made, _ = machine(count=1)
    made.called("r1")
    for _ in range(2):
        made, wanted = restarted(made)
        assert (made.operation.phase, wanted) == ("comparing", [Compare()])
        assert made.compared((), warm=True) == [Warm("r1")]
    assert made.warmed("r1") == []
    assert made.operation.phase == "done"


def test_a_restart_undoes_what_lacks_its_inputs() -> None:
    """It cannot do all that was wanted."""
    made, _ = machine(count=1)
    after, wanted = restarted(made, whole=False)
    assert wanted == [ModelCall("r1", "unload", 0)]
    assert after.operation.why.startswith("the control server was restarted, and not all")


def test_an_operation_goes_on_over_so_many_restarts() -> None:
    """It may be what ends the process; undoing goes on over any number."""
    made, _ = machine(count=1)
    for turn in range(1, MAX_RESUMES + 1):
        made, wanted = restarted(made)
        assert (made.operation.resumed, wanted) == (turn, [Check()])
    for _ in range(MAX_RESUMES + 2):
        made, wanted = restarted(made)
        assert wanted == [ModelCall("r1", "unload", 0)]
    assert made.operation.why == f"the control server was restarted {MAX_RESUMES + 1} times"


class Replicas(RuleBasedStateMachine):
    """An operation on replicas whose calls fail, take effect all the same, and are cut off."""

    @initialize(
        had=st.lists(st.sampled_from(["", "old", "new"]), min_size=1, max_size=5),
        kind=st.sampled_from(["load", "unload"]),
        parallel=st.integers(1, 3),
    )
    def start(self, had: list[str], kind: Any, parallel: int) -> None:
        """Begin an operation."""
        self.machine = LoadMachine(operation(len(had), kind, parallel), lambda: 0)
        self.had = {f"r{n}": each for n, each in enumerate(had, 1)}
        self.has = dict(self.had)
        self.pending = self.machine.begin()

    def findings(self) -> dict[str, ReplicaFinding]:
        """Return what a check finds now."""
        plans: dict[str, Any] = {"": "change", "old": "reload", "new": "keep"}
        if self.machine.operation.kind == "unload":
            plans = {"": "keep", "old": "change", "new": "change"}
        return {name: ReplicaFinding(plans[each]) for name, each in self.has.items()}

    def take_effect(self, call: ModelCall) -> None:
        """Let a call change its replica; a load brings what the repository has."""
        self.has[call.replica] = "new" if call.kind == "load" else ""

    @rule(data=st.data(), good=st.booleans(), effect=st.booleans())
    def answer(self, data: st.DataObject, good: bool, effect: bool) -> None:
        """One of the actions ends."""
        if not self.pending:
            return
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        if isinstance(action, Check):
            self.pending += self.machine.checked(self.findings(), "" if good else "refused")
        elif isinstance(action, Compare):
            good = good and set(self.has.values()) == {"new"}
            self.pending += self.machine.compared(() if good else ["x"], warm=effect)
        elif isinstance(action, Warm):
            self.pending += self.machine.warmed(action.replica, "" if good else "x")
        elif isinstance(action, Look):
            self.pending += self.machine.looked(str(self.has))
        else:
            if good or effect:
                self.take_effect(action)
            self.pending += self.machine.called(action.replica, "" if good else "x")

    @rule()
    def abort(self) -> None:
        """An operator gives up."""
        self.pending += self.machine.abort("ann")

    @rule(effect=st.booleans(), whole=st.sampled_from([True, True, True, False]))
    def restart(self, effect: bool, whole: bool) -> None:
        """All that runs is cut off, with or without effect."""
        before = self.machine.operation.phase
        for each in self.pending:
            if isinstance(each, ModelCall) and effect:
                self.take_effect(each)
        self.machine = LoadMachine(load(dump(self.machine.operation)), lambda: 0)
        self.pending = self.machine.restarted(whole=whole)
        now = self.machine.operation
        if whole and now.resumed <= MAX_RESUMES and before not in {"undoing", *ENDED}:
            assert now.phase in {"checking", "comparing"}, "it goes on"
        elif before not in ENDED:
            assert now.phase in {"undoing", "undone"}, "it is undone"

    @invariant()
    def holds(self) -> None:
        """Bounds hold at any time, and an end is what it says."""
        made = getattr(self, "machine", None)
        if made is None:
            return
        calls = [each for each in self.pending if isinstance(each, ModelCall)]
        assert len(calls) <= made.operation.parallel
        assert len({each.replica for each in calls}) == len(calls)
        known = {each.id: each.place for each in made.operation.targets}
        for name, before in self.had.items():
            if before and made.operation.kind == "load":
                assert self.has[name], "what served before is never taken away"
        if made.operation.phase == "done":
            assert set(self.has.values()) == {"new" if made.operation.kind == "load" else ""}
        if made.operation.now:
            assert made.operation.now == str(self.has), "what is said is what is"
        if made.operation.phase == "undone":
            assert {n for n in self.has if self.has[n]} == {n for n in self.had if self.had[n]}
        if made.operation.phase == "failed":
            assert {n for n in self.has if bool(self.has[n]) != bool(self.had[n])} <= {
                n for n, place in known.items() if place == "stuck"
            }
        if not made.operation.ended:
            assert self.pending, "an operation that waits for nothing never ends"


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=100)


def test_an_unload_that_clients_were_not_told_of_is_not_sent() -> None:
    """Nothing is brought back there; what was unloaded before is."""
    made, first = machine(kind="unload", parallel=1)
    assert first == [ModelCall("r1", "unload", 0)]
    assert made.called("r1", notes=["goes on"]) == [ModelCall("r2", "unload", 0)]
    assert made.called("r2", "picker p is not connected", sent=False) == [
        ModelCall("r1", "load", 0)
    ]
    assert places(made) == ["undoing", "undone", "undone"]
    assert made.called("r1") == [Look()]
    made.looked("r1: version 1")
    assert made.operation.phase == "undone"
    assert made.operation.why == "r2: not unloaded: picker p is not connected"
    assert "r1: goes on" in [each.text for each in made.operation.steps]


def test_a_call_that_may_have_been_sent_before_a_restart_is_brought_back() -> None:
    """Also if the next process does not send it."""
    made, _ = machine(kind="unload", count=1)
    again = LoadMachine(load(dump(made.operation)), lambda: 8)
    assert again.restarted() == [Check()]
    assert again.checked({"r1": CHANGE}) == [ModelCall("r1", "unload", 0)]
    assert again.called("r1", "no picker", sent=False) == [ModelCall("r1", "load", 0)]


def test_an_abort_while_a_model_leaves_sends_nothing() -> None:
    """The replica has the model as before."""
    made, _ = machine(kind="unload", count=1)
    assert made.abort("ann") == []
    assert made.called("r1", "given up", sent=False) == []
    assert made.operation.phase == "undone"
