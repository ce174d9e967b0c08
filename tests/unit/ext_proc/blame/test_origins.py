"""On whose behalf a request is sent."""

from __future__ import annotations

import pytest

from ext_proc.blame.origins import (
    ANONYMOUS,
    MAX_CHARS,
    MAX_TICKETS,
    UNKNOWN,
    SentRequests,
    client_number,
    identity,
    number_of,
)
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Ticket


def request(blocks: tuple[int, ...] = (), **features) -> Request:
    return Request("llm", None, "http", Features(Form.GENERATE, **features), blocks)


def ticket(number: int) -> Ticket:
    return Ticket(number, EndpointKey("a", 1), "llm", 10.0, 0.0)


def test_the_first_that_a_request_has_identifies_its_origin():
    """Session, sequence, last block of the prompt."""
    assert identity(request((1, 2), session="s", sequence_id=7)) == "s"
    assert identity(request((1, 2), model="m", sequence_id=7)) == ("m", "", 7)
    assert identity(request((1, 2))) == 2
    assert identity(request()) is None


def test_numbers_tell_origins_apart_and_are_the_same_everywhere():
    """Workers exchange them; the two reserved numbers are no origin's."""
    known = [identity(request(**each)) for each in ({"session": "7"}, {"sequence_id": 7})]
    known += [identity(request(**each)) for each in ({"sequence_id": "7"}, {"blocks": (7,)})]
    numbers = {number_of(each) for each in known}
    assert len(numbers) == 4
    assert not numbers & {UNKNOWN, ANONYMOUS}
    assert all(0 < number < 2**63 for number in numbers)
    assert number_of("s") == 1664346929200674435
    assert number_of(None) == ANONYMOUS


def test_a_long_session_is_cut_and_any_text_is_an_origin():
    """Clients choose the header, so it is bounded."""
    long = "s" * (MAX_CHARS + 1)
    assert identity(request(session=long)) == "s" * MAX_CHARS
    assert number_of("\ud800") > ANONYMOUS


def test_an_experiment_takes_the_place_of_the_origin():
    """Its results count for the experiment, not for who asked."""
    sent = SentRequests()
    sent.note(ticket(1), request(session="s"), ("experiment", "r0", True, True))
    sent.note(ticket(2), request(session="s"), None)
    assert sent.origin(1) == number_of(("experiment", "r0", True, True))
    assert sent.origin(2) == number_of("s")


def test_the_latest_tickets_are_kept():
    """At least half of the bound, and never more than it."""
    sent = SentRequests()
    for number in range(3 * MAX_TICKETS):
        sent.note(ticket(number), request(session=str(number)))
        assert len(sent) <= MAX_TICKETS
    last = 3 * MAX_TICKETS - 1
    assert sent.origin(last) == number_of(str(last))
    assert sent.origin(last - MAX_TICKETS // 2 + 1) == number_of(str(last - MAX_TICKETS // 2 + 1))
    assert sent.origin(0) == UNKNOWN
    assert sent.origin(None) == UNKNOWN


def test_a_client_is_kept_beside_the_origin():
    """Several sessions of one client are one client; unknown ones are one together."""
    sent = SentRequests()
    for number, client in enumerate(("a", "a", "b", None)):
        one = Request(
            "llm", None, "http", Features(Form.GENERATE, session=f"s{number}"), client=client
        )
        sent.note(ticket(number), one)
    numbers = [sent.client(number) for number in range(5)]
    assert numbers[0] == numbers[1] == client_number("a")
    assert numbers[2] == client_number("b") != numbers[0]
    assert numbers[3:] == [UNKNOWN, UNKNOWN]
    assert len({sent.origin(number) for number in range(4)}) == 4


@pytest.mark.parametrize("form", Form)
def test_tickets_are_kept_where_work_goes_on_without_the_caller(form):
    """Of unary KServe inferences; an engine stops streams and OpenAI's calls."""
    sent = SentRequests()
    sent.note(ticket(1), Request("llm", None, "http", Features(form)))
    goes_on = form in {Form.HTTP_INFER, Form.GENERATE, Form.GRPC_INFER}
    assert sent.goes_on(1) == (ticket(1) if goes_on else None)
    assert sent.goes_on(2) is None
