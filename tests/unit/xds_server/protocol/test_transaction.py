"""The publisher: stages, gates, deadlines, drains, refusals, stragglers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, POOL_TYPE, ROUTE_TYPE
from xds_server.protocol.messages import ResourceResponse, SotwRequest, short_type
from xds_server.protocol.publication import MAX_STAGES
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import SotwStream
from xds_server.protocol.transaction import (
    REPORT_PATIENCE_S,
    Audience,
    OnReject,
    PickerLoad,
    PublicationOutcome,
    PublicationRun,
    Publisher,
    Sent,
    Stage,
)


def envoys(clusters: str, routes: str = "1") -> Snapshot:
    """Build an Envoy snapshot: one cluster per letter, one route."""
    return Snapshot.of(
        {
            CLUSTER_TYPE: {name: name.encode() for name in clusters},
            ENDPOINT_TYPE: {name: name.encode() for name in clusters},
            ROUTE_TYPE: {"r": routes.encode()},
        }
    )


def pools(content: str) -> Snapshot:
    """Build a picker snapshot with one pool."""
    return Snapshot.of({POOL_TYPE: {"p": content.encode()}})


class House:
    """A publisher with clients that answer when the test says so."""

    def __init__(self) -> None:
        self.publisher = Publisher()
        self.now = 0.0
        self.waiting: dict[int, list[ResourceResponse]] = {}
        self.got: dict[int, list[str]] = {}
        self.names: dict[tuple[int, str], tuple[str, ...]] = {}
        self.reports: dict[str, PickerLoad] = {}

    def join(self, number: int, audience: Audience = "envoy", node: str = "") -> None:
        stream = SotwStream(str(number))
        self.waiting[number], self.got[number] = [], []
        self.publisher.connect(number, node or f"n{number}", audience, stream, self.now)
        types = {CLUSTER_TYPE: (), ROUTE_TYPE: ("r",)} if audience == "envoy" else {POOL_TYPE: ()}
        for type_url, names in types.items():
            self.names[number, type_url] = names
            self.take(self.publisher.request(number, SotwRequest(type_url, names), self.now)[0])

    def take(self, sent: Sent) -> None:
        for number, response in sent:
            self.waiting[number].append(response)
            self.got[number].append(short_type(response.type_url))

    def answer(self, number: int, error: str | None = None) -> None:
        """Answer everything that waits, and what follows from that, refusing at ``error`` once."""
        while self.waiting[number]:
            response = self.waiting[number].pop(0)
            names = self.names[number, response.type_url]
            request = SotwRequest(response.type_url, names, response.version, response.nonce, error)
            error = None
            self.take(self.publisher.request(number, request, self.now)[0])

    def publish(self, *stages: Stage, on_reject: OnReject = "rollback") -> PublicationRun:
        run, sent = self.publisher.publish(stages, self.now, on_reject=on_reject)
        self.take(sent)
        return run

    def outcome(self, run: PublicationRun) -> PublicationOutcome:
        return self.publisher.outcome(run, self.now)

    def report(self, number: int = 11, *, old: bool = False, **in_flight: int) -> None:
        """Let a picker report, as of the response that it took last or of the one before."""
        client = self.publisher._clients[number]
        taken = "older" if old else client.stream.acknowledged(POOL_TYPE)
        self.reports[client.node] = PickerLoad(in_flight, taken)
        self.take(self.publisher.loads(self.reports, self.now))

    def at(self, now: float) -> None:
        self.now = now
        self.take(self.publisher.tick(now))


def five(old: str, new: str, **kwargs: frozenset[str]) -> tuple[Stage, ...]:
    """The stages from the clusters ``old`` to ``new``."""
    union = "".join(sorted(set(old + new)))
    return (
        Stage("add", "envoy", envoys(union, old)),
        Stage("use", "picker", pools(union)),
        Stage("switch", "envoy", envoys(union, new)),
        Stage("stop", "picker", pools(new)),
        Stage("remove", "envoy", envoys(new, new), kwargs.get("drain", frozenset())),
    )


def running(envoy_count: int = 1, pickers: int = 1) -> House:
    """Return a house in which the cluster "a" is published and held by all."""
    house = House()
    for number in range(envoy_count):
        house.join(number + 1)
    for number in range(pickers):
        house.join(number + 11, "picker")
    run = house.publish(Stage("add", "envoy", envoys("a", "a")), Stage("use", "picker", pools("a")))
    for number in house.waiting:
        house.answer(number)
    assert house.outcome(run).state == "done"
    return house


def test_without_clients_a_publication_passes_at_once() -> None:
    """X6: nobody connected means nobody to wait for; the snapshots are in force."""
    house = House()
    run = house.publish(*five("a", "b"))
    assert house.outcome(run) == PublicationOutcome("done", 0, 0, (), (), 0.0, "remove")
    assert house.publisher.settled
    assert house.publisher.in_force("envoy") == envoys("b", "b")
    assert house.publisher.wake_at is None


def test_nothing_is_in_force_before_the_first_publication() -> None:
    """X9: a client of an empty publisher hears nothing."""
    house = House()
    house.join(1)
    assert house.got[1] == []
    assert house.publisher.in_force("envoy") is None


def test_stages_go_one_by_one_across_clients() -> None:
    """X51, X52: add, use, switch, stop, remove, each after the answers to the one before."""
    house = running()
    for got in house.got.values():
        got.clear()
    run = house.publish(*five("a", "b"))
    seen = []
    for number in (1, 11, 1, 11, 1):
        seen.append((house.outcome(run).stage, list(house.got[1]), list(house.got[11])))
        house.answer(number)
    assert seen == [
        ("add", ["CDS"], []),
        ("use", ["CDS"], ["POOL"]),
        ("switch", ["CDS", "RDS"], ["POOL"]),
        ("stop", ["CDS", "RDS"], ["POOL", "POOL"]),
        ("remove", ["CDS", "RDS", "CDS"], ["POOL", "POOL"]),
    ]
    assert house.outcome(run) == PublicationOutcome(
        "done", 2, 2, (), ("CDS", "POOL", "RDS"), 0.0, "remove"
    )


def test_an_unchanged_stage_passes_at_once() -> None:
    """X18: a weight change touches routes only, and says so."""
    house = running()
    run = house.publish(
        Stage("add", "envoy", envoys("a", "a")),
        Stage("use", "picker", pools("a")),
        Stage("switch", "envoy", envoys("a", "10%")),
    )
    house.now = 0.2
    house.answer(1)
    outcome = house.outcome(run)
    assert (outcome.state, outcome.channels, outcome.elapsed_s) == ("done", ("RDS",), 0.2)


def test_a_gate_waits_for_every_client() -> None:
    """Rule 1: one answer of two is not enough."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(1)
    assert (house.outcome(run).state, house.outcome(run).stage) == ("waiting", "add")
    assert house.outcome(run).elapsed_s is None
    house.answer(2)
    assert house.outcome(run).stage == "use"


