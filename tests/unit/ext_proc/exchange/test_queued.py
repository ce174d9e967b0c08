"""Exchanges whose request waits for a replica with room."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, BodySending, Exchange, IllegalEventError, Lost, Stopped
from ext_proc.exchange.machine import ASKED_MORE_S, DECIDED, OVER, QUEUED
from ext_proc.exchange.refusals import is_move
from ext_proc.routing.values.request import HIGH, LOW
from support.exchanges import PROMPT, generic, head, in_flight, run
from support.streams import llm, replicas, router
from tidegate_api.names import (
    AGAIN_HEADER,
    OBJECTIVE_HEADER,
    REQUEST_TIMEOUT_HEADER,
    TIMEOUT_HEADER,
    UNTIL_HEADER,
)

BUFFERED, DUPLEX = BodySending.BUFFERED, BodySending.DUPLEX


@pytest.fixture
def busy():
    """Return a router of one replica that is busy, and the exchange that keeps it so."""
    made = router(llm(endpoints=replicas(1), per_endpoint_in_flight=1, hold_s=4.0))
    first, _ = run(made, head(end_of_stream=True))
    return made, first


def queued(made, *events, now=1.0):
    """Feed events, the last of which lets the request wait; return the exchange and the wait."""
    exchange = Exchange(made)
    for event in events:
        actions = exchange.on(event, now, 1000.0)
    assert exchange.state is QUEUED
    (hold,) = actions
    return exchange, hold.ask_s


def freed(made, first, *, now=2.0):
    """End the request that keeps the replica busy, and let go what can go."""
    first.on(Lost(clean=True), now, 1000.0)
    return made.pump(now, 1000.0)


@pytest.mark.parametrize(
    "events",
    [
        [head(end_of_stream=True)],
        [head(request_body=BUFFERED), Body(PROMPT, True)],
        [head(request_body=DUPLEX), Body(PROMPT, True)],
    ],
    ids=["headers", "body", "duplex"],
)
def test_the_reply_comes_when_there_is_room(busy, events):
    """The proxy is asked once to wait, a second longer than the wait; the reply has the pick."""
    made, first = busy
    exchange, asked_s = queued(made, *events)
    duplex = events[0].request_body is DUPLEX
    assert asked_s is None if duplex else asked_s == 4.0 + ASKED_MORE_S
    calls = []
    exchange.when_released(lambda: calls.append(exchange.state))
    with pytest.raises(IllegalEventError):
        exchange.on(Body(b"x", True), 1.5, 1000.0)
    assert freed(made, first) == 1
    assert calls == [DECIDED]
    reply, *rest = exchange.released()
    assert reply.pick.decision.ticket.at == 2.0
    assert len(rest) == duplex
    assert exchange.released() == ()  # it keeps neither replies nor request
    assert in_flight(made) == 1
    exchange.on(Lost(clean=True), 3.0, 1000.0)
    assert in_flight(made) == 0


@pytest.mark.parametrize("end", [Lost(clean=True), Lost(clean=False), Stopped()])
def test_who_leaves_waits_no_longer(busy, end):
    """Nothing is charged for it."""
    made, first = busy
    exchange, _ = queued(made, head(end_of_stream=True))
    exchange.on(end, 1.5, 1000.0)
    assert (exchange.state, made.queue.count) == (OVER, 0)
    assert freed(made, first) == 0
    assert in_flight(made) == 0


def test_who_leaves_after_the_decision_is_settled(busy):
    """The decision is charged, although its reply was not taken."""
    made, first = busy
    exchange, _ = queued(made, head(end_of_stream=True))
    freed(made, first)
    assert in_flight(made) == 1
    exchange.on(Lost(clean=False), 2.5, 1000.0)
    assert in_flight(made) == 0


def test_nobody_overtakes(busy):
    """A request that comes when there is room again waits behind those before it."""
    made, first = busy
    earlier, _ = queued(made, head(end_of_stream=True))
    first.on(Lost(clean=True), 2.0, 1000.0)
    later, _ = queued(made, head(end_of_stream=True), now=2.0)
    assert made.pump(2.0, 1000.0) == 1
    assert (earlier.state, later.state) == (DECIDED, QUEUED)


@pytest.mark.parametrize(
    ("objective", "band"), [("batch", LOW), ("chat", HIGH), ("unknown", HIGH), (None, HIGH)]
)
def test_an_objective_says_the_band(objective, band):
    """Those with a negative priority are in the lower one; unknown ones have the priority 0."""
    low = frozenset({"batch"})
    made = router(
        llm(endpoints=replicas(1), per_endpoint_in_flight=1, hold_s=4.0, low_objectives=low)
    )
    run(made, head(end_of_stream=True))
    headers = {} if objective is None else {OBJECTIVE_HEADER: objective}
    queued(made, head(end_of_stream=True, headers=headers))
    (line,) = made.queue.lines.values()
    assert line.by_band[band] == 1


def test_a_wait_that_is_over_is_refused(busy):
    """After the longest wait, and with the deadline of the headers before."""
    made, _ = busy
    late, _ = queued(made, head(end_of_stream=True))
    hurried, _ = queued(made, head(end_of_stream=True, headers={TIMEOUT_HEADER: "1500"}))
    assert made.pump(2.6, 1000.0) == 1
    (refusal,) = hurried.released()
    assert (refusal.status, refusal.reason) == (504, "deadline-passed")
    assert made.pump(5.0, 1000.0) == 1
    (refusal,) = late.released()
    assert (refusal.status, refusal.reason) == (429, "saturated")


def test_a_deadline_passes_while_the_body_comes():
    """The request is refused, and charged to no replica."""
    made = router(llm())
    exchange = Exchange(made)
    exchange.on(head(request_body=BUFFERED, headers={TIMEOUT_HEADER: "500"}), 1.0, 1000.0)
    (refusal,) = exchange.on(Body(PROMPT, True), 1.5, 1000.0)
    assert (refusal.status, refusal.reason) == (504, "deadline-passed")
    assert in_flight(made) == 0


def test_the_rest_of_the_time_goes_on(busy):
    """Envoy and replica get what is left after the wait; without a wait grpc-timeout stays."""
    made, first = busy
    given = {TIMEOUT_HEADER: "3000", "grpc-timeout": "9S"}
    exchange, _ = queued(made, head(end_of_stream=True, headers=given))
    freed(made, first)
    (reply,) = exchange.released()
    rest = (TIMEOUT_HEADER, "2000"), (REQUEST_TIMEOUT_HEADER, "2000"), ("grpc-timeout", "2000m")
    until = (UNTIL_HEADER, "1003000")
    assert reply.pick.budget == (*rest, until)
    bounded = router(llm(request_s=1.0))
    _, reply = run(bounded, head(end_of_stream=True, headers=given))
    assert reply.pick.budget == (
        (TIMEOUT_HEADER, "3000"),
        (REQUEST_TIMEOUT_HEADER, "1000"),
        until,
    )
    stays = router(llm(hung_requests="wait"))
    _, reply = run(stays, head(end_of_stream=True, headers=given))
    assert UNTIL_HEADER not in dict(reply.pick.budget)


@pytest.mark.parametrize(
    ("told", "due_s"),
    [
        ("1.5", 1.5),
        ("2", 2.0),
        ("0", 4.0),
        ("-1", 4.0),
        ("nan", 4.0),
        ("1e1", 4.0),
        ("9" * 99, 4.0),
    ],
)
def test_a_client_library_may_tell_how_long_it_waits(told, due_s):
    """By the header that the pool names, in seconds from the headers; other values are not read."""
    made = router(
        llm(endpoints=replicas(1), per_endpoint_in_flight=1, hold_s=4.0, timeout_header="x-wait")
    )
    run(made, head(end_of_stream=True))
    queued(made, head(end_of_stream=True, headers={"x-wait": told}))
    assert made.queue.next_due == 1.0 + due_s
    assert made.queue.count == 1


def test_what_a_library_waits_no_longer_for_reaches_no_replica():
    """Nor does it end answers that have begun: Envoy gets no bound by it."""
    made = router(llm(timeout_header="x-wait"))
    late = Exchange(made)
    late.on(head(request_body=BUFFERED, headers={"x-wait": "0.5"}), 1.0, 1000.0)
    (refusal,) = late.on(Body(PROMPT, True), 1.5, 1000.0)
    assert (refusal.status, refusal.reason) == (504, "deadline-passed")
    _, reply = run(made, head(end_of_stream=True, headers={"x-wait": "5"}))
    assert reply.pick.budget == ()


def test_a_request_whose_time_is_over_leaves_no_hung_replica_for_another():
    """It is refused."""
    made = router(llm())
    exchange, _ = run(made, head(end_of_stream=True, headers={TIMEOUT_HEADER: "500"}))
    answer = exchange.leave(9.0, read_before=False, mute=False)
    assert (answer.status, answer.reason, is_move(answer)) == (504, "deadline-passed", False)


@pytest.mark.parametrize("again", [False, True])
def test_what_waited_leaves_a_hung_replica_at_most_once(busy, again):
    """A request that comes again waits like any other, and no third replica gets it."""
    made, first = busy
    sent = {AGAIN_HEADER: "1"} if again else {}
    exchange, _ = queued(made, head(request_body=BUFFERED, headers=sent), Body(PROMPT, True))
    assert exchange.leave(1.5, read_before=False, mute=True) is None
    freed(made, first)
    exchange.released()
    answer = exchange.leave(1.5, read_before=False, mute=True)
    assert is_move(answer) is not again
    assert exchange.leave(1.5, read_before=False, mute=True) is None
    exchange.on(Lost(clean=True), 3.0, 1000.0)
    assert made.ledger.outcomes == {"done": 1, "aborted": 1}


def test_behind_a_generic_proxy_nothing_waits(busy):
    """How long it waits for the picker is not known."""
    made, _ = busy
    _, refusal = run(made, generic(end_of_stream=True))
    assert (refusal.status, refusal.reason) == (429, "saturated")


def test_without_a_bound_nothing_waits():
    """By default a request for which no replica has room is refused at once."""
    made = router(llm(endpoints=replicas(1), per_endpoint_in_flight=1))
    run(made, head(end_of_stream=True))
    _, refusal = run(made, head(end_of_stream=True))
    assert (refusal.status, refusal.reason, made.queue.count) == (429, "saturated", 0)
