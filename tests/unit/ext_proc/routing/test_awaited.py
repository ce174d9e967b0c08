"""What the silence of a replica says of its speed."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.awaited import GRACE_S, MOST, TOLERANCE, Awaited
from ext_proc.routing.types import EndpointKey, Ticket


def sent(number: int, at: float = 0.0, work: float = 100.0) -> Ticket:
    """Return a request."""
    return Ticket(number, EndpointKey("a", 1), "llm", work, at)


def test_the_first_is_late_after_its_tolerance() -> None:
    """Silence says nothing at first, then how long it has lasted, and never more than the most."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 2.0)
    awaited.note(sent(2, at=11.0), 0.0)
    begin = 10.0 + GRACE_S + TOLERANCE * 2.0
    assert awaited.due == begin
    assert awaited.lateness(begin, inf) == 1.0
    assert awaited.lateness(begin + 1.0, inf) == pytest.approx(2.5)
    assert awaited.lateness(begin + 1000.0, inf) == MOST


def test_only_later_requests_that_were_heard_of_prove_silence() -> None:
    """Until then the log may be what is late."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 0.1)
    assert awaited.lateness(100.0, 10.0) == 1.0
    assert awaited.lateness(100.0, 99.0) == MOST


def test_a_log_that_lags_makes_nobody_late() -> None:
    """What is known ends a while after the latest request that was heard of."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 0.1)
    assert awaited.lateness(13.0, 10.2) == 1.0
    assert awaited.lateness(13.0, 12.0) == pytest.approx(10.0)


def test_an_answer_takes_out_what_was_sent_before_it() -> None:
    """A replica that answers works, whatever holds up an older request."""
    awaited = Awaited()
    for number in (1, 2, 3):
        awaited.note(sent(number, at=float(number)), 1.0)
    awaited.answered(2)
    assert (len(awaited), awaited.work) == (1, 100.0)
    assert awaited.due == 3.0 + GRACE_S + TOLERANCE
    awaited.answered(3)
    assert (len(awaited), awaited.work, awaited.due) == (0, 0.0, inf)


def test_a_request_that_moved_takes_out_itself_only() -> None:
    """What was sent before it is still awaited."""
    awaited = Awaited()
    for number in (1, 2, 3):
        awaited.note(sent(number), 1.0)
    awaited.gone(2)
    assert len(awaited) == 2
    awaited.clear()
    assert (len(awaited), awaited.work, awaited.due) == (0, 0.0, inf)


STEPS = st.lists(
    st.tuples(st.sampled_from(["note", "answered", "gone"]), st.integers(0, 30)), max_size=60
)


@given(steps=STEPS)
def test_it_holds_what_is_awaited(steps: list[tuple[str, int]]) -> None:
    """Whatever happens, work and due time are those of the requests that are left."""
    awaited, left, number = Awaited(), dict[int, Ticket](), 0
    for step, value in steps:
        if step == "note":
            number += 1
            left[number] = sent(number, at=float(number), work=1.0 + value)
            awaited.note(left[number], float(value))
        elif step == "gone":
            awaited.gone(value)
            left.pop(value, None)
        else:
            awaited.answered(value)
            if value in left:
                left = {key: ticket for key, ticket in left.items() if key > value}
        assert len(awaited) == len(left)
        assert awaited.work == pytest.approx(sum(each.work for each in left.values()))
        first = min(left, default=None)
        assert awaited.due == inf if first is None else awaited.due >= first + GRACE_S
        assert 1.0 <= awaited.lateness(100.0, inf) <= MOST
