"""Admission of found replicas: who joins, drains, is held and goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.admissions import DNS, FILE, Bench, found, listed, spec
from xds_server.applications.discovery.admission import LINGER_S, WINDOW_S, Admission
from xds_server.applications.discovery.values import Observation
from xds_server.fleet.members.members import MAX_MEMBERS, Members
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems


def test_the_first_members_are_warm_and_later_ones_are_ramped():
    """A control server that starts must not ramp a fleet that runs."""
    bench = Bench(spec())
    assert bench.see(listed(1, 2)) == {"r1": "active", "r2": "active"}
    bench.see(listed(1, 2, 3), after=5)
    assert [bench.member(f"r{i}").joined_unix_ms for i in (1, 2, 3)] == [0, 0, 1_005_000]
    assert len({m.incarnation for m in bench.admission.members}) == 3


def test_a_replica_joins_once_its_model_is_ready():
    """Where others take the work meanwhile."""
    bench = Bench(spec(admit="ready"))
    bench.see(listed(1))
    assert bench.see(listed(1, 2)) == {"r1": "active"}
    ((origin, identity, waiting),) = bench.admission.waiting()
    bench.admission.probed(origin, identity, waiting, ready=False)
    assert bench.settle() == {"r1": "active"}
    bench.admission.probed(origin, identity, waiting, ready=True)
    assert bench.settle() == {"r1": "active", "r2": "active"}
    assert not list(bench.admission.waiting())


def test_a_replica_that_waits_for_calm_is_asked_until_it_joins():
    """It may have died since it was ready last."""
    bench = Bench(spec(admit="ready", damping=60))
    bench.see(listed(1))
    for _ in range(6):
        bench.see(listed(1, 2), after=100)
        for origin, identity, waiting in list(bench.admission.waiting()):
            bench.admission.probed(origin, identity, waiting, ready=True)
        bench.settle()
        bench.see(listed(1), after=1)
        bench.settle(LINGER_S)
    bench.see(listed(1, 2))
    ((origin, identity, waiting),) = bench.admission.waiting()
    bench.admission.probed(origin, identity, waiting, ready=True)
    assert bench.settle() == {"r1": "active"}
    ((origin, identity, waiting),) = bench.admission.waiting()
    bench.admission.probed(origin, identity, waiting, ready=False)
    assert bench.settle(60) == {"r1": "active"}
    bench.admission.probed(origin, identity, waiting, ready=True)
    assert bench.settle() == {"r1": "active", "r2": "active"}
    assert not list(bench.admission.waiting())


def test_a_replica_that_does_not_serve_is_not_admitted():
    """Its source says so."""
    bench = Bench(spec())
    assert bench.see(listed(1, serving=False)) == {}


def test_a_vanished_replica_is_drained_and_then_removed():
    """Its requests end first."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3))
    bench.in_flight["r3"] = 2
    assert bench.see(listed(1, 2)) == {"r1": "active", "r2": "active", "r3": "draining"}
    assert bench.settle(LINGER_S + 1)["r3"] == "draining"
    bench.in_flight.clear()
    assert bench.settle(1) == {"r1": "active", "r2": "active"}


def test_a_drain_has_an_end():
    """A stream that never ends does not keep a replica for ever."""
    bench = Bench(spec(drain=60))
    bench.see(listed(1, 2, 3))
    bench.in_flight["r3"] = 1
    bench.see(listed(1, 2))
    assert "r3" in bench.settle(59)
    assert bench.admission.next_at is not None
    assert bench.admission.next_at <= bench.now + 1
    assert "r3" not in bench.settle(1)


def test_a_replica_that_comes_back_in_time_is_the_same():
    """Its cache is still there, so its incarnation stays."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3))
    before = bench.member("r3")
    bench.see(listed(1, 2))
    bench.see(listed(1, 2, 3), after=1)
    assert bench.member("r3") == before


def test_a_terminating_replica_drains_and_stays_while_it_is_listed():
    """Kubernetes lists it until it has ended."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    ending = Observation((found(1), found(2, terminating=True)))
    assert bench.see(ending) == {"r1": "active", "r2": "draining"}
    assert bench.settle(3600) == {"r1": "active", "r2": "draining"}
    assert bench.see(listed(1)) == {"r1": "active"}


