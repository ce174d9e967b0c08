"""The publisher: stages, deadlines, NACKs, clients that catch up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support.publications import Simulation, envoys, five, pools, running
from xds_server.protocol.gate.patience import LEAST_S, WARMING_S
from xds_server.protocol.messages import short_type
from xds_server.protocol.publication import MAX_STAGES, PublicationOutcome, Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.tracker import Content, TypeTracker

if TYPE_CHECKING:
    from xds_server.protocol.publication import Audience


def test_without_clients_a_publication_passes_at_once() -> None:
    """X6, rule 2: it ends at once, without a time of grace; the snapshots are in force."""
    sim = Simulation()
    *first, last = five("a", "b")
    run = sim.publish(*first, replace(last, grace_s=9.0))
    assert sim.outcome(run) == PublicationOutcome("done", 0, 0, (), (), 0.0, "remove")
    assert sim.publisher.settled
    assert sim.publisher.in_force("envoy") == envoys("b", "b")
    assert sim.publisher.wake_at is None


def test_stages_go_one_by_one_across_clients() -> None:
    """X51, X52: add, use, switch, stop, remove, each after the answers to the one before."""
    sim = running()
    for got in sim.got.values():
        got.clear()
    run = sim.publish(*five("a", "b"))
    seen = []
    for number in (1, 11, 1, 11, 1):
        seen.append((sim.outcome(run).stage, list(sim.got[1]), list(sim.got[11])))
        sim.answer(number)
    assert seen == [
        ("add", ["CDS"], []),
        ("use", ["CDS"], ["POOL"]),
        ("switch", ["CDS", "RDS"], ["POOL"]),
        ("stop", ["CDS", "RDS"], ["POOL", "POOL"]),
        ("remove", ["CDS", "RDS", "CDS"], ["POOL", "POOL"]),
    ]
    assert sim.outcome(run) == PublicationOutcome(
        "done", 2, 2, (), ("CDS", "POOL", "RDS"), 0.0, "remove"
    )


def test_only_types_that_a_stage_changes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """X18: a stage that changes nothing passes at once, and costs a client nothing.

    Most changes have one that does; a change of weights sends routes only.
    """
    sim, looked = running(), list[str]()
    due = TypeTracker.due

    def seen(tracker: TypeTracker, snapshot: Snapshot, now: float) -> Content | None:
        looked.append(short_type(tracker.type_url))
        return due(tracker, snapshot, now)

    monkeypatch.setattr(TypeTracker, "due", seen)
    run = sim.publish(
        Stage("add", "envoy", envoys("a", "a")),
        Stage("use", "picker", pools("a")),
        Stage("switch", "envoy", envoys("a", "10%")),
        Stage("stop", "picker", pools("a")),
        Stage("remove", "envoy", envoys("a", "10%")),
    )
    sim.now = 0.2
    sim.answer(1)
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.channels, outcome.elapsed_s) == ("done", ("RDS",), 0.2)
    assert looked == ["RDS", "RDS"]  # to send it, and after the answer


def test_a_gate_waits_for_every_connected_client() -> None:
    """Rule 1, X6: one answer of two is not enough; a client that has gone delays nothing."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1)
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.stage, outcome.elapsed_s) == ("waiting", "add", None)
    sim.leave(2)
    assert sim.outcome(run).stage == "use"


def test_a_stalled_client_leaves_the_gate_and_gets_no_next_stage() -> None:
    """X51, X56, X63: after the deadline the others continue; it keeps its stage and is reported."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1)
    assert sim.publisher.wake_at == WARMING_S
    sim.at(WARMING_S)
    sim.answer(11, 1, 11, 1)
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.clients, outcome.acked) == ("done", 3, 2)
    (problem,) = outcome.problems
    assert (problem.client, problem.state, problem.type) == ("n2", "STALLED", "CDS")
    assert sim.got[2] == ["CDS", "RDS", "CDS"]


def test_a_silent_client_delays_one_change_and_no_further_one() -> None:
    """Rules 1 and 3: changes that supersede each other restart no client's clock."""
    sim = running(envoy_count=2)
    for number in range(10):
        sim.at(float(number))
        run = sim.publish(*five("a", "bc"[number % 2]))
        sim.answer(1, 11, 1, 11, 1)
        ended = sim.outcome(run).state == "done"
        assert ended == (sim.now >= WARMING_S)


def test_a_late_client_is_led_to_the_newest_state_once_it_answers() -> None:
    """Rule 3: it has missed several changes, and ends where the others are."""
    sim = running(envoy_count=2)
    sim.publish(*five("a", "b"))
    sim.at(WARMING_S)
    for clusters in ("c", "d"):
        run = sim.publish(*five("b", clusters))
        sim.answer(1, 11, 1, 11, 1)
        assert sim.outcome(run).state == "done"
    sim.answer(2)
    assert sim.publisher._course.clients[2].problem(sim.now) is None
    assert sim.publisher._course.clients[2].stream._snapshot == sim.publisher.in_force("envoy")


