"""Failures in entries: which replicas they eject, and which prompts they make suspects."""

from __future__ import annotations

import pytest

from ext_proc.blame.evidence import Ended
from ext_proc.blame.origins import number_of
from ext_proc.feedback.fold import FOREIGN
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.request import Features, Form, Request
from support.log_entries import R1, R2, Traffic, address, entry, made


@pytest.mark.parametrize("sessions", [1, 100])
def test_a_sick_replica_is_ejected_after_a_few_errors(traffic, sessions):
    """However many sessions ask: chance sends their requests there or elsewhere."""
    failed = 0
    for turn in range(300):
        failed += traffic.asked(f"s{turn % sessions}", sick={1}) == 1
        if traffic.conditions(R1):
            break
    assert traffic.conditions(R1) == ["ejected", "dead-backend"]
    assert failed <= 12


@pytest.mark.parametrize("changes", [{"status": 500}, {"status": 503}, {"grpc_status": 13}])
def test_one_callers_errors_eject_no_replica(traffic, changes):
    """Two hundred errors of one session, while others are served well everywhere."""
    for turn in range(200):
        traffic.answered("bad", 1 + turn % 3, **changes)
        traffic.answered("good", 1 + turn % 3)
    assert not list(traffic.router.conditions.counts())


def test_a_request_repeated_without_a_session_ejects_no_replica(traffic):
    """Without session, sequence and prompt: it fails wherever it is sent, others do not."""
    for _ in range(50):
        traffic.asked(None, sick={1, 2, 3})
        for number in (1, 2, 3):
            traffic.answered("well", number)
    assert not list(traffic.router.conditions.counts())


def test_the_body_is_the_origin_of_a_request_that_names_nothing(traffic):
    """Where the picker has read it: a copy counts once."""
    request = Request("llm", None, "http", Features(Form.HTTP_INFER, model="m"), body=b"same")
    for _ in range(50):
        traffic.now += 0.2
        ticket = traffic.router.decide(request, traffic.now, 0.0).ticket
        assert traffic.feedback._origin(ticket.id) == number_of(("llm", "m", 4, b"same"))


def test_a_caller_is_sent_elsewhere_where_its_replica_answers_others(traffic):
    """Until its window ends; where the replica answers no one, chance decides instead."""
    for _ in range(3):
        traffic.answered("only", 1, status=500)
        traffic.answered("other", 1)
    features = Features(form=Form.GENERATE, model="m", session="only")
    for _ in range(20):
        decision = traffic.router.decide(Request("llm", None, "http", features), traffic.now, 0.0)
        assert decision.addresses[0] != address(1)
    assert traffic.conditions(R1) == []


def test_a_caller_that_fails_elsewhere_too_convicts_no_replica(traffic):
    """Its requests are at fault: neither its errors nor its later good answers count."""
    for number in (1, 1, 1, 2, 2, 2):
        traffic.answered("only", number, status=500)
    traffic.answered("only", 3)
    assert not list(traffic.router.conditions.counts())


def test_attempts_say_what_the_order_of_the_picks_cannot(traffic):
    """The first pick was dead, the second had room for one only, the third answered."""
    for session in ("a", "b", "c"):
        ticket = traffic.sent(session)
        traffic.attempted(ticket, 1, Ended.UNREACHED, read=False)
        traffic.attempted(ticket, 2, Ended.LOCAL, read=False)
        entered = entry(ticket=ticket, attempts=3, served=address(3))
        assert traffic.feedback.take(entered, 0.0) == "good"
    assert traffic.feedback.blamed == {
        ("llm", "network"): 3,
        ("llm", "us"): 3,
        ("llm", "none"): 3,
    }
    assert traffic.conditions(R1) == ["ejected"]