def test_terminating_replicas_that_are_the_last_serve_until_another_is_active():
    """Kubernetes itself routes to them then."""
    bench = Bench(spec())
    bench.see(listed(1))
    assert bench.see(listed(1, terminating=True)) == {"r1": "active"}
    both = Observation((found(1, terminating=True), found(2)))
    assert bench.see(both) == {"r1": "draining", "r2": "active"}


def test_more_than_half_at_once_are_held_until_the_time_is_over():
    """A broken source must not take the pool away."""
    bench = Bench(spec(hold=100))
    bench.see(listed(1, 2, 3, 4))
    assert bench.see(listed(1)) == {"r1": "active", "r2": "held", "r3": "held", "r4": "held"}
    hold = bench.admission.hold
    assert hold is not None
    assert (hold.ids, hold.of, hold.until) == (("r2", "r3", "r4"), 4, bench.now + 100)
    assert set(bench.settle(99).values()) == {"active", "held"}
    assert bench.settle(1) == {"r1": "active", **dict.fromkeys(("r2", "r3", "r4"), "draining")}
    assert bench.admission.hold is None


def test_what_joins_meanwhile_does_not_end_a_hold():
    """A wrong answer names other replicas: the right ones stay as long."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    bench.see(listed(3, 4, 5, 6, 7))
    assert bench.settle(60)["r1"] == "held"


def test_as_many_that_are_found_ready_end_a_hold():
    """A whole DNS name is replaced: others have the model in their place."""
    bench = Bench(spec(admit="ready"))
    bench.see(listed(1, 2))
    for name in ("r1", "r2"):
        assert bench.member(name)
    assert set(bench.see(listed(3, 4)).values()) == {"held"}
    states = []
    for origin, identity, waiting in list(bench.admission.waiting()):
        bench.admission.probed(origin, identity, waiting, ready=True)
        states.append(bench.settle())
    assert states[0] == {"r1": "held", "r2": "held", "r3": "active"}
    assert states[1] == {"r1": "draining", "r2": "draining", "r3": "active", "r4": "active"}
    assert all("active" in each.values() or "held" in each.values() for each in states)


@pytest.mark.parametrize("those", [(2,), (1, 2, 3, 4)])
def test_replicas_that_are_listed_as_not_ready_leave_at_once(those):
    """Their source says so of each; also the last of a variant, which are no use either."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3, 4))
    mixed = [found(n, serving=n not in those) for n in (1, 2, 3, 4)]
    states = bench.see(Observation(tuple(mixed)))
    assert states == {f"r{n}": "draining" if n in those else "active" for n in (1, 2, 3, 4)}
    assert bench.admission.hold is None
    back = bench.see(listed(1, 2, 3, 4))
    assert set(back.values()) == {"active"}
    assert {m.joined_unix_ms for m in bench.admission.members} == {0}, "the same incarnation"


def test_held_replicas_that_the_fleet_drains_leave():
    """The way of a picker that has no `tidegate confirm`."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3))
    assert set(bench.see(Observation(())).values()) == {"held"}
    bench.admission.configure(spec(drained=["r1", "r2"]))
    assert bench.settle() == {"r1": "draining", "r2": "draining", "r3": "held"}
    assert bench.see(listed(1, 2, 3)) == dict.fromkeys(("r1", "r2", "r3"), "active"), (
        "the fleet drains them where it is published"
    )


def test_what_was_taken_out_leaves_without_a_hold():
    """An InferencePool that was deleted, or selects others now."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3))
    others = replace(listed(3), final=True)
    assert bench.see(others) == {"r1": "draining", "r2": "draining", "r3": "active"}
    assert set(bench.see(replace(listed(), final=True)).values()) == {"draining"}
    assert bench.admission.hold is None


def test_why_a_pool_has_no_replica():
    """Nothing listed, nothing that fits, nothing that serves; not before a source has answered."""
    bench = Bench(spec(protocols=["grpc"]))
    bench.settle()
    assert bench.admission.nothing() == ""
    bench.see(Observation(()))
    assert bench.admission.nothing() == "its sources list no replica"
    bench.see(listed(1, 2, grpc=None))
    assert bench.admission.nothing() == (
        "2 replicas are listed, and none fits: file /f: r1: it has no `grpc` address: correct "
        "`protocols`, or leave it out"
    )
    bench.see(listed(1, 2, serving=False))
    assert "none of them as able to serve" in bench.admission.nothing()
    bench.see(listed(1))
    assert bench.admission.nothing() == ""


