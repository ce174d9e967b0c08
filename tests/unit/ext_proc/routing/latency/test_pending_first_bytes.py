"""Pending first bytes: the lateness of a replica that does not answer."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.latency.pending_first_bytes import GRACE_S, MOST, TOLERANCE, PendingFirstBytes
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Ticket


def sent(number: int, at: float = 0.0, work: float = 100.0) -> Ticket:
    """Return a request."""
    return Ticket(number, EndpointKey("a", 1), "llm", work, at)


def test_the_first_is_late_after_its_tolerance() -> None:
    """The factor is 1 within the tolerance, then grows with the time, up to the maximum."""
    first_bytes = PendingFirstBytes()
    first_bytes.note(sent(1, at=10.0), 2.0, 0.0)
    first_bytes.note(sent(2, at=11.0), 0.0, 0.0)
    begin = 10.0 + GRACE_S + TOLERANCE * 2.0
    assert first_bytes.due == begin
    assert first_bytes.lateness(begin, inf) == 1.0
    assert first_bytes.lateness(begin + 1.0, inf) == pytest.approx(2.5)
    assert first_bytes.lateness(begin + 1000.0, inf) == MOST


def test_a_log_that_lags_makes_no_replica_late() -> None:
    """Time counts only for a while after the latest request with a known first byte."""
    first_bytes = PendingFirstBytes()
    first_bytes.note(sent(1, at=10.0), 0.1, 0.0)
    assert first_bytes.lateness(13.0, 10.2) == 1.0
    assert first_bytes.lateness(13.0, 12.0) == pytest.approx(10.0)


def test_an_answer_removes_all_requests_sent_before_it() -> None:
    """A replica that answers works, so an older pending request is not its fault."""
    first_bytes = PendingFirstBytes()
    for number in (1, 2, 3):
        first_bytes.note(sent(number, at=float(number)), 1.0, 0.0)
    first_bytes.answered(2, at=4.0)
    assert (len(first_bytes), first_bytes.work) == (1, 100.0)
    assert first_bytes.due == 3.0 + GRACE_S + TOLERANCE
    first_bytes.answered(3, at=4.0)
    assert (len(first_bytes), first_bytes.work, first_bytes.due) == (0, 0.0, inf)


def test_prompts_whose_answers_began_are_done_until_they_end() -> None:
    """They delay no further prompt, but are in flight; an answer tells it of earlier ones, too."""
    first_bytes = PendingFirstBytes()
    for number in (1, 2, 3):
        first_bytes.note(sent(number), 1.0, 0.0)
    first_bytes.answered(2, at=4.0, done=True)
    assert (first_bytes.done, first_bytes.work) == (200.0, 100.0)
    first_bytes.ended(1)
    first_bytes.ended(1)
    assert first_bytes.done == 100.0
    first_bytes.ended(2)
    assert first_bytes.done == 0.0
    first_bytes.answered(3, at=5.0, done=True)
    first_bytes.clear()
    assert first_bytes.done == 0.0


@pytest.mark.parametrize("learned", [True, False])
def test_a_prompt_is_done_only_where_first_bytes_tell_speeds(learned: bool) -> None:
    """Headers may come before a prompt is read: their times are not taken for first bytes then."""
    first_bytes = PendingFirstBytes()
    request = sent(1)
    first_bytes.note(request, 1.0, 0.0)
    first_bytes.began(request, 1.0, latency_model(learned=learned), request.work)
    assert first_bytes.done == (100.0 if learned else 0.0)


def test_a_moved_request_removes_only_itself() -> None:
    """Requests sent before it are still pending."""
    first_bytes = PendingFirstBytes()
    for number in (1, 2, 3):
        first_bytes.note(sent(number), 1.0, 0.0)
    first_bytes.gone(2, at=4.0)
    assert len(first_bytes) == 2
    first_bytes.clear()
    assert (len(first_bytes), first_bytes.work, first_bytes.due) == (0, 0.0, inf)


def latency_model(*, learned: bool = True) -> LatencyModel:
    """Return the latency model of a replica with a learned speed of 1,000 tokens per second."""
    fleet = FleetLatencyModel(1_000.0)
    replica = LatencyModel(fleet, 1.0)
    for number in range(64 if learned else 0):
        tokens = 100.0 + 10.0 * number
        replica.answered(tokens, 0.0, tokens / 1_000.0)
    return replica


def factor_after(*answers: tuple[int, float], drain_s: float = 0.0, learned: bool = True) -> float:
    """Return the lateness after answers to some of three prompts of 1 s that were sent at once.

    Args:
        answers: Number of each answered prompt, and the time of its first byte.
        drain_s: Known seconds of work before each of them.
        learned: Whether the speed was learned from first bytes.
    """
    first_bytes = PendingFirstBytes()
    key = EndpointKey("a", 1)
    tickets = [
        Ticket(number, key, "llm", 1_000.0, 0.0, prompted=True, drain_s=drain_s)
        for number in range(3)
    ]
    for ticket in tickets:
        first_bytes.note(ticket, drain_s + 1.0, 0.0)
    for number, at in answers:
        model = latency_model(learned=learned)
        first_bytes.began(tickets[number], at, model, tickets[number].work)
    return first_bytes.lateness(answers[-1][1], 0.0)


def test_a_late_answer_slows_the_replica_down() -> None:
    """The factor is that of the late answer, also with nothing pending any more."""
    assert factor_after((0, 4.0)) == pytest.approx(3.4, rel=0.1)
    assert factor_after((0, 4.0), (1, 8.0), (2, 12.0)) == pytest.approx(3.8, rel=0.1)


def test_waiting_for_other_prompts_is_no_slowdown() -> None:
    """Waiting for pending prompts or for other known work does not count."""
    assert factor_after((0, 1.0), (1, 2.0), (2, 3.0)) == 1.0
    assert factor_after((0, 4.0), drain_s=3.0) == 1.0


def test_only_the_oldest_pending_request_counts() -> None:
    """A request that is reported before older ones may have waited for them."""
    assert factor_after((2, 9.0)) == 1.0
    assert factor_after((2, 9.0), (0, 4.0), (1, 8.0)) == 1.0


def test_without_a_learned_speed_no_replica_is_slow() -> None:
    """The expected time of a prompt is then unknown."""
    assert factor_after((0, 9.0), learned=False) == 1.0


def test_the_time_of_an_unreported_request_does_not_count_for_the_next() -> None:
    """A request that ended or was lost may have occupied the replica until then."""
    for end in (PendingFirstBytes.answered, PendingFirstBytes.gone):
        first_bytes, replica = PendingFirstBytes(), latency_model()
        first, second = sent(1, work=1_000.0), sent(2, work=1_000.0)
        for ticket in (first, second):
            first_bytes.note(ticket, 1.0, 0.0)
        end(first_bytes, first.id, 8.0)
        first_bytes.began(second, 9.0, replica, second.work)
        assert first_bytes.lateness(9.0, 0.0) == 1.0


def factor_with_coming(*took_s: float) -> float:
    """Return the lateness after prompts of 0.1 s, or 2.1 s with what others were computing."""
    first_bytes, model, now = PendingFirstBytes(), latency_model(), 0.0
    for number, seconds in enumerate(took_s):
        ticket = Ticket(number, EndpointKey("a", 1), "llm", 100.0, now, True, 0.0, coming=2_000.0)
        first_bytes.note(ticket, 2.1, 2.1)
        now += seconds
        first_bytes.began(ticket, now, model, ticket.work)
    return first_bytes.lateness(now, 0.0)


def test_a_prompt_that_came_before_its_prefix_was_computed_slows_no_replica() -> None:
    """The replica computed again what another prompt with the same prefix computes."""
    assert factor_with_coming(2.1, 2.1, 2.1) == 1.0


def test_a_replica_is_slow_if_it_would_be_with_the_whole_prefix_to_compute() -> None:
    """Prompts of unknown work are evidence beyond the most that they can need."""
    assert factor_with_coming(8.4) == pytest.approx(3.7, rel=0.1)


def test_a_prompt_that_found_its_prefix_shows_a_replica_that_is_fast_again() -> None:
    """Prompts of unknown work are evidence up to the least that they can need."""
    assert factor_with_coming(8.4, *[0.1] * 20) < factor_with_coming(8.4, *[2.1] * 20)


def test_a_new_process_is_not_slow() -> None:
    """Clearing drops the slowdown of the old process."""
    first_bytes = PendingFirstBytes()
    first_bytes.note(sent(1, work=1_000.0), 1.0, 0.0)
    first_bytes.began(sent(1, work=1_000.0), 9.0, latency_model(), 1_000.0)
    assert (first_bytes.due, first_bytes.lateness(9.0, 0.0) > 2.0) == (-inf, True)
    first_bytes.clear()
    assert (first_bytes.due, first_bytes.lateness(9.0, 0.0)) == (inf, 1.0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["note", "answered", "gone"]), st.integers(0, 30)), max_size=60
)


@given(steps=STEPS)
def test_it_holds_the_pending_requests(steps: list[tuple[str, int]]) -> None:
    """After any steps, work and due time are those of the remaining requests."""
    first_bytes, left, number = PendingFirstBytes(), dict[int, Ticket](), 0
    for step, value in steps:
        if step == "note":
            number += 1
            left[number] = sent(number, at=float(number), work=1.0 + value)
            first_bytes.note(left[number], float(value), 0.0)
        elif step == "gone":
            first_bytes.gone(value, at=4.0)
            left.pop(value, None)
        else:
            first_bytes.answered(value, at=4.0)
            if value in left:
                left = {key: ticket for key, ticket in left.items() if key > value}
        assert len(first_bytes) == len(left)
        assert first_bytes.work == pytest.approx(sum(each.work for each in left.values()))
        first = min(left, default=None)
        assert first_bytes.due == inf if first is None else first_bytes.due >= first + GRACE_S
        assert 1.0 <= first_bytes.lateness(100.0, inf) <= MOST