def test_a_stalled_client_leaves_the_gate_and_gets_no_next_stage() -> None:
    """X51, X56, X63: after the deadline the others go on; it stays where it is and is shown."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(1)
    assert house.publisher.wake_at == 15.0
    house.at(15.0)
    for number in (11, 1, 11, 1):
        house.answer(number)
    outcome = house.outcome(run)
    assert (outcome.state, outcome.clients, outcome.acked) == ("done", 3, 2)
    (problem,) = outcome.problems
    assert (problem.client, problem.state, problem.type) == ("n2", "STALLED", "CDS")
    assert house.got[2] == ["CDS", "RDS", "CDS"]


def test_a_stalled_client_comes_back_stage_by_stage() -> None:
    """Rule 3: when it answers it walks the stages that it missed, in their order."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(1)
    house.at(15.0)
    for number in (11, 1, 11, 1):
        house.answer(number)
    house.got[2].clear()
    house.answer(2)
    assert house.got[2] == ["RDS", "CDS"]
    assert house.outcome(run).state == "done"
    again = house.publish(Stage("remove", "envoy", envoys("b", "b")))
    assert house.outcome(again).acked == 3


def test_a_stalled_client_that_answers_in_its_stage_counts_again() -> None:
    """Rule 3: back on the newest stage it is waited for again."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(1)
    house.at(15.0)
    assert house.outcome(run).stage == "use"
    house.answer(2)
    house.answer(11)
    house.answer(1)
    assert (house.outcome(run).stage, house.outcome(run).problems) == ("switch", ())


def test_a_refusal_before_the_switch_abandons() -> None:
    """Rule 4: everybody goes back to what was in force, the refuser too; its words are kept."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(2)
    house.answer(1, error="zero connect_timeout")
    house.answer(2)
    outcome = house.outcome(run)
    assert (outcome.state, outcome.stage) == ("abandoned", "add")
    (problem,) = outcome.problems
    assert (problem.client, problem.state, problem.type, problem.message) == (
        "n1",
        "NACKED",
        "CDS",
        "zero connect_timeout",
    )
    assert house.publisher.in_force("envoy") == envoys("a", "a")
    assert house.got[1][-1] == "CDS"
    check = house.publish(Stage("add", "envoy", envoys("a", "a")))
    assert house.outcome(check).acked == 3


