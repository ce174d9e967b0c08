"""Faults of real processes: what is drawn, and what the checker finds."""

from __future__ import annotations

import pytest

from support.chaos.real import checker
from support.chaos.real.checker import Change, Exit, Received, Request, Window
from support.chaos.real.schedule import KINDS, drawn, halves, only

GOOD = Request("q1", "http", "llm", "envoy-1", 10.0, 10.1, echoed="q1", replica="llm-1")
LOST = GOOD._replace(error="503", echoed="", replica="")


def window(*parts: str, kind: str = "kill") -> Window:
    """Return a fault that is in force from 9 to 12."""
    return Window(1, kind, parts, 9.0, 12.0)


def test_a_seed_repeats_a_schedule_and_a_part_of_it():
    """Else a failure could not be looked into."""
    faults = drawn(7, 400)
    assert faults == drawn(7, 400)
    assert {each.kind for each in faults} == set(KINDS)
    assert only(faults, [3, 7]) == [faults[3], faults[7]]
    assert sorted(each for half in halves(faults) for each in half) == faults
    assert halves(faults[:1]) == []


def test_what_is_as_it_should_be_is_found_right():
    """No rule fires without a cause."""
    found = checker.costs([window("llm-1")], [GOOD, GOOD._replace(kind="pick")], [])
    assert checker.of_requests([GOOD], []) == []
    assert checker.of_sequences([Received("llm-1", "a", "7"), Received("llm-1", "b", "7")]) == []
    assert checker.of_changes([Change(5, 1.0, 2.0, 3)], {3: 5}, {"envoy-1": [(1.0, 5)]}) == []
    assert checker.of_exits([Exit("control-1", checker.LEASE_LOST, 10.0)], []) == []
    assert found[0].lost == found[0].open == found[0].refused == 0
    assert checker.of_growth({"picker-1 7": (10, 2**20)}, {"picker-1 7": (20, 2**21)}) == []


EXCUSED = {
    "its own Envoy": (LOST, [window("envoy-1")]),
    "two replicas": (LOST, [window("llm-1"), window("llm-2")]),
    "a replica and a picker": (LOST, [window("llm-1"), window("picker-2", kind="stop")]),
    "an answer that had begun": (LOST._replace(kind="sse", begun=True), [window("llm-1")]),
    "the picker that it needs": (LOST._replace(kind="unnamed"), [window("picker-3")]),
    "the limit of its replicas": (LOST._replace(error="at their limit"), [window("envoy-2")]),
    "a step of a sequence": (LOST._replace(kind="sequence"), []),
}


@pytest.mark.parametrize("why", EXCUSED)
def test_a_request_may_be_lost_with(why):
    """As ``retries.md`` has it."""
    request, windows = EXCUSED[why]
    assert checker.of_requests([request], windows) == []


PLANTED = {
    "a lost request": lambda: checker.of_requests([LOST], []),
    "one refused for a limit in calm": lambda: checker.of_requests(
        [LOST._replace(error="at their limit")], []
    ),
    "one lost with one replica": lambda: checker.of_requests([LOST], [window("llm-1")]),
    "one lost with another Envoy": lambda: checker.of_requests([LOST], [window("envoy-2")]),
    "one lost with a picker": lambda: checker.of_requests([LOST], [window("picker-1")]),
    "one lost with a link of its Envoy": lambda: checker.of_requests(
        [LOST], [window("envoy-1", "control-1", kind="cut")]
    ),
    "a stream that broke with a picker's link": lambda: checker.of_requests(
        [LOST._replace(kind="sse", begun=True)], [window("picker-1", "llm-1", kind="cut")]
    ),
    "one lost with two dark pages": lambda: checker.of_requests(
        [LOST], [window("llm-1", kind="dark"), window("llm-2", kind="dark")]
    ),
    "one lost long after": lambda: checker.of_requests(
        [LOST._replace(began=30.0, ended=31.0)], [window("envoy-1")]
    ),
    "a stream that never began": lambda: checker.of_requests(
        [LOST._replace(kind="sse")], [window("llm-1")]
    ),
    "another client's answer": lambda: checker.of_requests([GOOD._replace(echoed="q2")], []),
    "another pool": lambda: checker.of_requests([GOOD._replace(replica="counter-1")], []),
    "a sequence on two replicas": lambda: checker.of_sequences(
        [Received("counter-1", "a", "7"), Received("counter-2", "b", "7")]
    ),
    "an acknowledged change that is gone": lambda: checker.of_changes(
        [Change(5, 1.0, 2.0, 3)], {3: 6}, {}
    ),
    "a revision given twice": lambda: checker.of_changes(
        [Change(5, 1.0, 2.0, 3), Change(6, 2.0, 3.0, 3)], {3: 6}, {}
    ),
    "a change made twice": lambda: checker.of_changes([], {3: 5, 4: 5}, {}),
    "an Envoy that goes back": lambda: checker.of_changes(
        [], {}, {"envoy-1": [(1.0, 6), (2.0, 5)]}
    ),
    "an Envoy that stays behind": lambda: checker.of_changes(
        [Change(5, 1.0, 2.0, 3)], {3: 5}, {"envoy-1": [(1.0, 4), (9.0, 4)]}
    ),
    "a picker that ends for a full disk": lambda: checker.of_exits(
        [Exit("picker-1", 1, 10.0)], [window("picker-1", kind="disk")]
    ),
    "a control server that ends for want of descriptors": lambda: checker.of_exits(
        [Exit("control-1", 1, 10.0)], [window("control-1", kind="descriptors")]
    ),
    "no pick again": lambda: checker.of_recovery(checker.costs([window("picker-1")], [GOOD], [])),
    "descriptors that are not closed": lambda: checker.of_growth(
        {"envoy-1 7": (40, 2**20)}, {"envoy-1 7": (400, 2**20)}
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_the_checker_finds(defect):
    """One violation of each rule."""
    assert PLANTED[defect]()
