"""Who goes first, who is refused at once, and what a refusal says."""

from __future__ import annotations

import random

import pytest

from ext_proc.routing.queue.line import LEAST, STANDING_S
from ext_proc.routing.queue.queue import MAX_LANES, MAX_WAITING, Queue
from ext_proc.routing.queue.waiting import MOST_S, QueuedRequest
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import HIGH, LOW, Features, Form, Request, band_of


def waiting(now=0.0, *, name="", told=lambda _: None, lane="free", **rest):
    """Return a request that may wait."""
    features = Features(
        Form.GENERATE, model="m", priority=rest.pop("priority", None), request_id=name
    )
    request = Request(pool="llm", variant=None, protocol="http", features=features)
    made = QueuedRequest(
        request,
        rest.pop("size", 1),
        now,
        rest.pop("deadline", None),
        rest.pop("hold_s", 10.0),
        told,
    )
    made.lane = lane
    return made


def joined(queue, *every, now=0.0):
    """Let requests join; none is refused."""
    for each in every:
        assert queue.join(each, now) is None


def order(queue, now=0.0):
    """Return the names in the order in which they go where all can go."""
    names = []
    queue.pump("llm", lambda each: names.append(each.request.features.request_id) or "r1", now)
    return names


@pytest.mark.parametrize(
    ("priority", "band"), [(None, HIGH), (0, HIGH), (1, HIGH), (2, LOW), (9, LOW), (-1, HIGH)]
)
def test_a_caller_can_only_lower_itself(priority, band):
    """Triton's 1 is the highest priority, and who says nothing has it."""
    assert band_of(priority) == band


def test_bands_then_deadlines_then_arrival():
    """A request of the low band goes when no other can; a deadline goes before a later one."""
    queue = Queue(random.Random(1))
    joined(queue, waiting(name="low", priority=2), waiting(name="first"), waiting(name="second"))
    joined(
        queue,
        waiting(0.5, name="soon", deadline=3.0),
        waiting(0.5, name="late", deadline=60.0),
        now=0.5,
    )
    assert order(queue, 0.5) == ["soon", "first", "second", "late", "low"]
    assert (queue.count, queue.bytes) == (0, 0)


def test_a_head_that_cannot_go_blocks_its_lane_only():
    """The others of its lane are not even tried."""
    queue, tried = Queue(random.Random(1)), []
    joined(queue, waiting(name="a", lane="r1"), waiting(name="b", lane="r1"), waiting(name="c"))

    def attempt(each):
        tried.append(each.request.features.request_id)
        return None if each.lane == "r1" else "r2"

    assert queue.pump("llm", attempt, 0.0) == 1
    assert tried == ["a", "c"]


def test_more_lanes_than_may_be_share_one():
    """The number of tries of a pass is bounded."""
    queue, tried = Queue(random.Random(1)), []
    joined(queue, *(waiting(lane=number) for number in range(3 * MAX_LANES)))
    queue.pump("llm", tried.append, 0.0)
    assert len(tried) == MAX_LANES + 1


def test_the_bound_of_a_line():
    """Beyond it a low request is refused, and a high one takes the place of the last low one."""
    queue, heard = Queue(random.Random(1)), []
    joined(queue, *(waiting() for _ in range(MAX_WAITING - 2)))
    joined(queue, waiting(priority=2), waiting(priority=2, told=heard.append))
    refused = queue.join(waiting(priority=2), 0.0)
    assert refused.kind is RefusalKind.QUEUE_FULL
    joined(queue, waiting())
    assert [each.kind for each in heard] == [RefusalKind.QUEUE_FULL]
    assert queue.count == MAX_WAITING


def drained(queue, per_second, *, until):
    """Let requests go one by one at a rate, with others always waiting."""
    now = 0.0
    while now < until:
        now += 1 / per_second
        room = ["r1"]
        queue.pump("llm", lambda _, room=room: room.pop() if room else None, now)
    return now


