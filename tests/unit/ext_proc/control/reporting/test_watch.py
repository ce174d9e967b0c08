"""Replicas that are left alone, in log and reports."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from ext_proc.control.reporting import watch as module
from ext_proc.control.reporting.watch import HALF_OPEN, ReplicaWatch, cause_of
from ext_proc.routing.health.ejection_record import Cause
from ext_proc.routing.values.request import Features, Form, Request
from support.streams import llm, replicas, router

Logs = list[MutableMapping[str, Any]]


@pytest.fixture
def logs() -> Iterator[Logs]:
    """Capture what is logged."""
    with capture_logs() as entries:
        yield entries


class Setting:
    """A router of a pool with some replicas, its watch, and its clock."""

    def __init__(self, count: int = 4, *, leads: bool = True) -> None:
        self.now = 100.0
        self.router = router(llm(endpoints=replicas(count)))
        self.keys = [each.key for each in self.router.pools["llm"].endpoints]
        self.watch = ReplicaWatch(self.router, lambda: self.now, lambda: self.now, lambda: leads)

    def fail(self, number: int, times: int = 5) -> None:
        """Let connections to a replica fail."""
        for _ in range(times):
            self.router.conditions.bad("llm", self.keys[number], self.now, answered=False)

    def probe(self, number: int, *, ready: bool) -> None:
        """Take two probes of a replica."""
        for _ in range(2):
            self.router.conditions.probed("llm", self.keys[number], ready=ready)

    def state(self, number: int) -> Any:
        """Return what is reported of a replica."""
        return list(self.watch.states())[number]


def test_an_ejection_is_logged_with_its_cause_and_its_end(logs: Logs) -> None:
    """An operator learns from the log alone which replica, why, and for how long."""
    made = Setting()
    made.watch.look()
    made.fail(0)
    made.watch.look()
    made.watch.look()
    (left,) = logs
    assert left["event"] == "replica_left_alone"
    assert (left["pool"], left["replica"], left["conditions"]) == ("llm", "r1", ["ejected"])
    assert "failures" in left["cause"]
    assert left["for_s"] > 0
    (condition,) = made.state(0).conditions
    assert condition.name == "ejected"
    assert condition.left_seconds == pytest.approx(left["for_s"])
    assert made.watch.changes == 1
    assert not made.state(1).conditions


def test_half_open_is_reported_and_the_way_back_is_logged(logs: Logs) -> None:
    """It is still left alone by most requests, so it is not back yet."""
    made = Setting()
    made.fail(0)
    made.watch.look()
    made.now += 400.0
    asked = Request("llm", "stable", "http", Features(Form.GENERATE), ())
    made.router.conditions.keep("llm", (), made.now, asked)
    made.watch.look()
    assert [each.name for each in made.state(0).conditions] == [HALF_OPEN]
    assert made.watch.changes == 2
    for _ in range(2):
        made.router.conditions.good("llm", made.keys[0], 0.1, made.now)
    made.watch.look()
    assert [each["event"] for each in logs] == ["replica_left_alone", "replica_back"]
    assert logs[-1]["was"] == ["half-open"]
    assert not made.state(0).conditions


def test_a_probe_that_fails_is_logged(logs: Logs) -> None:
    """As any condition that bars a replica."""
    made = Setting()
    made.probe(1, ready=False)
    made.watch.look()
    made.probe(1, ready=True)
    made.watch.look()
    assert [(each["event"], each["replica"]) for each in logs] == [
        ("replica_left_alone", "r2"),
        ("replica_back", "r2"),
    ]
    assert logs[0]["conditions"] == ["not-ready"]


def test_a_removed_replica_is_not_back(logs: Logs) -> None:
    """It has left the fleet."""
    made = Setting()
    made.probe(3, ready=False)
    made.watch.look()
    made.router.set_pools({"llm": llm(endpoints=replicas(3))}, made.now)
    made.watch.look()
    assert [each["event"] for each in logs] == ["replica_left_alone"]


def test_a_silent_replica_is_reported_and_not_left_alone(logs: Logs) -> None:
    """It is chosen last, which the log need not tell of."""
    made = Setting()
    made.router.registry.observe("r1", ())
    made.router.registry.silent("r1")
    made.watch.look()
    assert not logs
    assert [each.name for each in made.state(0).conditions] == ["silent"]


def test_a_look_logs_a_bounded_number_of_lines(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fails for a thousand replicas at once must not flood the log."""
    monkeypatch.setattr(module, "MAX_LINES", 2)
    made = Setting(5)
    for number in range(5):
        made.probe(number, ready=False)
    made.watch.look()
    assert [each["event"] for each in logs] == ["replica_left_alone"] * 2 + ["replicas_changed"]
    assert logs[-1]["further"] == 3


def test_one_of_several_workers_logs(logs: Logs) -> None:
    """All workers know the same, but each reports it."""
    made = Setting(leads=False)
    made.fail(0)
    made.watch.look()
    assert not logs
    assert made.watch.changes == 1
    assert made.state(0).conditions


@pytest.mark.parametrize(
    ("cause", "row", "share", "said"),
    [
        (Cause.DEAD_BACKEND, 5, 1.0, "5 errors"),
        (Cause.FAILURES, 1, 1.0, "1 failure"),
        (Cause.FAILURES, 0, None, "failures"),
        (Cause.RATIO, 0, 0.625, "62% of its answers failed"),
        (Cause.FROZEN, 0, None, "no sign of life with requests in flight"),
        (Cause.SLOW, 0, None, "its first bytes come much later than its peers'"),
    ],
)
def test_each_cause_has_words(cause: Cause, row: int, share: float | None, said: str) -> None:
    """An operator need not know the names of the code."""
    assert cause_of(str(cause), row, share) == said
