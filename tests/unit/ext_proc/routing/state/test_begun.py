"""Slots from answers under way, on engines with a known number of slots."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.router import Router
from ext_proc.routing.state.begun import (
    FIRST,
    LATE_S,
    LEAST_S,
    MAX_ANSWERS,
    SLACK_S,
    WINDOW,
    AnswersUnderWay,
    StreamSlots,
)
from ext_proc.routing.state.slots import LEARNED
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from support.streams import llm, replicas

PREFILL_S = 0.05
LOG_S = 1.0


class Engine:
    """Runs ``slots`` streams of a second each at once; a caller waits for at most 10 s.

    ``burst`` more requests than the limit may be in it, as ``limits`` lets a burst exceed limits
    that are not loose.
    """

    def __init__(self, slots: int, seed: int, burst: int = 0) -> None:
        self.learned = StreamSlots()
        self.burst = burst
        self.slots = slots
        self.load = 0.0
        self.rng = random.Random(seed)
        self.now = 0.0
        self.running = self.held = self.most_held = 0
        self.waiting: list[tuple[int, float]] = []
        self._events: list[tuple[float, int, str, int, float]] = []
        self._order = itertools.count()

    def run(self, seconds: float, load: float) -> float:
        """Run on at a load; return answers per second."""
        begun, self.load = self.load > 0, load
        if not begun:
            self._later(0.0, "come", 0, 0.0)
        done, end = 0, self.now + seconds
        self.most_held = 0
        while self._events and self._events[0][0] < end:
            self.now, _, what, number, sent = heapq.heappop(self._events)
            if what == "come":
                self._later(self.rng.expovariate(self.load * self.slots), "come", 0, 0.0)
                self.held = min(self.held + 1, int(10 * self.load * self.slots))
            elif what == "log":
                began = self.now - LOG_S - sent
                if not self.learned.answers.began(number, None, began):
                    self.learned.answers.began(number, sent, began)
            else:
                self.running -= 1
                done += 1
                in_flight = self.running + 1 + len(self.waiting)
                self.learned.answers.ended(number, sent, self.now)
                self.learned.answered(in_flight, 1, self.now)
            self._fill()
        self.now = end
        return done / seconds

    def _fill(self) -> None:
        while self.waiting or self.held:
            slots = self.learned.slots
            more = 0 if self.learned.loose else self.burst
            if self.held and (slots is None or self.running + len(self.waiting) <= slots + more):
                self.held -= 1
                self.waiting.append((next(self._order), self.now))
            elif not self.waiting or self.running >= self.slots:
                break
            while self.waiting and self.running < self.slots:
                number, sent = self.waiting.pop(0)
                self.running += 1
                self._later(PREFILL_S + LOG_S, "log", number, sent)
                self._later(PREFILL_S + self.rng.expovariate(1.0), "end", number, sent)
        self.most_held = max(self.most_held, self.held)

    def _later(self, seconds: float, what: str, number: int, sent: float) -> None:
        event = (self.now + seconds, next(self._order), what, number, sent)
        heapq.heappush(self._events, event)


@pytest.mark.parametrize("slots", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("first", [0.6, 2.0])
def test_an_engine_in_overload_has_its_slots_full_and_no_more(slots: int, first: float):
    """Whether its first minutes were calm or not, it does what it can, and little waits in it."""
    engine = Engine(slots, seed=11)
    engine.run(max(200.0 / slots, 20.0) + 100.0, first)
    engine.run(max(400.0 / slots, 40.0), 2.0)
    rate = engine.run(1500.0 / slots, 2.0)
    assert rate >= 0.9 * slots / (1 + PREFILL_S)
    assert engine.learned.slots is not None
    assert engine.learned.slots <= slots + max(1, slots // 4)


def test_an_engine_that_changes_is_followed():
    """A longer context leaves room for fewer requests."""
    engine = Engine(16, seed=3)
    engine.run(60.0, 2.0)
    engine.slots = 4
    engine.run(120.0, 2.0)
    assert engine.learned.slots is not None
    assert engine.learned.slots <= 5
    engine.slots = 16
    engine.run(120.0, 2.0)
    assert engine.run(60.0, 2.0) >= 0.9 * 16 / (1 + PREFILL_S)


@pytest.mark.parametrize("slots", [8, 16, 64])
def test_below_saturation_nothing_is_held(slots: int):
    """At half of what the engine can do nothing waits but where chance fills all slots."""
    engine = Engine(slots, seed=5, burst=max(4, (slots + 1) // 4))
    engine.run(600.0, 0.5)
    assert engine.most_held == 0
    assert engine.learned.slots is not None


def test_answers_that_come_whole_teach_nothing():
    """Their first byte is their end, so none is ever under way."""
    learned = StreamSlots()
    for number in range(4 * FIRST):
        now = number / 10
        learned.answers.ended(number, now - 1.0, now)
        learned.answers.began(number, None, 1.0 - LEAST_S / 2)
        assert not learned.answered(20, 1, now)
    assert learned.slots is None


def test_nothing_is_known_before_fifty_answers():
    """Then it is four more than were under way."""
    learned = StreamSlots()
    for number in range(FIRST):
        assert learned.slots is None
        now = 10.0 + number
        learned.answers.began(number, now - 4.0, 0.5)
        learned.answers.ended(number, now - 4.0, now)
        learned.answered(4, 1, now)
    assert (learned.slots, learned.loose) == (7, True)


def test_requests_that_wait_tell_of_slots_before_the_limit_is_reached():
    """After a calm start the limit is far above the slots, and callers leave before it is met.

    An answer each second is under way for 3.5 s here.
    """
    learned = StreamSlots()
    for number in range(FIRST + WINDOW):
        now = 10.0 + number
        learned.answers.began(number, now - 4.0, 0.5)
        learned.answers.ended(number, now - 4.0, now)
        learned.answered(4 if number < FIRST else 8, 1, now)
    assert learned.slots == 3


def one_for_another(learned: StreamSlots, first: int, count: int, most: int, in_flight: int):
    """Begin an answer each second, from ``first`` on, and end one 0.8 s later.

    ``most`` are under way in between, once as many have begun.
    """
    for number in range(first, first + count):
        learned.answers.began(number, float(number), 0.0)
        ends = number + 1 - most
        if ends >= 0:
            learned.answers.ended(ends, float(ends), number + 0.8)
            learned.answered(in_flight, 1, number + 0.8)


@pytest.mark.parametrize(("in_flight", "slots"), [(6, None), (7, 5)])
def test_a_queue_before_answers_that_stand_tells_of_slots_at_once(
    in_flight: int, slots: int | None
):
    """Two more than always are under way wait; one more may be a prompt that is computed."""
    learned = StreamSlots()
    one_for_another(learned, 0, 16, 5, in_flight)
    assert learned.slots == slots
    assert learned.loose == (slots is None)


def test_a_queue_from_before_more_were_under_way_tells_nothing():
    """What was in flight then runs now."""
    learned = StreamSlots()
    one_for_another(learned, 0, 8, 5, 7)
    one_for_another(learned, 8, 8, 7, 8)
    assert learned.slots is None


def test_prompts_that_are_computed_side_by_side_are_no_queue():
    """Each first byte takes two seconds, and no longer when more requests are in flight."""
    learned = StreamSlots()
    for number in range(40):
        learned.answers.began(number, float(number), 2.0)
        if number >= 5:
            learned.answers.ended(number - 5, number - 5.0, number + 1.8)
            learned.answered(7, 1, number + 1.8)
    assert learned.answers.level == 5
    assert learned.slots is None


def test_slots_rise_when_more_answers_are_under_way():
    """Ever faster while they do: by a quarter, half and all, and at least by one."""
    learned = StreamSlots()
    one_for_another(learned, 0, 16, 8, 10)
    assert learned.slots == 8
    found = []
    for number in range(16, 60):
        learned.answers.began(number, float(number), 0.0)
        if number % 2:
            learned.answers.ended(number // 2, float(number // 2), number + 0.8)
            learned.answered(8, 1, number + 0.8)
        if learned.slots not in found:
            found.append(learned.slots)
    assert found == [8, 10, 15, 30]


def test_the_most_under_way_stand_where_another_begins_for_each_that_ends():
    """Where as many are under way for a moment only, nothing is known of slots."""
    for gap_s, stands in ((0.2, True), (0.8, False)):
        answers = AnswersUnderWay()
        for number in range(12):
            answers.began(number, float(number), 0.0)
            answers.found(9, number + 0.01)
            answers.ended(number, float(number), number + 3 - gap_s)
        answers.follow(11.0 + LATE_S)
        assert answers.level == 3
        assert answers.stands == stands


def test_slots_are_forgotten_where_answers_stop_being_streams():
    """Another rule learns them then."""
    learned = StreamSlots()
    for number in range(FIRST + 3 * WINDOW):
        now = 10.0 + number
        learned.answers.ended(number, now - 4.0, now)
        learned.answers.began(number, None, 0.5 if number < FIRST else 4.0)
        learned.answered(4, 1, now)
    assert learned.slots is None


def test_slots_are_kept_where_the_log_is_late():
    """A log that tells nothing for some seconds says nothing of answers that come whole."""
    learned = StreamSlots()
    one_for_another(learned, 0, 16, 5, 9)
    for number in range(100, 100 + WINDOW):
        learned.answers.ended(number, number - 4.0, float(number))
        learned.answered(9, 1, float(number))
    assert learned.slots == 5


def test_an_end_that_is_known_late_is_no_further_slot():
    """The next answer in the slot seems to begin before it."""
    answers = AnswersUnderWay()
    for number in range(10):
        answers.began(number, float(number), 0.0)
        answers.ended(number, float(number), number + 1 + SLACK_S / 2)
    answers.follow(20.0)
    assert answers.most == 1


def test_what_was_under_way_is_counted_when_the_log_has_come():
    """Beginnings and ends count in the order of their times, whenever they are told."""
    answers = AnswersUnderWay()
    assert answers.began(1, 0.0, 0.5)
    answers.ended(2, 0.0, 0.8)
    answers.ended(1, 0.0, 0.9)
    assert answers.began(2, None, 0.6)
    assert not answers.began(3, None, 0.1)
    answers.follow(0.7 + LATE_S)
    assert (answers.count, answers.most) == (2, 2)
    answers.follow(1.0 + LATE_S)
    assert (answers.count, answers.most, answers.lasted) == (0, 2, 2)
    answers.begin(0, None)
    assert (answers.most, answers.lasted) == (0, 0)


def test_memory_is_bounded():
    """A log that tells only beginnings, or none, fills nothing up."""
    answers = AnswersUnderWay()
    for number in range(2 * MAX_ANSWERS):
        answers.began(number, 0.0, 0.1)
        answers.ended(-1 - number, 0.0, 1.0)
    assert len(answers._began) == len(answers._ended) == MAX_ANSWERS
    for number in range(2 * MAX_ANSWERS):
        answers.ended(-1 - number, 0.0, 1.0)
        answers.began(-1 - number, None, 0.1)
    assert len(answers.events) <= 3 * MAX_ANSWERS


def test_a_router_learns_the_slots_of_an_engine_that_tells_nothing():
    """First bytes and ends come by their tickets, also of requests that have ended."""
    router = Router(random.Random(1))
    router.set_pools({"llm": llm(endpoints=replicas(1), limit="auto")}, 0.0)
    key = router.pools["llm"].endpoints[0].key
    now, features = 0.0, Features(Form.GENERATE_STREAM, model="toy-llm", prompt=b"x")
    request = Request("llm", None, "http", features)
    for number in range(FIRST + 1):
        now += 5.0
        made = [router.decide(request, now, now) for _ in range(3)]
        tickets = [each.ticket for each in made if isinstance(each, Decision) and each.ticket]
        router.began(tickets[0].id, key, 1.0)
        for ticket in tickets:
            router.settle(ticket, Outcome.DONE, now + 3.0)
        for ticket in tickets[1:]:
            router.began(ticket.id, key, 1.0)
        if number < 10:
            assert router.limits.known(key, "toy-llm") is None
    known = router.limits.known(key, "toy-llm")
    assert known is not None
    assert (known.slots, known.source) == (7, LEARNED)