def test_half_may_go():
    """The bound is more than half."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3, 4))
    assert bench.see(listed(1, 2))["r3"] == "draining"


def test_one_after_the_other_counts_as_at_once():
    """An answer that shrinks by and by is as broken, and stays held while it lasts."""
    bench = Bench(spec(hold=1000))
    bench.see(listed(1, 2, 3, 4))
    bench.see(listed(1, 2, 3), after=1)
    bench.see(listed(1, 2), after=1)
    assert bench.see(listed(1), after=1)["r2"] == "held"
    assert bench.settle(WINDOW_S + 1)["r2"] == "held"


def test_a_confirmation_lets_them_go():
    """Even the last ones: an operator said so."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    assert set(bench.see(Observation(())).values()) == {"held"}
    assert bench.admission.confirm() == 2
    assert set(bench.settle().values()) == {"draining"}
    assert bench.settle(LINGER_S) == {}


def test_held_replicas_that_are_listed_again_are_as_before():
    """Nothing had changed for clients."""
    bench = Bench(spec())
    bench.see(listed(1, 2, 3))
    before = bench.admission.members
    bench.see(Observation(()))
    bench.see(listed(1, 2, 3), after=1)
    assert bench.admission.members == before
    assert bench.admission.hold is None


def test_the_last_of_a_variant_stay_until_they_are_confirmed():
    """No time lets a pool become empty."""
    bench = Bench(spec(hold=10))
    bench.see(Observation((found(1), found(2), found(3), found(4, variant="canary"))))
    assert bench.see(listed(1, 2, 3))["r4"] == "held"
    assert bench.settle(3600)["r4"] == "held"
    hold = bench.admission.hold
    assert hold is not None
    assert hold.until is None


def test_a_later_hold_has_its_own_time():
    """A replica that is held for long does not shorten the hold of others."""
    bench = Bench(spec(hold=10))
    bench.see(Observation((*listed(1, 2, 3, 4).endpoints, found(5, variant="canary"))))
    bench.see(listed(1, 2, 3, 4))
    assert bench.settle(3600)["r5"] == "held"
    states = bench.see(listed(1))
    assert [states[f"r{i}"] for i in (2, 3, 4)] == ["held"] * 3


def test_a_written_replica_counts_as_active():
    """The last found one may go while a written one serves."""
    written = {"id": "w", "http": "10.9.9.9:1", "grpc": "10.9.9.9:2"}
    bench = Bench(spec(endpoints=[written]))
    bench.see(listed(1))
    assert bench.see(Observation(())) == {"r1": "draining"}


