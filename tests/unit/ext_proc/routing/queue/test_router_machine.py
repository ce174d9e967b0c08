"""Requests that wait, and the router that decides them, as one state machine.

What `test_queue_machine.py` leaves out: the replica is chosen when a request leaves, replicas die
and come back with requests in flight, limits change, and sequences hold requests to one replica.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.router import Router
from ext_proc.routing.state.ledger import Outcome
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form, Request
from support.streams import llm

MOST_S = 8.0
REPLICAS = 3


class Asked:
    """A request, and what it was told."""

    def __init__(self, waiting: QueuedRequest, heard: list[Decision | Refusal]) -> None:
        self.waiting = waiting
        self.heard = heard


class Waits(RuleBasedStateMachine):
    """Requests come, leave and end; replicas die and come back; limits change."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limit = 1
        self.alive = dict.fromkeys(range(REPLICAS), 1)
        """Incarnations of the replicas that are there."""
        self.router = Router(random.Random(1))
        self.open: list[Asked] = []
        self.running: list[tuple[Decision, str]] = []
        self.set_pools()

    def set_pools(self) -> None:
        endpoints = tuple(
            Endpoint(
                EndpointKey(f"r{number}", incarnation),
                "stable",
                http=f"10.0.0.{number}:80",
                grpc=None,
            )
            for number, incarnation in sorted(self.alive.items())
        )
        pool = llm(endpoints=endpoints, per_endpoint_in_flight=self.limit, hold_s=MOST_S)
        self.router.set_pools({"llm": pool}, self.now)

    def pump(self) -> None:
        self.router.pump(self.now, self.now)
        self.settle()

    def settle(self) -> None:
        """Take what was told; nothing was told twice."""
        assert all(len(each.heard) <= 1 for each in self.open)
        for each in [each for each in self.open if each.heard]:
            self.open.remove(each)
            self.take(each.heard[0])

    def take(self, told: Decision | Refusal) -> None:
        if isinstance(told, Decision):
            assert told.ticket is not None
            number = int(told.ticket.endpoint.id[1:])
            # It goes to a replica that is there now, whichever was there when it came.
            assert told.ticket.endpoint.incarnation == self.alive[number]
            assert self.load(told.ticket.endpoint) <= self.limit
            self.running.append((told, told.ticket.endpoint.id))
        else:
            assert told.kind in {
                RefusalKind.SATURATED,
                RefusalKind.QUEUE_FULL,
                RefusalKind.DEADLINE_UNMET,
                RefusalKind.DEADLINE_PASSED,
                RefusalKind.NO_ENDPOINTS,
            }

    def load(self, key: EndpointKey) -> int:
        return self.router.ledger.load(key).in_flight

    @rule(
        sequence=st.none() | st.integers(1, 3),
        priority=st.sampled_from([None, 1, 2, 7]),
        budget=st.none() | st.floats(0.01, 9.0),
        count=st.integers(1, 4),
    )
    def come(self, sequence, priority, budget, count):
        for _ in range(count):
            features = Features(
                Form.HTTP_INFER, model="toy-llm", priority=priority, sequence_id=sequence
            )
            request = Request("llm", None, "http", features)
            heard: list[Decision | Refusal] = []
            deadline = None if budget is None else self.now + budget
            waiting = QueuedRequest(request, 100, self.now, deadline, MOST_S, heard.append)
            told = self.router.wait(waiting, self.now, self.now)
            assert not heard
            if told is None:
                self.open.append(Asked(waiting, heard))
            else:
                self.take(told)

    @rule(at=st.integers(0, 99))
    def a_caller_leaves(self, at):
        if self.open:
            each = self.open.pop(at % len(self.open))
            assert self.router.queue.leave(each.waiting)
            self.pump()
            assert not each.heard

    @rule(at=st.integers(0, 99), outcome=st.sampled_from([Outcome.DONE, Outcome.ABORTED]))
    def a_request_ends(self, at, outcome):
        if self.running:
            decision, _ = self.running.pop(at % len(self.running))
            self.router.settle(decision.ticket, outcome, self.now)
            self.pump()

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_replica_dies(self, number):
        if self.alive.pop(number, None):
            # Its requests broke; the proxy repeats or ends them, and tells of each.
            for decision, name in [each for each in self.running if each[1] == f"r{number}"]:
                self.running.remove((decision, name))
                self.router.settle(decision.ticket, Outcome.ABORTED, self.now)
            self.set_pools()
            self.pump()

    @rule(number=st.integers(0, REPLICAS - 1))
    def a_replica_restarts(self, number):
        if number not in self.alive:
            self.alive[number] = int(self.now * 1000) + 2
            self.set_pools()
            self.pump()

    @rule(limit=st.integers(1, 3))
    def the_limit_changes(self, limit):
        self.limit = limit
        self.set_pools()
        self.pump()

    @rule(passed=st.floats(0.001, 4.0))
    def time_passes(self, passed):
        self.now += passed
        self.pump()
        assert all(each.waiting.due > self.now for each in self.open)

    @invariant()
    def none_is_lost_and_none_is_stuck(self):
        assert self.router.queue.count == len(self.open)
        assert len(self.router.ledger) == len(self.running)
        free = {
            f"r{number}"
            for number, incarnation in self.alive.items()
            if self.load(EndpointKey(f"r{number}", incarnation)) < self.limit
        }
        for each in self.open if free else ():
            found = self.router.decide(each.waiting.request, self.now, self.now)
            assert not isinstance(found, Decision), f"it waits although {free} have room"


TestWaits = Waits.TestCase
TestWaits.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