def test_a_refusal_at_the_switch_halts() -> None:
    """Rule 4: it stays as far as it came, for who published it to lead back in stages."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    for number in (1, 2, 11):
        house.answer(number)
    house.answer(1, error="bad route")
    outcome = house.outcome(run)
    assert (outcome.state, outcome.stage) == ("abandoned", "switch")
    assert [(p.client, p.type, p.message) for p in outcome.problems] == [("n1", "RDS", "bad route")]
    assert house.publisher.in_force("envoy") == envoys("ab", "b")
    back = house.publish(Stage("switch", "envoy", envoys("ab", "a")))
    for number in (1, 2):
        house.answer(number)
    assert (house.outcome(back).state, house.outcome(back).acked) == ("done", 3)


def test_a_latecomers_refusal_vetoes_nothing() -> None:
    """Rule 4: a client that connects during a change only leaves the gate."""
    house = running()
    house.now = 1.0
    run = house.publish(*five("a", "b"))
    house.now = 2.0
    house.join(2)
    house.answer(2, error="cannot bind")
    house.answer(1)
    assert house.outcome(run).stage == "use"


def test_who_refused_before_has_no_veto() -> None:
    """Rule 4: a client that takes nothing cannot keep the others from changing."""
    house = running(envoy_count=2)
    house.publish(Stage("add", "envoy", envoys("x", "a")), on_reject="keep")
    house.answer(1, error="too old")
    house.answer(2)
    run = house.publish(*five("a", "b"))
    house.answer(1, error="too old")
    house.answer(2)
    assert house.outcome(run).stage == "use"


def test_a_refusal_at_the_switch_may_leave_it_in_force_for_the_others() -> None:
    """X56: told to keep on, the refuser gets no further stage; the others finish."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"), on_reject="keep")
    for number in (1, 2, 11):
        house.answer(number)
    house.answer(1, error="bad route")
    for number in (2, 11, 2):
        house.answer(number)
    outcome = house.outcome(run)
    assert (outcome.state, outcome.acked) == ("done", 2)
    assert [(p.client, p.type, p.message) for p in outcome.problems] == [("n1", "RDS", "bad route")]
    assert house.got[1].count("CDS") == 2
    assert house.got[2].count("CDS") == 3


def test_the_first_publication_is_never_abandoned() -> None:
    """Rule 4: with nothing before, there is nothing to go back to."""
    house = House()
    house.join(1)
    run = house.publish(*five("a", "b"))
    house.answer(1, error="bad")
    house.publisher.tick(0.0)
    assert house.outcome(run).state == "done"
    assert house.outcome(run).problems[0].state == "NACKED"


def test_an_old_refusal_holds_up_nothing() -> None:
    """Rule 3: parked content of an earlier publication abandons no later one."""
    house = running()
    house.publish(Stage("switch", "envoy", envoys("a", "bad")))
    house.answer(1, error="bad route")
    run = house.publish(
        Stage("add", "envoy", envoys("ab", "bad")), Stage("switch", "envoy", envoys("ab", "bad"))
    )
    house.answer(1)
    assert house.outcome(run).state == "done"
    assert house.outcome(run).problems[0].message == "bad route"
    good = house.publish(Stage("switch", "envoy", envoys("ab", "good")))
    house.answer(1)
    assert (house.outcome(good).acked, house.outcome(good).problems) == (2, ())


def test_a_newer_publication_supersedes() -> None:
    """X57: what was reached stays in force, and the plan sees it."""
    house = running()
    first = house.publish(*five("a", "b"))
    seen: list[Snapshot | None] = []

    def plan() -> tuple[Stage, ...]:
        seen.append(house.publisher.in_force("envoy"))
        return (Stage("add", "envoy", envoys("abc", "a")),)

    second, sent = house.publisher.publish(plan, 1.0)
    house.take(sent)
    assert house.outcome(first).state == "superseded"
    assert seen == [envoys("ab", "a")]
    house.answer(1)
    assert house.outcome(second).state == "done"


def test_a_failing_plan_changes_nothing() -> None:
    """Rule 7: the running publication goes on."""
    house = running()
    run = house.publish(*five("a", "b"))

    def plan() -> tuple[Stage, ...]:
        raise LookupError("no such pool")

    with pytest.raises(LookupError):
        house.publisher.publish(plan, 0.0)
    many = [Stage("add", "envoy", envoys("a"))] * (MAX_STAGES + 1)
    with pytest.raises(ValueError, match="at most"):
        house.publisher.publish(many, 0.0)
    assert house.outcome(run).state == "waiting"


def test_a_disconnected_client_holds_up_nothing() -> None:
    """X6: its stage passes without it."""
    house = running(envoy_count=2)
    run = house.publish(*five("a", "b"))
    house.answer(1)
    house.take(house.publisher.disconnect(2, 0.0))
    assert house.outcome(run).stage == "use"


