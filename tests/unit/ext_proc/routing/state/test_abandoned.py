"""Abandoned work is charged until it can have ended, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.state import abandoned as module
from ext_proc.routing.state.abandoned import MAX_S, Abandoned
from ext_proc.routing.state.candidates import Replica
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Ledger, Settled
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Outcome, Ticket

A, B = EndpointKey("a", 1), EndpointKey("b", 1)


class Setup:
    """A ledger with two replicas, and what was published of it."""

    def __init__(self, usual_s: float | None = None) -> None:
        self.events: list[Any] = []
        self.ledger = Ledger(on_event=self.events.append)
        model = LatencyModel(FleetLatencyModel(), 1.0)
        model.latency_s = usual_s
        members = {key: Replica(key, self.ledger.load(key)) for key in (A, B)}
        for replica in members.values():
            replica.latency_models["llm"] = model
        self.work = Abandoned(self.ledger, members)
        self._tickets: dict[int, Ticket] = {}

    def sent(self, number: int, endpoint: EndpointKey = A) -> None:
        """Send and end a request."""
        ticket = Ticket(number, endpoint, "llm", 10.0, 0.0)
        self.ledger.charge(ticket)
        self._tickets[number] = ticket
        self.ledger.settle(number, Outcome.DONE)

    def left(self, number: int, endpoint: EndpointKey, since: float, now: float) -> None:
        """Let the caller of a request leave, if it was sent."""
        if number in self._tickets:
            self.work.left(self._tickets[number], endpoint, since, now)

    def in_flight(self, endpoint: EndpointKey = A) -> int:
        return self.ledger.load(endpoint).in_flight


@pytest.mark.parametrize(
    ("usual_s", "since", "end"), [(5.0, 0.0, 5.0), (5.0, -6.0, 12.0), (None, 1.0, 5.0)]
)
def test_a_charge_lasts_until_the_work_can_have_ended(usual_s, since, end):
    """The usual duration less what has passed; where that is over or unknown, as long again."""
    setup = Setup(usual_s)
    setup.sent(1)
    setup.left(1, A, since, 3.0)
    assert (setup.in_flight(), setup.ledger.load(A).work) == (1, 10.0)
    setup.work.sweep(end - 0.1)
    assert setup.in_flight() == 1
    setup.work.sweep(end)
    assert (setup.in_flight(), setup.ledger.load(A).work, len(setup.work)) == (0, 0.0, 0)
    assert setup.ledger.outcomes[Outcome.ABANDONED] == 1


def test_a_charge_is_bounded_in_time():
    """A mean of hours holds no replica for longer than the bound."""
    setup = Setup(10_000.0)
    setup.sent(1)
    setup.left(1, A, 0.0, 1.0)
    setup.work.sweep(1.0 + MAX_S)
    assert setup.in_flight() == 0


def test_the_replica_that_was_left_is_charged():
    """After a retry the pick goes on, although another replica serves."""
    setup = Setup(5.0)
    setup.sent(1, A)
    setup.left(1, B, 0.0, 1.0)
    assert (setup.in_flight(A), setup.in_flight(B)) == (0, 1)
    assert setup.work.waited == {B: 1}


def test_a_replica_that_is_gone_is_not_charged():
    """Its load is no more."""
    setup = Setup()
    setup.sent(1)
    setup.left(1, EndpointKey("gone", 1), 0.0, 1.0)
    assert len(setup.events) == 2


def test_charges_are_published():
    """Peer workers count them like requests."""
    setup = Setup(5.0)
    setup.sent(1)
    setup.left(1, A, 0.0, 1.0)
    setup.work.sweep(9.0)
    assert [type(each) for each in setup.events] == [Charged, Settled] * 2
    assert setup.events[2].ticket.id == setup.events[3].ticket_id < 0


def test_charges_are_bounded_in_number(monkeypatch):
    """Beyond the bound work is counted and not charged."""
    monkeypatch.setattr(module, "MAX_CHARGES", 2)
    setup = Setup(5.0)
    for number in (1, 2, 3):
        setup.sent(number)
        setup.left(number, A, 0.0, 1.0)
    assert setup.work.describe() == {"open": 2, "charged": 2, "uncharged": 1}


def test_a_restarted_replica_has_no_abandoned_work():
    """Its process is a new one; other replicas keep theirs."""
    setup = Setup(5.0)
    for number, key in ((1, A), (2, B), (3, A)):
        setup.sent(number, key)
        setup.left(number, key, 0.0, 1.0)
    setup.work.drop(A)
    assert (setup.in_flight(A), setup.in_flight(B), len(setup.work)) == (0, 1, 1)
    setup.work.sweep(9.0)
    assert setup.in_flight(B) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sent", "left", "sweep", "drop", "remove"]),
            st.integers(1, 6),
            st.sampled_from([A, B]),
            st.floats(0, 30),
        ),
        max_size=60,
    )
)
def test_in_the_end_nothing_stays(steps):
    """Whatever happens, loads are those of open charges, and all end within the bound."""
    setup, now = Setup(5.0), 0.0
    for step, number, key, seconds in steps:
        if step == "sent":
            setup.sent(number, key)
        elif step == "left":
            setup.left(number, key, now - seconds, now)
        elif step == "sweep":
            now += seconds
            setup.work.sweep(now)
        else:
            setup.work.drop(key)
            if step == "remove":
                setup.ledger.apply(EndpointRemoved(key))
        for each in (A, B):
            assert setup.in_flight(each) == setup.work.waited[each]
    setup.work.sweep(now + MAX_S)
    assert setup.in_flight(A) == setup.in_flight(B) == len(setup.work) == len(setup.ledger) == 0
    assert setup.ledger.unmatched == 0
