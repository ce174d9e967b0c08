"""Several workers keep one limit by what they tell each other, which comes late.

What follows from the rules of the bus, and is held here for any order of events: a worker lets a
request go only if all that it knows leaves room. So a replica has at most its limit, and what
others have let go since, of which the worker could not know yet.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.values.ticket import Outcome
from ext_proc.workers.account import Account
from support.crew import key, request, router

if TYPE_CHECKING:
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.ticket import Ticket
    from ext_proc.workers.records import Message

MOST_S = 10.0
REPLICAS = 2


class Divided(RuleBasedStateMachine):
    """Workers that decide, and messages between them that are late by at most ``delay``."""

    @initialize(
        workers=st.integers(2, 4),
        limit=st.integers(1, 6),
        delay=st.sampled_from([0.0, 0.025, 0.1]),
        seed=st.integers(0, 2**16),
    )
    def start(self, workers: int, limit: int, delay: float, seed: int) -> None:
        self.now, self.limit, self.delay = 0.0, limit, delay
        self.rng = random.Random(seed)
        more = {"per_endpoint_in_flight": limit, "hold_s": MOST_S}
        self.accounts = [Account() for _ in range(workers)]
        self.routers = [
            router(REPLICAS, seed + number, more=more, on_event=partial(self.tell, number))
            for number in range(workers)
        ]
        self.sent: list[tuple[float, int, int, list[Message]]] = []
        """Arrival, sender, receiver and message; messages between two workers keep their order."""
        self.running: list[tuple[int, Ticket]] = []
        self.picks: list[tuple[float, int, str]] = []
        """Time, worker and replica."""
        self.waiting: list[QueuedRequest] = []
        self.unsent: set[int] = set()

    def tell(self, worker: int, event: object) -> None:
        self.accounts[worker].take(event, self.now)
        self.unsent.add(worker)

    def flush(self) -> None:
        for worker in sorted(self.unsent):
            words = self.accounts[worker].sums()
            for other in range(len(self.routers)):
                if other != worker:
                    before = [at for at, *way, _ in self.sent if way == [worker, other]]
                    at = self.now + self.rng.uniform(0.0, self.delay)
                    self.sent.append((max([at, *before]), worker, other, words))
        self.unsent.clear()
        self.deliver()

    def deliver(self) -> None:
        """Read what has arrived, and try what waits there."""
        due = [each for each in self.sent if each[0] <= self.now]
        self.sent = [each for each in self.sent if each[0] > self.now]
        for _, worker, other, words in due:
            for word in words:
                self.routers[other].peers.follow(worker, word, self.now)
        for made in self.routers:
            made.pump(self.now, self.now)
        if self.unsent:
            self.flush()

    def told(self, worker: int, decision: Decision | Refusal) -> None:
        """Take an answer; of a pick check that it exceeds the limit by no more than it may."""
        if not isinstance(decision, Decision):
            return
        ticket = decision.ticket
        self.running.append((worker, ticket))
        at = ticket.endpoint.id
        unknown = sum(
            by != worker and where == at and self.now - when <= self.delay
            for when, by, where in self.picks
        )
        self.picks.append((self.now, worker, at))
        there = sum(each.endpoint.id == at for _, each in self.running)
        assert there <= self.limit + unknown

    @rule(worker=st.integers(0, 3), count=st.integers(1, 5))
    def come(self, worker: int, count: int) -> None:
        worker %= len(self.routers)
        for _ in range(count):
            heard = partial(self.told, worker)
            asked = QueuedRequest(request(), 100, self.now, None, MOST_S, heard)
            told = self.routers[worker].wait(asked, self.now, self.now)
            if told is not None:
                self.told(worker, told)
            else:
                self.waiting.append(asked)
        self.flush()

    @rule(at=st.integers(0, 99), count=st.integers(1, 4))
    def end(self, at: int, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            worker, ticket = self.running.pop(at % len(self.running))
            self.routers[worker].settle(ticket, Outcome.DONE, self.now)
        self.flush()

    @rule(passed=st.sampled_from([0.001, 0.004, 0.02, 0.2]))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.deliver()

    @rule()
    def all_is_told(self) -> None:
        """Then each knows all, nothing waits beside a free place, and no count has drifted."""
        while self.sent:
            self.now = max(self.now, min(at for at, *_ in self.sent))
            self.deliver()
        for number in range(REPLICAS):
            there = sum(ticket.endpoint == key(number) for _, ticket in self.running)
            for made in self.routers:
                assert made.ledger.load(key(number)).in_flight == there
            if there < self.limit:
                assert not any(made.queue.count for made in self.routers)

    @invariant()
    def none_is_lost(self) -> None:
        if hasattr(self, "routers"):
            ours = [sum(made.registry.in_flight().values()) for made in self.routers]
            assert sum(ours) == len(self.running)


TestDivided = Divided.TestCase
TestDivided.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_burst_is_the_worst_case(workers: int) -> None:
    """All begin before any has heard of another: each fills the limit, and none goes further."""
    made = [
        router(1, number, more={"per_endpoint_in_flight": 3, "hold_s": MOST_S})
        for number in range(workers)
    ]
    picks = [one.decide(request(), 0.0, 0.0) for one in made for _ in range(20)]
    assert sum(isinstance(each, Decision) for each in picks) == workers * 3