@pytest.mark.parametrize("answer", [{"status": 404}, {"status": 200, "grpc_status": 5}])
def test_a_404_where_the_model_should_be_has_the_replica_asked(traffic, answer):
    """Once, by the entry of the attempt or of the request; the replica is not blamed.

    No other is known to have the model, so the others are asked as well.
    """
    placement, asked = traffic.router.placement, []
    placement.on_look = asked.append
    placement.take(R1, Listing(-1.0, (Row("m", "1", PlacementState.READY),)))
    ticket = traffic.sent("a")
    placement.note(int(ticket.removeprefix("x-")), "m", None, traffic.now)
    traffic.attempted(ticket, 1, Ended.DONE, answered=True, **answer)
    traffic.feedback.take(entry(ticket=ticket, **answer), traffic.now)
    assert asked[0] == R1
    assert len(asked) == len(set(asked))
    assert traffic.conditions(R1) == []


def test_a_replica_that_cannot_be_reached_is_judged_at_once(traffic):
    """The request may run for a minute elsewhere before its final entry."""
    for session in ("a", "b", "c"):
        traffic.attempted(traffic.sent(session), 1, Ended.UNREACHED, read=False)
    assert traffic.conditions(R1) == ["ejected"]


def test_a_refused_start_of_a_sequence_leaves_the_lease_to_the_next_replica(traffic):
    """The second request of the sequence may come before the first one's final entry."""
    request = Request("llm", None, "http", Features(Form.GENERATE, model="m", sequence_id=5), ())
    first = traffic.router.decide(request, 0.0, 0.0)
    number = int(first.addresses[0].split(".")[3].partition(":")[0])
    assert first.addresses[0] == address(number)
    traffic.attempted(f"x-{first.ticket.id}", number, Ended.UNREACHED, read=False)
    assert traffic.router.decide(request, 0.0, 0.0).addresses == first.addresses[1:2]


def test_a_request_that_breaks_each_connection_is_blamed_itself(traffic):
    """Too large a header, for instance: no replica is ejected, from one client or many."""
    for turn in range(50):
        ticket = traffic.sent(f"s{turn}")
        traffic.attempted(ticket, 1)
        traffic.attempted(ticket, 2)
        ended = {"ended": Ended.BROKEN, "answered": False, "status": 503}
        entered = entry(ticket=ticket, attempts=2, served=address(2), **ended)
        assert traffic.feedback.take(entered, 0.0) == "broken"
    assert traffic.feedback.blamed == {("llm", "request"): 100}
    assert not list(traffic.router.conditions.counts())


def test_a_final_entry_and_its_attempt_count_once(traffic):
    """The last attempt, if it failed, writes both."""
    ticket = traffic.sent("s")
    traffic.attempted(ticket, 1, Ended.UNREACHED, read=False)
    ended = {"ended": Ended.UNREACHED, "answered": False, "status": 503}
    assert traffic.feedback.take(entry(ticket=ticket, **ended), 0.0) == "unreached"
    assert traffic.feedback.blamed == {("llm", "network"): 1}


def test_suspected_deaths_are_told_as_they_are_logged(traffic, monkeypatch):
    """Read, and broken off without an answer: by the attempt's entry, or else by the final one."""
    told = []
    monkeypatch.setattr(traffic.router.suspicion, "died", lambda *what: told.append(what[:2]))
    traffic.attempted("x-1", 1)
    traffic.attempted("x-1", 2, Ended.UNREACHED, read=False)
    traffic.attempted("x-1", 2, Ended.TRY_TIMEOUT)
    assert told == [(1, R1.id)]
    ended = {"ended": Ended.BROKEN, "answered": False, "status": 503}
    traffic.feedback.take(entry(ticket="x-2", served=address(2), **ended), 0.0)
    traffic.feedback.take(entry(ticket="x-3", ended=Ended.BROKEN), 0.0)
    assert told == [(1, R1.id), (2, R2.id)]
    traffic.attempted("x-4", 1)
    traffic.feedback.take(entry(ticket="x-4", **ended), 0.0)
    assert told == [(1, R1.id), (2, R2.id), (4, R1.id)], "once"