def test_a_replica_that_comes_and_goes_must_stay_longer_each_time():
    """Up to the bound of the pool."""
    bench = Bench(spec(damping=4))
    bench.see(listed(1, 2, 3))
    waits = []
    for _ in range(7):
        bench.see(listed(1, 2), after=WINDOW_S + 1)
        bench.see(listed(1, 2, 3), after=0.5)
        waited = 0.5
        while bench.settle()["r3"] != "active":
            waited += 0.5
            bench.now += 0.5
        waits.append(waited)
    assert waits == [0.5, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_new_address_is_a_new_incarnation_of_the_same_replica():
    """A restarted pod has an empty cache."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    before = bench.member("r2")
    bench.see(Observation((found(1), found(2, http="10.1.1.1:8000", grpc="10.1.1.1:8001"))), 1)
    after = bench.member("r2")
    assert after.spec.http == "10.1.1.1:8000"
    assert after.incarnation > before.incarnation
    assert after.joined_unix_ms == 1_001_000


def test_a_replica_that_lacks_a_protocol_is_left_out():
    """Where the file says what each must speak; clusters do not depend on what is found."""
    bench = Bench(spec(protocols=["http", "grpc"]))
    assert bench.see(Observation((found(1), found(2, grpc=None)))) == {"r1": "active"}
    assert bench.admission.unfit == (
        "file /f: r2: it has no `grpc` address: correct `protocols`, or leave it out",
    )


@pytest.mark.parametrize("lacks", ["grpc", "http"])
def test_protocols_follow_from_the_addresses(lacks):
    """A file that says nothing of protocols may list replicas with one address each."""
    bench = Bench(spec())
    only = Observation((found(1, **{lacks: None}), found(2, **{lacks: None})))
    assert bench.see(only) == {"r1": "active", "r2": "active"}
    assert getattr(bench.member("r1").spec, lacks) is None
    assert bench.admission.unfit == ()


def test_the_number_of_replicas_is_bounded():
    """A source that goes mad costs no memory."""
    bench = Bench(spec())
    bench.see(listed(*range(MAX_MEMBERS + 5)))
    assert len(bench.admission.members) == MAX_MEMBERS
    assert len(bench.admission.unfit) == 5


def test_the_memory_of_removed_replicas_is_bounded(monkeypatch):
    """Pods have a new name each time."""
    monkeypatch.setattr("xds_server.applications.discovery.admission.MAX_MEMBERS", 8)
    bench = Bench(spec())
    for number in range(0, 60, 3):
        bench.see(listed(number, number + 1, number + 2), after=WINDOW_S + 1)
        bench.admission.confirm()
        bench.settle()
        bench.settle(LINGER_S)
    assert len(bench.admission._past) == 8


class AnySource(RuleBasedStateMachine):
    """Any answers of two sources, in any order and at any time, with restarts and confirmations."""

    @initialize()
    def begin(self) -> None:
        """Start with nothing known."""
        self.spec = spec(dns=True, hold=60, drain=30, damping=8)
        self.bench = Bench(self.spec)
        self.fleet = Fleet(pools=(self.spec,))
        self.was_active = False
        self.confirmed = False

    @rule(
        origin=st.sampled_from([FILE, DNS]),
        numbers=st.sets(st.integers(0, 9), max_size=10),
        terminating=st.sets(st.integers(0, 9), max_size=3),
        unready=st.sets(st.integers(0, 9), max_size=3),
        canary=st.sets(st.integers(0, 9), max_size=2),
        shift=st.sampled_from([0, 0, 0, 20]),
    )
    def answer(self, origin, numbers, terminating, unready, canary, shift) -> None:
        """One source answers."""
        base = 0 if origin == FILE else 100
        self.bench.admission.observe(
            origin,
            Observation(
                tuple(
                    replace(
                        found(base + n + shift),
                        identity=f"r{base + n}",
                        serving=n not in unready,
                        terminating=n in terminating,
                        variant="canary" if n in canary else None,
                    )
                    for n in sorted(numbers)
                )
            ),
        )

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 31.0, 700.0]))
    def wait(self, seconds) -> None:
        """Time passes."""
        self.bench.now += seconds

    @rule()
    def confirm(self) -> None:
        """An operator lets held members go."""
        self.confirmed = self.bench.admission.confirm() > 0 or self.confirmed

    @rule(dns=st.booleans())
    def edit(self, dns) -> None:
        """A revision removes the name, or adds it again."""
        self.spec = spec(dns=dns, hold=60, drain=30, damping=8)
        self.fleet = Fleet(pools=(self.spec,))
        self.bench.admission.configure(self.spec)

    @rule()
    def restart(self) -> None:
        """The control server begins again with the stored members."""
        members = self.bench.admission.members
        self.bench.admission = Admission(self.spec, members)

    @invariant()
    def the_members_are_sound(self) -> None:
        """Whatever is found, the published fleet is valid, and never empty once it was not."""
        if not hasattr(self, "bench"):
            return
        states = self.bench.settle()
        active = [name for name, state in states.items() if state != "draining"]
        assert active or not self.was_active or self.confirmed
        self.was_active = bool(active)
        self.confirmed = self.confirmed and not active
        published = Members({"llm": self.bench.admission.members}).published(self.fleet)
        assert not problems(published.fleet)
        numbers = [m.incarnation for m in self.bench.admission.members]
        assert len(set(numbers)) == len(numbers)
        again = self.bench.admission.members
        self.bench.settle()
        assert self.bench.admission.members is again


AnySource.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestAnySource = pytest.mark.timeout(120)(AnySource.TestCase)
