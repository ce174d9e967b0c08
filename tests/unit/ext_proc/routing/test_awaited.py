"""What the silence of a replica says of its speed."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.awaited import GRACE_S, MOST, TOLERANCE, Awaited
from ext_proc.routing.pace import FleetPace, Pace
from ext_proc.routing.types import EndpointKey, Ticket


def sent(number: int, at: float = 0.0, work: float = 100.0) -> Ticket:
    """Return a request."""
    return Ticket(number, EndpointKey("a", 1), "llm", work, at)


def test_the_first_is_late_after_its_tolerance() -> None:
    """Silence says nothing at first, then how long it has lasted, and never more than the most."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 2.0, 0.0)
    awaited.note(sent(2, at=11.0), 0.0, 0.0)
    begin = 10.0 + GRACE_S + TOLERANCE * 2.0
    assert awaited.due == begin
    assert awaited.lateness(begin, inf) == 1.0
    assert awaited.lateness(begin + 1.0, inf) == pytest.approx(2.5)
    assert awaited.lateness(begin + 1000.0, inf) == MOST


def test_only_later_requests_that_were_heard_of_prove_silence() -> None:
    """Until then the log may be what is late."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 0.1, 0.0)
    assert awaited.lateness(100.0, 10.0) == 1.0
    assert awaited.lateness(100.0, 99.0) == MOST


def test_a_log_that_lags_makes_nobody_late() -> None:
    """What is known ends a while after the latest request that was heard of."""
    awaited = Awaited()
    awaited.note(sent(1, at=10.0), 0.1, 0.0)
    assert awaited.lateness(13.0, 10.2) == 1.0
    assert awaited.lateness(13.0, 12.0) == pytest.approx(10.0)


def test_an_answer_takes_out_what_was_sent_before_it() -> None:
    """A replica that answers works, whatever holds up an older request."""
    awaited = Awaited()
    for number in (1, 2, 3):
        awaited.note(sent(number, at=float(number)), 1.0, 0.0)
    awaited.answered(2, at=4.0)
    assert (len(awaited), awaited.work) == (1, 100.0)
    assert awaited.due == 3.0 + GRACE_S + TOLERANCE
    awaited.answered(3, at=4.0)
    assert (len(awaited), awaited.work, awaited.due) == (0, 0.0, inf)


def test_a_request_that_moved_takes_out_itself_only() -> None:
    """What was sent before it is still awaited."""
    awaited = Awaited()
    for number in (1, 2, 3):
        awaited.note(sent(number), 1.0, 0.0)
    awaited.gone(2, at=4.0)
    assert len(awaited) == 2
    awaited.clear()
    assert (len(awaited), awaited.work, awaited.due) == (0, 0.0, inf)


def pace(*, hears: bool = True) -> Pace:
    """Return the pace of a replica that is known to read 1,000 tokens per second."""
    fleet = FleetPace(1_000.0)
    replica = Pace(fleet, 1.0)
    for number in range(64 if hears else 0):
        tokens = 100.0 + 10.0 * number
        replica.answered(tokens, 0.0, tokens / 1_000.0)
    return replica


def factor_after(*answers: tuple[int, float], drain_s: float = 0.0, hears: bool = True) -> float:
    """Return the lateness after answers to some of three prompts of 1 s that were sent at once.

    Args:
        answers: Which one began, and when.
        drain_s: What was known to stand before each of them.
        hears: First bytes tell the speed.
    """
    awaited = Awaited()
    key = EndpointKey("a", 1)
    tickets = [
        Ticket(number, key, "llm", 1_000.0, 0.0, prompted=True, drain_s=drain_s)
        for number in range(3)
    ]
    for ticket in tickets:
        awaited.note(ticket, drain_s + 1.0, 0.0)
    for number, at in answers:
        awaited.began(tickets[number], at, pace(hears=hears))
    return awaited.lateness(answers[-1][1], 0.0)


def test_an_answer_that_came_late_is_remembered() -> None:
    """The replica is slow by how late it was, also when it has nothing to answer any more."""
    assert factor_after((0, 4.0)) == pytest.approx(3.4, rel=0.1)
    assert factor_after((0, 4.0), (1, 8.0), (2, 12.0)) == pytest.approx(3.8, rel=0.1)


def test_waiting_for_other_prompts_is_not_being_slow() -> None:
    """Neither behind those that were awaited, nor behind what else was known to stand there."""
    assert factor_after((0, 1.0), (1, 2.0), (2, 3.0)) == 1.0
    assert factor_after((0, 4.0), drain_s=3.0) == 1.0


def test_only_whose_turn_is_known_teaches() -> None:
    """One that is told of before those that were sent before it may have waited for them."""
    assert factor_after((2, 9.0)) == 1.0
    assert factor_after((2, 9.0), (0, 4.0), (1, 8.0)) == 1.0


def test_where_first_bytes_tell_nothing_nobody_is_slow() -> None:
    """What is expected of a prompt is unknown there."""
    assert factor_after((0, 9.0), hears=False) == 1.0


def test_the_time_of_who_is_not_told_of_is_not_held_against_the_next() -> None:
    """A request that ended or was lost may have been worked on until then."""
    for end in (Awaited.answered, Awaited.gone):
        awaited, replica = Awaited(), pace()
        first, second = sent(1, work=1_000.0), sent(2, work=1_000.0)
        for ticket in (first, second):
            awaited.note(ticket, 1.0, 0.0)
        end(awaited, first.id, 8.0)
        awaited.began(second, 9.0, replica)
        assert awaited.lateness(9.0, 0.0) == 1.0


def test_a_new_process_is_not_slow() -> None:
    """What was learned of the old one is forgotten."""
    awaited = Awaited()
    awaited.note(sent(1, work=1_000.0), 1.0, 0.0)
    awaited.began(sent(1, work=1_000.0), 9.0, pace())
    assert (awaited.due, awaited.lateness(9.0, 0.0) > 2.0) == (-inf, True)
    awaited.clear()
    assert (awaited.due, awaited.lateness(9.0, 0.0)) == (inf, 1.0)


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
            awaited.note(left[number], float(value), 0.0)
        elif step == "gone":
            awaited.gone(value, at=4.0)
            left.pop(value, None)
        else:
            awaited.answered(value, at=4.0)
            if value in left:
                left = {key: ticket for key, ticket in left.items() if key > value}
        assert len(awaited) == len(left)
        assert awaited.work == pytest.approx(sum(each.work for each in left.values()))
        first = min(left, default=None)
        assert awaited.due == inf if first is None else awaited.due >= first + GRACE_S
        assert 1.0 <= awaited.lateness(100.0, inf) <= MOST
