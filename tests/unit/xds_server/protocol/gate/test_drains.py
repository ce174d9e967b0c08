"""Drains: what a stage waits for before replicas leave."""

from __future__ import annotations

import pytest

from support.publications import Simulation, five, running
from xds_server.protocol.gate.verdict import REPORT_PATIENCE_S
from xds_server.protocol.publication import PublicationRun


def _draining() -> tuple[Simulation, PublicationRun]:
    sim = running()
    sim.report(e1=2, e2=9)
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 11, 1, 11)
    assert sim.outcome(run).stage == "stop"
    return sim, run


def test_a_drain_waits_for_zero_in_flight() -> None:
    """Rule 2: the last stage begins when the pickers report no requests in flight there."""
    sim, run = _draining()
    sim.now = 3.0
    sim.report(e1=1, e2=9)
    assert sim.outcome(run).stage == "stop"
    sim.report(e2=9)
    assert sim.outcome(run).stage == "remove"


def test_a_drain_ends_at_its_deadline() -> None:
    """Rule 2: requests that never end delay a drain until its hold deadline."""
    sim, run = _draining()
    assert sim.publisher.wake_at == 30.0
    sim.at(29.9)
    assert sim.outcome(run).stage == "stop"
    sim.at(30.0)
    assert sim.outcome(run).stage == "remove"


def test_a_zero_from_before_the_last_pick_does_not_end_a_drain() -> None:
    """Rule 2: a report counts once it names the response that removed the endpoint."""
    sim = running()
    sim.report()
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 11, 1, 11)
    sim.now = 3.0
    sim.report(old=True)
    assert sim.outcome(run).stage == "stop"
    sim.report(e1=1)
    sim.at(REPORT_PATIENCE_S + 1)
    assert sim.outcome(run).stage == "stop"
    sim.report()
    assert sim.outcome(run).stage == "remove"


def test_every_picker_must_have_reported() -> None:
    """Rule 2: a zero from one picker does not cover another picker's requests."""
    sim = running(pickers=2)
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 11, 12, 1, 11, 12)
    sim.report(11)
    assert sim.outcome(run).stage == "stop"
    sim.report(12)
    assert sim.outcome(run).stage == "remove"


@pytest.mark.parametrize("silent", [True, False])
def test_a_picker_that_does_not_tell_is_waited_for_a_while(silent: bool) -> None:
    """Rule 2: a missing or old report delays a drain by REPORT_PATIENCE_S at most."""
    sim = running()
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 11, 1, 11)
    if not silent:
        sim.report(old=True)
    assert sim.outcome(run).stage == "stop"
    assert sim.publisher.wake_at == REPORT_PATIENCE_S
    sim.at(REPORT_PATIENCE_S)
    assert sim.outcome(run).stage == "remove"


def test_a_gateway_delays_no_drain() -> None:
    """Rule 2: it is served what pickers are, but has no requests in flight to tell of."""
    sim = running()
    for client in sim.publisher._course.clients.values():
        client.reports = False
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 11, 1, 11)
    assert sim.outcome(run).stage == "remove"


def test_without_pickers_a_drain_waits_for_nothing() -> None:
    """Rule 2: without pickers nothing is in flight."""
    sim = running(pickers=0)
    run = sim.publish(*five("a", "b", drain=frozenset({"e1"})))
    sim.answer(1, 1)
    assert sim.outcome(run).stage == "remove"