def test_the_prompt_is_confirmed_or_rejected(traffic, monkeypatch):
    """By the first byte of an answer below 400, or by the end without one."""
    told = []
    monkeypatch.setattr(traffic.router, "confirmed", lambda number, _: told.append(number))
    monkeypatch.setattr(traffic.router, "rejected", lambda number: told.append(-number))
    gone = {"ended": Ended.LEFT, "answered": False, "status": 0}
    for number, changes in enumerate(
        [{}, {"status": 400}, {"ended": Ended.LEFT}, gone, {"status": 500}, {"served": None}], 1
    ):
        traffic.feedback.take(entry(ticket=f"x-{number}", **changes), 0.0)
    early = {"final": False, "first_at_s": 1.4, "lasted_s": 2.0}
    traffic.feedback.take(entry(ticket="x-7", **early), 0.0)
    traffic.feedback.take(entry(ticket="x-8", status=404, **early), 0.0)
    assert told == [1, -2, 3, -4, -5, -6, 7]


def test_good_answers_of_suspects_are_told(traffic, monkeypatch):
    """Of no other request."""
    told = []
    suspicion = traffic.router.suspicion
    monkeypatch.setattr(suspicion, "answered", lambda *what: told.append(what[:2]))
    suspicion.open[2] = "llm", "m", b"body", None
    for number in (1, 2):
        traffic.feedback.take(entry(ticket=f"x-{number}"), 0.0)
    assert told == [(2, R1.id)]


def kept(traffic: Traffic, ticket: int) -> None:
    """Let the router keep a request's body, and a replica die with it."""
    traffic.router.suspicion.open[ticket] = "llm", "m", b"body", None
    traffic.attempted(f"x-{ticket}", 1)


def held(traffic: Traffic) -> int:
    return traffic.router.suspicion.deaths.suspects


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [
        ({}, 0),
        ({"status": 404}, 0),
        ({"ended": Ended.LEFT}, 0),
        ({"status": 500}, 1),
        ({"grpc_status": 13}, 1),
        ({"ended": Ended.TRY_TIMEOUT, "status": 504, "answered": False}, 1),
    ],
)
def test_an_answer_below_500_clears_a_suspect(traffic, changes, suspects):
    """The replica survived the request, whatever it thought of it."""
    kept(traffic, 1)
    assert held(traffic) == 1
    served = entry(ticket="x-1", served=address(2), attempts=2, **changes)
    traffic.feedback.take(served, 0.0)
    assert held(traffic) == suspects


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("answer_bytes", "suspects"), [(10, 0), (0, 1)])
def test_a_running_answer_clears_a_suspect(traffic, attempts, answer_bytes, suspects):
    """A long generation need not end for that."""
    kept(traffic, 1)
    early = {"final": False, "attempts": attempts, "answer_bytes": answer_bytes}
    traffic.feedback.take(entry(ticket="x-1", **early), 0.0)
    assert held(traffic) == suspects


def test_a_refused_connection_confirms_a_death(traffic):
    """Nothing listens where the connection broke."""
    kept(traffic, 1)
    deaths = traffic.router.suspicion.deaths
    assert [each[3] for each in deaths.kept()] == [False]
    traffic.attempted("x-2", 1, Ended.UNREACHED, read=False)
    assert [each[3] for each in deaths.kept()] == [True]


def test_a_request_that_its_caller_left_may_have_caused_a_death(traffic):
    """So the others on the replica are not the only ones that may have."""
    gone = {"ended": Ended.LEFT, "answered": False, "status": 0}
    traffic.feedback.take(entry(ticket="x-9", **gone), 0.0)
    kept(traffic, 1)
    assert [each[2] for each in traffic.router.suspicion.deaths.kept()] == [True]


@pytest.mark.parametrize("ticket", ["", "1", "X-1", "y-1", " x-1"])
def test_entries_that_do_not_carry_this_runs_tag_eject_no_replica(ticket):
    """A peer that reaches the port and knows picker and replicas cannot forge what happened."""
    router, feedback = made()
    for number in range(100):
        forged = entry(ticket=ticket, status=500, served=address(1), ended_unix_s=float(number))
        assert feedback.take(forged, float(number)) == FOREIGN
    assert not list(router.conditions.counts())
