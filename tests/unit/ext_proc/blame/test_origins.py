"""On whose behalf a request is sent."""

from __future__ import annotations

from ext_proc.blame.origins import (
    ANONYMOUS,
    MAX_CHARS,
    MAX_TICKETS,
    UNKNOWN,
    Origins,
    client_number,
    identity,
    number_of,
)
from ext_proc.routing.values.request import Features, Form, Request


def request(blocks: tuple[int, ...] = (), **features) -> Request:
    return Request("llm", None, "http", Features(Form.GENERATE, **features), blocks)


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
    origins = Origins()
    origins.note(1, request(session="s"), ("experiment", "r0", True, True))
    origins.note(2, request(session="s"), None)
    assert origins.of(1) == number_of(("experiment", "r0", True, True))
    assert origins.of(2) == number_of("s")


def test_the_latest_tickets_are_kept():
    """At least half of the bound, and never more than it."""
    origins = Origins()
    for ticket in range(3 * MAX_TICKETS):
        origins.note(ticket, request(session=str(ticket)))
        assert len(origins) <= MAX_TICKETS
    last = 3 * MAX_TICKETS - 1
    assert origins.of(last) == number_of(str(last))
    assert origins.of(last - MAX_TICKETS // 2 + 1) == number_of(str(last - MAX_TICKETS // 2 + 1))
    assert origins.of(0) == UNKNOWN
    assert origins.of(None) == UNKNOWN


def test_a_client_is_kept_beside_the_origin():
    """Several sessions of one client are one client; unknown ones are one together."""
    origins = Origins()
    for ticket, client in enumerate(("a", "a", "b", None)):
        one = Request(
            "llm", None, "http", Features(Form.GENERATE, session=f"s{ticket}"), client=client
        )
        origins.note(ticket, one)
    numbers = [origins.client(ticket) for ticket in range(5)]
    assert numbers[0] == numbers[1] == client_number("a")
    assert numbers[2] == client_number("b") != numbers[0]
    assert numbers[3:] == [UNKNOWN, UNKNOWN]
    assert len({origins.of(ticket) for ticket in range(4)}) == 4