def test_a_client_that_connects_midway_gets_the_current_stage() -> None:
    """Rule 6: and what it is sent is not counted as a channel of the publication."""
    house = running()
    house.now = 1.0
    run = house.publish(Stage("add", "envoy", envoys("ab", "a")))
    house.now = 2.0
    house.join(2)
    assert house.got[2] == ["CDS", "RDS"]
    house.answer(1)
    assert house.outcome(run).state == "waiting"
    house.answer(2)
    assert (house.outcome(run).state, house.outcome(run).channels) == ("done", ("CDS",))


def _draining() -> tuple[House, PublicationRun]:
    house = running()
    house.report(e1=2, e2=9)
    run = house.publish(*five("a", "b", drain=frozenset({"e1"})))
    for number in (1, 11, 1, 11):
        house.answer(number)
    assert house.outcome(run).stage == "stop"
    return house, run


def test_a_drain_waits_for_zero_in_flight() -> None:
    """Rule 2: the last stage begins when the pickers report nothing in flight there."""
    house, run = _draining()
    house.now = 3.0
    house.report(e1=1, e2=9)
    assert house.outcome(run).stage == "stop"
    house.report(e2=9)
    assert house.outcome(run).stage == "remove"


def test_a_drain_ends_at_its_deadline() -> None:
    """Rule 2: work that never ends does not hold a drain for ever."""
    house, run = _draining()
    assert house.publisher.wake_at == 30.0
    house.at(29.9)
    assert house.outcome(run).stage == "stop"
    house.at(30.0)
    assert house.outcome(run).stage == "remove"


def test_a_zero_from_before_the_last_pick_does_not_end_a_drain() -> None:
    """Rule 2: a report counts once it names the response by which the picker stopped."""
    house = running()
    house.report()
    run = house.publish(*five("a", "b", drain=frozenset({"e1"})))
    for number in (1, 11, 1, 11):
        house.answer(number)
    house.now = 3.0
    house.report(old=True)
    assert house.outcome(run).stage == "stop"
    house.report(e1=1)
    house.at(REPORT_PATIENCE_S + 1)
    assert house.outcome(run).stage == "stop"
    house.report()
    assert house.outcome(run).stage == "remove"


def test_every_picker_must_have_told() -> None:
    """Rule 2: one picker's zero says nothing about another's work."""
    house = running(pickers=2)
    run = house.publish(*five("a", "b", drain=frozenset({"e1"})))
    for number in (1, 11, 12, 1, 11, 12):
        house.answer(number)
    house.report(11)
    assert house.outcome(run).stage == "stop"
    house.report(12)
    assert house.outcome(run).stage == "remove"


@pytest.mark.parametrize("silent", [True, False])
def test_a_picker_that_does_not_tell_is_waited_for_a_while(silent: bool) -> None:
    """Rule 2: one without a report, or with an old one, holds a drain for some seconds only."""
    house = running()
    run = house.publish(*five("a", "b", drain=frozenset({"e1"})))
    for number in (1, 11, 1, 11):
        house.answer(number)
    if not silent:
        house.report(old=True)
    assert house.outcome(run).stage == "stop"
    assert house.publisher.wake_at == REPORT_PATIENCE_S
    house.at(REPORT_PATIENCE_S)
    assert house.outcome(run).stage == "remove"


def test_without_pickers_a_drain_waits_for_nothing() -> None:
    """Rule 2: no picker, no picks."""
    house = running(pickers=0)
    run = house.publish(*five("a", "b", drain=frozenset({"e1"})))
    for number in (1, 1):
        house.answer(number)
    assert house.outcome(run).stage == "remove"


def test_a_stage_may_need_a_moment_before_it() -> None:
    """Rule 2: it begins so long after the answers, also where nothing else is awaited."""
    house = running()
    add, use, switch, stop, remove = five("a", "b")
    run = house.publish(add, use, switch, replace(stop, grace_s=0.5), remove)
    for number in (1, 11, 1):
        house.answer(number)
    assert (house.outcome(run).stage, house.publisher.wake_at) == ("switch", 0.5)
    house.at(0.49)
    assert house.outcome(run).stage == "switch"
    house.at(0.5)
    assert house.outcome(run).stage == "stop"


def test_nobody_connected_needs_no_moment() -> None:
    """Rule 2: without clients there is nothing to pause for."""
    house = House()
    house.publish(Stage("add", "envoy", envoys("a")))
    run = house.publish(replace(five("a", "b")[4], grace_s=9.0))
    assert house.outcome(run).state == "done"