def test_a_deadline_that_cannot_be_met_is_refused_at_once():
    """The refusal names the wait that the rate of departures predicts."""
    queue = Queue(random.Random(1))
    joined(queue, *(waiting() for _ in range(40)))
    now = drained(queue, 10.0, until=0.9)
    assert queue.rate("llm", "m", now) == pytest.approx(10.0)
    refused = queue.join(waiting(now, deadline=now + 1.0), now)
    assert refused.kind is RefusalKind.DEADLINE_UNMET
    expected = (queue.count + 1) / 10.0
    assert f"about {expected:.1f} s" in refused.message
    assert expected <= refused.wait_s <= 1.5 * expected
    joined(queue, waiting(now, deadline=now + 8.0), now=now)


def test_a_queue_that_stands_is_kept_short():
    """A burst may wait; once the queue has stood, a request that would wait longer is refused."""
    queue = Queue(random.Random(1))
    joined(queue, *(waiting() for _ in range(40)))
    early = drained(queue, 10.0, until=0.5)
    joined(queue, waiting(early), now=early)  # 3.6 s
    queue_now = early + STANDING_S
    refused = queue.join(waiting(queue_now), queue_now)
    assert refused.kind is RefusalKind.SATURATED
    assert refused.wait_s > 1.0


def test_a_rate_is_unknown_at_first():
    """So nothing is refused by it; and what an idle queue let go says nothing of a full one."""
    queue = Queue(random.Random(1))
    joined(queue, *(waiting() for _ in range(LEAST)))
    assert queue.wait_s("llm", "m", STANDING_S / 2) is None
    drained(queue, 1.0, until=LEAST - 1)
    order(queue, 5.0)
    joined(queue, waiting(60.0), now=60.0)
    assert queue.rate("llm", "m", 60.0 + STANDING_S / 2) is None


def test_a_rate_that_is_not_measured_is_refused_by_only_if_the_wait_is_too_long():
    """Of slow answers one may wait behind another."""
    queue = Queue(random.Random(1))
    joined(queue, waiting(), waiting())
    joined(queue, waiting(2 * STANDING_S), now=2 * STANDING_S)
    assert queue.join(waiting(4.0), 4.0).wait_s >= MOST_S


def test_who_is_refused_comes_again_when_the_line_has_gone():
    """Replicas that stood for a second do not make callers stay away for hours."""
    queue = Queue(random.Random(1))
    joined(queue, *(waiting() for _ in range(MAX_WAITING)))
    assert queue.wait_s("llm", "m", 9.0) > 3_600
    assert MOST_S <= queue.join(waiting(9.0), 9.0).wait_s <= 1.5 * MOST_S


def test_a_queue_that_stands_leaves_slower_than_one_departure_more():
    """What it lets go in the time that it has stood tells that."""
    queue = Queue(random.Random(1))
    joined(queue, *(waiting() for _ in range(4)))
    assert queue.rate("llm", "m", 2.0) == 0.5
    queue.pump("llm", lambda _: "r1" if queue.count == 4 else None, 2.0)
    assert queue.rate("llm", "m", 4.0) == 0.5


@pytest.mark.parametrize(
    ("deadline", "last", "kind"),
    [
        (None, None, RefusalKind.SATURATED),
        (4.0, None, RefusalKind.DEADLINE_PASSED),
        (None, Refusal(RefusalKind.NO_ENDPOINTS, "no endpoint"), RefusalKind.NO_ENDPOINTS),
    ],
)
def test_a_wait_ends(deadline, last, kind):
    """It ends at the deadline or after the longest wait, with the last reason why it did not go."""
    queue, heard = Queue(random.Random(1)), []
    made = waiting(told=heard.append, deadline=deadline)
    joined(queue, made)
    made.refusal = last
    due = deadline or MOST_S
    assert queue.expire(due - 0.01) == 0
    assert queue.expire(due) == 1
    assert [each.kind for each in heard] == [kind]
    assert queue.next_due is None


def test_what_waits_is_described():
    """By pool, model and band; what is not known is None."""
    queue = Queue(random.Random(1))
    joined(queue, waiting(size=5), waiting(priority=2, size=5))
    line = {"high": 1, "low": 1, "not_empty_s": 0.5, "leave_per_s": None, "expected_wait_s": None}
    assert queue.describe(0.5) == {
        "waiting": 2,
        "bytes": 10,
        "lines": [{"pool": "llm", "model": "m", **line}],
    }
    empty = dict.fromkeys(line) | {"high": 0, "low": 0}
    assert queue.line("llm", "other", 0.5) == empty
