"""The traffic book: rates, the hour, and its bounds."""

from __future__ import annotations

import pytest

from xds_server.applications.traffic import book as module
from xds_server.applications.traffic.book import (
    LATE_S,
    LONG_SLOTS,
    NOWHERE,
    WINDOW,
    TrafficBook,
)
from xds_server.applications.traffic.picker_runs import Counted, Key
from xds_server.applications.traffic.request_counts import RequestCounts
from xds_server.applications.traffic.time_slots import MOST, TimeSlots

STABLE: Key = ("llm", "stable")
R1: Key = ("llm", "r1")


class Setting:
    """A book, its clock, and a picker whose counts rise."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.variants, self.endpoints = {STABLE, ("llm", "")}, {R1}
        self.book = TrafficBook(lambda: (self.variants, self.endpoints), lambda: self.now)
        self.total = 0

    def report(self, requests: int, *, key: Key = STABLE, run: int = 1) -> None:
        """Report so many further requests, a tenth of them failed."""
        self.total += requests
        sums = RequestCounts(
            self.total, {"error": self.total // 10, "left": 1}, {10: self.total}, {20: self.total}
        )
        endpoint = RequestCounts(self.total, {"error": self.total // 10})
        self.book.take("p", Counted(run, 1.0, {key: sums}, {R1: endpoint}))


def test_rates_are_those_of_the_last_minute() -> None:
    """Ten requests each 5 s are two per second, and old ones fall out."""
    made = Setting()
    for _ in range(60):
        made.report(10)
        made.now += 5.0
    rates = made.book.variant(*STABLE)
    assert rates.per_second == pytest.approx(2.0, rel=0.1)
    assert rates.failed == rates.sums.requests // 10  # a caller that left is no failure
    assert rates.duration_s(0.5) is not None
    assert made.book.endpoint(*R1).sums.requests == rates.sums.requests
    made.now += 70.0
    assert made.book.variant(*STABLE).sums.requests == 0
    assert made.book.variant(*STABLE).duration_s(0.5) is None


def test_an_hour_is_kept_in_bounded_slots() -> None:
    """Two hours of traffic keep one hour of minutes and one minute of short slots."""
    made = Setting()
    for _ in range(1440):
        made.report(1)
        made.now += 5.0
    short, long = made.book._variants[STABLE]
    assert (len(short), len(long)) == (WINDOW, LONG_SLOTS)
    minutes = list(made.book.history())
    assert len(minutes) <= LONG_SLOTS
    assert all(sums.requests == 12 for _, _, sums in minutes[1:-1])
    assert not list(made.book.history("other"))


def test_what_comes_late_is_no_burst() -> None:
    """After a lost stream the requests of minutes come at once: they are in the hour only."""
    made = Setting()
    made.report(10)
    made.now += LATE_S + 1.0
    made.report(600)
    assert made.book.variant(*STABLE).sums.requests == 10
    assert sum(sums.requests for _, _, sums in made.book.history()) == 610


def test_only_the_fleet_is_counted() -> None:
    """Names that a peer invents cost nothing; what is gone from the fleet is dropped."""
    made = Setting()
    made.report(5)
    made.report(5, key=("llm", "invented"), run=2)
    made.report(5, key=NOWHERE, run=3)
    assert set(made.book._variants) == {STABLE, NOWHERE}
    made.variants.clear()
    made.endpoints.clear()
    made.book.fleet_changed()
    made.report(5)
    assert set(made.book._variants) == {NOWHERE}
    assert not made.book._endpoints


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet of more variants than that has no series for the others."""
    monkeypatch.setattr(module, "MAX_VARIANTS", 1)
    monkeypatch.setattr(module, "MAX_ENDPOINTS", 1)
    made = Setting()
    made.variants.add(("llm", "canary"))
    made.endpoints.add(("llm", "r2"))
    many = {STABLE: RequestCounts(1), ("llm", "canary"): RequestCounts(1)}
    made.book.take(
        "p", Counted(1, 1.0, many, {R1: RequestCounts(1), ("llm", "r2"): RequestCounts(1)})
    )
    assert len(made.book._variants) == len(made.book._endpoints) == 1


def test_no_more_than_its_slots_are_kept() -> None:
    """Also where time passes between additions."""
    slots = TimeSlots(1.0, 3)
    for second in (0.0, 1.0, 2.0, 3.0, 9.0):
        slots.add(RequestCounts(1), second)
        assert len(slots) <= 3
    assert slots.total(9.0, 3).requests == 1
    assert [age for age, _ in slots.points(9.5)] == [0.5]
    slots.expire(99.0)
    assert len(slots) == 0


def test_slots_that_are_over_keep_their_counts() -> None:
    """They are packed; a count that no computer reaches is cut instead of an error."""
    slots, sums = (
        TimeSlots(1.0, 3),
        RequestCounts(2, {"error": 1}, {0: 2, 159: 2**70}, {7: 1}, 5, 4),
    )
    slots.add(sums, 0.0)
    slots.add(RequestCounts(1), 1.0)
    (_, packed), (_, newest) = slots.points(1.0)
    assert packed == sums._replace(first_byte={0: 2, 159: MOST})
    assert newest == RequestCounts(1)
    assert slots.total(1.0, 3).requests == 3