@pytest.mark.parametrize("audience", ["envoy", "picker"])
def test_clients_that_never_answer_hold_nothing_under_any_name(audience: Audience) -> None:
    """Each new node id had the whole patience: a mute pod that restarts delayed each change."""
    sim = running()
    for number in (20, 21):
        sim.join(number, audience)
        run = sim.publish(*five("a", "b" if number == 20 else "c", drain=frozenset({"r1"})))
        sim.report(r1=0)
        for answering in (1, 11, 1, 11, 1):
            sim.answer(answering)
            sim.report(r1=0)
        assert (sim.outcome(run).state, sim.outcome(run).problems) == ("done", ())
        sim.at(sim.now + 15.0)
        assert [each.client for each in sim.outcome(sim.publish()).problems] == [f"n{number}"]
        sim.leave(number)


def test_a_client_that_never_answered_follows_once_it_does() -> None:
    """It is led over the stages like a late one, and is waited for from then on."""
    sim = running()
    sim.join(2)
    sim.publish(*five("a", "b"))
    sim.answer(1, 11, 1, 11, 1, 2)
    run = sim.publish(*five("b", "c"))
    sim.answer(1, 11, 1, 11, 1)
    assert (sim.outcome(run).state, sim.outcome(run).stage) == ("waiting", "add")
    sim.answer(2)
    assert sim.outcome(run).stage == "use"


def test_a_client_that_resumes_holds_a_change_before_its_first_answer() -> None:
    """It serves what an earlier server gave it."""
    sim = running()
    sim.join(2, version="x")
    run = sim.publish(*five("a", "b"))
    sim.answer(1)
    assert sim.outcome(run).stage == "add"


def test_a_late_client_that_reconnects_is_not_waited_for_again() -> None:
    """A node that was late when its connection ended has no patience left until it answers."""
    sim = running(envoy_count=2)
    sim.publish(*five("a", "ab"))
    sim.at(WARMING_S)
    sim.leave(2)
    sim.join(3, node="n2", version="x")
    run = sim.publish(*five("ab", "abc"))
    sim.answer(1, 11, 1, 11, 1)
    assert sim.outcome(run).state == "done"
    sim.answer(3)
    sim.leave(3)
    sim.join(4, node="n2", version="x")
    run = sim.publish(*five("abc", "abcd"))
    sim.answer(1, 11, 1, 11, 1)
    assert sim.outcome(run).state == "waiting"


def test_an_urgent_stage_waits_for_no_client() -> None:
    """Rule 1: the stage after it begins at once."""
    sim = running(envoy_count=1)
    urgent = Stage("urgent", "picker", pools("a, draining"), urgent=True)
    run = sim.publish(urgent, *five("a", "b"))
    assert (sim.got[11][-1], sim.outcome(run).stage) == ("POOL", "add")


def test_a_type_that_needs_no_warming_is_waited_for_shortly() -> None:
    """A picker that answered at once so far is late after a second."""
    sim = running(pickers=2)
    sim.publish(Stage("use", "picker", pools("b")))
    sim.answer(11)
    assert sim.publisher.wake_at == LEAST_S


def test_a_stalled_client_comes_back_stage_by_stage() -> None:
    """Rule 3: after its answer it goes through the stages that it missed, in their order."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1)
    sim.at(15.0)
    sim.answer(11, 1, 11, 1)
    sim.got[2].clear()
    sim.answer(2)
    assert sim.got[2] == ["RDS", "CDS"]
    assert sim.outcome(run).state == "done"
    again = sim.publish(Stage("remove", "envoy", envoys("b", "b")))
    assert sim.outcome(again).acked == 3


def test_a_stalled_client_that_answers_in_its_stage_counts_again() -> None:
    """Rule 3: on the newest stage it counts again."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1)
    sim.at(15.0)
    assert sim.outcome(run).stage == "use"
    sim.answer(2, 11, 1)
    assert (sim.outcome(run).stage, sim.outcome(run).problems) == ("switch", ())


def test_a_nack_before_the_switch_abandons() -> None:
    """Rule 4: all clients, the NACKED one too, return; its error message is kept."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(2)
    sim.answer(1, error="zero connect_timeout")
    sim.answer(2)
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.stage) == ("abandoned", "add")
    (problem,) = outcome.problems
    assert (problem.client, problem.state, problem.type, problem.message) == (
        "n1",
        "NACKED",
        "CDS",
        "zero connect_timeout",
    )
    assert sim.publisher.in_force("envoy") == envoys("a", "a")
    assert sim.got[1][-1] == "CDS"
    check = sim.publish(Stage("add", "envoy", envoys("a", "a")))
    assert sim.outcome(check).acked == 3


def test_a_nack_at_the_switch_halts() -> None:
    """Rule 4: the state reached stays in force; the caller publishes the way back in stages."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1, 2, 11)
    sim.answer(1, error="bad route")
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.stage) == ("abandoned", "switch")
    assert [(p.client, p.type, p.message) for p in outcome.problems] == [("n1", "RDS", "bad route")]
    assert sim.publisher.in_force("envoy") == envoys("ab", "b")
    back = sim.publish(Stage("switch", "envoy", envoys("ab", "a")))
    sim.answer(1, 2)
    assert (sim.outcome(back).state, sim.outcome(back).acked) == ("done", 3)


