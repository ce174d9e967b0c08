"""Slots that are learned from how fast answers end, on engines with a known number of slots."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.slots import (
    FIRST,
    LEAST,
    MAX_LEVELS,
    MAX_SLOTS,
    WINDOW,
    LearnedSlots,
    spare,
)


class Engine:
    """Runs ``slots`` requests of a second each at once; a caller waits for at most 10 s."""

    def __init__(self, slots: int, load: float, seed: int, *, varied: bool = True) -> None:
        self.learned = LearnedSlots()
        self.slots = slots
        self._rate = load * slots
        self._rng = random.Random(seed)
        self._varied = varied
        self._running: list[float] = []
        self._waiting = self.held = 0
        self._next = 0.0
        self.now = 0.0
        self.most_held = 0

    def run(self, seconds: float) -> float:
        """Run on; return answers per second."""
        done, end = 0, self.now + seconds
        while self.now < end:
            if not self._running or self._next <= self._running[0]:
                self.now = self._next
                self._next += self._rng.expovariate(self._rate)
                self.held = min(self.held + 1, int(10 * self._rate))
            else:
                self.now = heapq.heappop(self._running)
                in_flight = len(self._running) + 1 + self._waiting
                if self._waiting:
                    self._waiting -= 1
                    self._start()
                self.learned.answered(in_flight, 1, self.now)
                done += 1
            while self.held and self._room():
                self.held -= 1
                if len(self._running) < self.slots:
                    self._start()
                else:
                    self._waiting += 1
            self.most_held = max(self.most_held, self.held)
        return done / seconds

    def _room(self) -> bool:
        slots = self.learned.slots
        return slots is None or len(self._running) + self._waiting < slots + spare(slots)

    def _start(self) -> None:
        takes = self._rng.expovariate(1.0) if self._varied else 1.0
        heapq.heappush(self._running, self.now + takes)


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("varied", [True, False])
def test_an_engine_in_overload_is_kept_busy_and_no_more(slots: int, *, varied: bool):
    """At twice what it can do it does what it can, with few requests that wait in it."""
    engine = Engine(slots, 2.0, seed=7, varied=varied)
    engine.run(4000.0 / slots)
    rate = engine.run(4000.0 / slots)
    assert rate >= 0.85 * slots
    assert engine.learned.slots is not None
    assert engine.learned.slots <= 3 * slots


def test_an_engine_that_becomes_smaller_is_followed():
    """A longer context leaves room for fewer requests."""
    engine = Engine(16, 2.0, seed=3)
    engine.run(600.0)
    engine.slots = 4
    engine.run(600.0)
    assert engine.learned.slots is not None
    assert engine.learned.slots <= 12
    engine.slots = 16
    engine.run(600.0)
    assert engine.run(200.0) >= 0.85 * 16


def test_below_saturation_the_limit_holds_nothing_for_long():
    """At half of what the engine can do requests are hardly ever held."""
    engine = Engine(16, 0.5, seed=5)
    engine.run(600.0)
    assert engine.most_held <= 2
    assert engine.learned.slots is not None
    assert engine.learned.slots >= 8


def test_nothing_is_known_before_fifty_answers():
    """Then it is the most that were in flight, and at least ``LEAST``."""
    learned = LearnedSlots()
    for number in range(FIRST - 1):
        assert not learned.answered(number % 9, 1, float(number))
        assert learned.slots is None
    assert learned.answered(1, 1, 50.0)
    assert learned.slots == 8
    small = LearnedSlots()
    small.answered(1, FIRST, 1.0)
    assert small.slots == LEAST


def test_windows_that_do_not_reach_the_limit_teach_nothing():
    """What ends is then what has come."""
    learned = LearnedSlots()
    learned.answered(20, FIRST, 0.0)
    for number in range(20 * WINDOW):
        assert not learned.answered(3, 1, 1.0 + number)
    assert (learned.slots, learned.good) == (20, 0)


@given(
    st.lists(
        st.tuples(st.integers(1, 2**21), st.integers(1, 2**12), st.floats(0.0, 10.0)), max_size=200
    )
)
def test_slots_stay_within_their_bounds(steps: list[tuple[int, int, float]]):
    """Whatever ends, there is at least one slot, and a bounded memory."""
    learned, now = LearnedSlots(), 0.0
    for in_flight, count, later in steps:
        now += later
        learned.answered(in_flight, count, now)
        assert learned.slots is None or 1 <= learned.slots <= MAX_SLOTS
        assert len(learned._rates) <= MAX_LEVELS
