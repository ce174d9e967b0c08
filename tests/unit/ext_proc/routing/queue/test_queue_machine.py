"""The queue as a state machine: whatever happens, each request is told once, in its order."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.compiled import compiled
from ext_proc.routing.queue import queue as queue_module
from ext_proc.routing.queue.queue import MAX_BYTES, Queue
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form, Request

POOLS, MODELS, LANES = ("a", "b"), ("m", "n"), ("free", "r1", "r2")
FEW = 6
"""Requests of a pool and model that may wait here."""


def waiting(told, *, pool="a", model="m", lane="free", now=0.0, **rest):
    """Return a request that may wait."""
    features = Features(Form.GENERATE, model=model, priority=rest.pop("priority", None))
    made = QueuedRequest(
        Request(pool=pool, variant=None, protocol="http", features=features),
        rest.pop("size", 100),
        now,
        rest.pop("deadline", None),
        rest.pop("hold_s", 10.0),
        told,
    )
    made.lane = (model, lane)
    return made


class Waits(RuleBasedStateMachine):
    """Requests come, leave, go and expire; replicas and pools come and go."""

    def __init__(self):
        super().__init__()
        self.queue = Queue(random.Random(1))
        self.now = 0.0
        self.open: list[QueuedRequest] = []
        self.told: dict[int, list[object]] = {}
        self.room = dict.fromkeys((pool, lane) for pool in POOLS for lane in LANES[1:])
        for key in self.room:
            self.room[key] = 0
        self.gone: set[str] = set()
        self.before, queue_module.MAX_WAITING = queue_module.MAX_WAITING, FEW

    def teardown(self):
        queue_module.MAX_WAITING = self.before

    def goes(self, each: QueuedRequest):
        """Return a decision if a replica has room; `free` may go to any."""
        if each.pool in self.gone:
            return Refusal(RefusalKind.UNKNOWN_POOL, "gone")
        lanes = LANES[1:] if each.lane[1] == "free" else (each.lane[1],)
        for lane in lanes:
            if self.room[each.pool, lane] > 0:
                self.room[each.pool, lane] -= 1
                return lane
        return None

    @rule(
        pool=st.sampled_from(POOLS),
        model=st.sampled_from(MODELS),
        lane=st.sampled_from(LANES),
        priority=st.sampled_from([None, 1, 2]),
        budget=st.none() | st.floats(-1.0, 12.0),
        size=st.sampled_from([100, MAX_BYTES // 4]),
        hold_s=st.sampled_from([10.0, 0.5]),
    )
    def join(self, pool, model, lane, priority, budget, size, hold_s):
        number, heard = len(self.told), []
        self.told[number] = heard
        deadline = None if budget is None else self.now + budget
        made = waiting(
            heard.append,
            pool=pool,
            model=model,
            lane=lane,
            now=self.now,
            priority=priority,
            deadline=deadline,
            size=size,
            hold_s=hold_s,
        )
        made.key = str(number)
        refusal = self.queue.join(made, self.now)
        if refusal is None:
            self.open.append(made)
            assert self.now < made.due <= self.now + hold_s
        else:
            assert refusal.kind in {
                RefusalKind.SATURATED,
                RefusalKind.QUEUE_FULL,
                RefusalKind.DEADLINE_UNMET,
            }
            assert not heard
        self.settle()

    @rule(at=st.integers(0, 100))
    def leave(self, at):
        if self.open:
            each = self.open.pop(at % len(self.open))
            assert self.queue.leave(each)
            assert not self.queue.leave(each)
            assert not self.told[int(each.key)]

    @rule(pool=st.sampled_from(POOLS), lane=st.sampled_from(LANES[1:]), count=st.integers(1, 3))
    def free(self, pool, lane, count):
        self.room[pool, lane] += count
        order = []

        def attempt(each):
            result = self.goes(each)
            if result is not None:
                order.append(each)
            return result

        alive = [each for each in self.open if each.due > self.now]
        self.queue.pump(pool, attempt, self.now)
        self.settle()
        # Of a lane they went in their order; who could go does not wait any more.
        for each in order:
            ahead = [
                other
                for other in alive
                if (other.pool, other.lane) == (each.pool, each.lane)
                and (other.band, other.rank, other.since) < (each.band, each.rank, each.since)
            ]
            assert all(self.told[int(other.key)] for other in ahead)
        stuck = [each for each in self.open if each.pool == pool and self.could(each)]
        assert not stuck
        for key in self.room:
            self.room[key] = 0

    def could(self, each):
        lanes = LANES[1:] if each.lane[1] == "free" else (each.lane[1],)
        return any(self.room[each.pool, lane] > 0 for lane in lanes)

    @rule(passed=st.floats(0.0, 3.0))
    def time_passes(self, passed):
        self.now += passed
        self.queue.expire(self.now)
        self.settle()
        assert all(each.due > self.now for each in self.open)

    @rule(pool=st.sampled_from(POOLS))
    def a_pool_is_removed(self, pool):
        self.gone.add(pool)
        self.queue.pump(pool, self.goes, self.now)
        self.settle()
        assert all(each.pool != pool for each in self.open)
        self.gone.clear()

    @precondition(lambda self: len(self.open) > 2)
    @rule()
    def the_picker_stops(self):
        self.queue.end(Refusal(RefusalKind.NO_PICK, "stops"))
        self.settle()
        assert not self.open

    def settle(self):
        """Forget the requests that were told, and hold that each was told once at most."""
        assert all(len(heard) <= 1 for heard in self.told.values())
        self.open = [each for each in self.open if not self.told[int(each.key)]]

    @invariant()
    def counts_agree(self):
        assert self.queue.count == len(self.open)
        assert self.queue.bytes == sum(each.size for each in self.open) <= MAX_BYTES
        counts = self.queue.counts()
        assert sum(counts.values()) == len(self.open)
        assert max(counts.values(), default=0) <= FEW
        due = [each.due for each in self.open]
        assert self.queue.next_due == (min(due) if due else None)


TestWaits = pytest.mark.skipif(compiled(), reason="replaces a constant")(Waits.TestCase)
TestWaits.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