def test_a_latecomers_nack_vetoes_nothing() -> None:
    """Rule 4: a NACK of a client that connected during a change abandons nothing."""
    sim = running()
    sim.now = 1.0
    run = sim.publish(*five("a", "b"))
    sim.now = 2.0
    sim.join(2)
    sim.answer(2, error="cannot bind")
    sim.answer(1)
    assert sim.outcome(run).stage == "use"


def test_a_client_nacked_before_has_no_veto() -> None:
    """Rule 4: a client that rejects everything cannot prevent changes for the others."""
    sim = running(envoy_count=2)
    sim.publish(Stage("add", "envoy", envoys("x", "a")), on_reject="keep")
    sim.answer(1, error="too old")
    sim.answer(2)
    run = sim.publish(*five("a", "b"))
    sim.answer(1, error="too old")
    sim.answer(2)
    assert sim.outcome(run).stage == "use"


def test_a_nack_at_the_switch_may_leave_it_in_force_for_the_others() -> None:
    """X56: with ``keep`` the NACKED client gets no further stage; the others finish."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"), on_reject="keep")
    sim.answer(1, 2, 11)
    sim.answer(1, error="bad route")
    sim.answer(2, 11, 2)
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.acked) == ("done", 2)
    assert [(p.client, p.type, p.message) for p in outcome.problems] == [("n1", "RDS", "bad route")]
    assert sim.got[1].count("CDS") == 2
    assert sim.got[2].count("CDS") == 3


def test_the_first_publication_is_never_abandoned() -> None:
    """Rule 4: without an earlier state there is nothing to return to."""
    sim = Simulation()
    sim.join(1)
    run = sim.publish(*five("a", "b"))
    sim.answer(1, error="bad")
    sim.publisher.tick(0.0)
    assert sim.outcome(run).state == "done"
    assert sim.publisher._course.clients[1].standing.state == "NACKED"


def test_an_old_nack_delays_nothing() -> None:
    """Rule 3: parked content of an earlier publication abandons no later one."""
    sim = running()
    sim.publish(Stage("switch", "envoy", envoys("a", "bad")))
    sim.answer(1, error="bad route")
    run = sim.publish(
        Stage("add", "envoy", envoys("ab", "bad")), Stage("switch", "envoy", envoys("ab", "bad"))
    )
    sim.answer(1)
    assert sim.outcome(run).state == "done"
    assert sim.outcome(run).problems[0].message == "bad route"
    good = sim.publish(Stage("switch", "envoy", envoys("ab", "good")))
    sim.answer(1)
    assert (sim.outcome(good).acked, sim.outcome(good).problems) == (2, ())


def test_a_newer_publication_supersedes() -> None:
    """X57: the state reached stays in force, and the plan starts from it."""
    sim = running()
    first = sim.publish(*five("a", "b"))
    seen: list[Snapshot | None] = []

    def plan() -> tuple[Stage, ...]:
        seen.append(sim.publisher.in_force("envoy"))
        return (Stage("add", "envoy", envoys("abc", "a")),)

    second, sent = sim.publisher.publish(plan, 1.0)
    sim.take(sent)
    assert sim.outcome(first).state == "superseded"
    assert seen == [envoys("ab", "a")]
    sim.answer(1)
    assert sim.outcome(second).state == "done"


def test_a_failing_plan_changes_nothing() -> None:
    """Rule 7: the running publication continues."""
    sim = running()
    run = sim.publish(*five("a", "b"))

    def plan() -> tuple[Stage, ...]:
        raise LookupError("no such pool")

    with pytest.raises(LookupError):
        sim.publisher.publish(plan, 0.0)
    many = [Stage("add", "envoy", envoys("a"))] * (MAX_STAGES + 1)
    with pytest.raises(ValueError, match="at most"):
        sim.publisher.publish(many, 0.0)
    assert sim.outcome(run).state == "waiting"


def test_a_client_that_connects_midway_gets_the_current_stage() -> None:
    """Rule 6: its messages are not counted as channels of the publication."""
    sim = running()
    sim.now = 1.0
    run = sim.publish(Stage("add", "envoy", envoys("ab", "a")))
    sim.now = 2.0
    sim.join(2)
    assert sim.got[2] == ["CDS", "RDS"]
    sim.answer(2, 1)
    assert (sim.outcome(run).state, sim.outcome(run).channels) == ("done", ("CDS",))


def test_a_stage_may_need_a_moment_before_it() -> None:
    """Rule 2: it begins that long after the answers, also without any other wait."""
    sim = running()
    add, use, switch, stop, remove = five("a", "b")
    run = sim.publish(add, use, switch, replace(stop, grace_s=0.5), remove)
    sim.answer(1, 11, 1)
    assert (sim.outcome(run).stage, sim.publisher.wake_at) == ("switch", 0.5)
    sim.at(0.49)
    assert sim.outcome(run).stage == "switch"
    sim.at(0.5)
    assert sim.outcome(run).stage == "stop"
