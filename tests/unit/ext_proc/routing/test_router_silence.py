"""A replica that turns slow gets no new requests, before and after its late answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.values.request import Form
from ext_proc.routing.values.ticket import Outcome
from support.routing import decide

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.ticket import Ticket

    from .conftest import Build

PROMPT = b"x" * 3_200
"""About 0.1 s of prefill."""


def send(router: Router, build: Build, now: float, prompt: bytes = PROMPT) -> Ticket:
    """Send a streamed request."""
    request = build.request(form=Form.GENERATE_STREAM, streaming=True, prompt=prompt)
    ticket = decide(router, request, now).ticket
    assert ticket is not None
    return ticket


def answer(router: Router, ticket: Ticket) -> None:
    """Report the first byte of an answer."""
    router.learner.began(ticket.id, ticket.endpoint, 0.1)


def one_silent(build: Build) -> tuple[Router, Ticket]:
    """Return a router of two replicas, and a request that one of them has not answered."""
    router = build.router(build.pool(2))
    silent, other = send(router, build, 0.0), send(router, build, 0.001)
    assert silent.endpoint != other.endpoint
    answer(router, other)
    return router, silent


def picks(router: Router, build: Build, count: int = 6) -> set[str]:
    """Return the replicas that get requests from second ten on; each request is answered."""
    found = set()
    for number in range(count):
        ticket = send(router, build, 10.0 + number)
        found.add(ticket.endpoint.id)
        answer(router, ticket)
    return found


def test_a_replica_that_does_not_answer_gets_no_more_requests(build: Build) -> None:
    """All requests go to the other replica, although it has more in flight."""
    router, silent = one_silent(build)
    assert silent.endpoint.id not in picks(router, build)


def test_an_answer_ends_it(build: Build) -> None:
    """After its first byte the replica is used again."""
    router, silent = one_silent(build)
    answer(router, silent)
    assert silent.endpoint.id in picks(router, build)


def test_the_end_of_the_request_ends_it(build: Build) -> None:
    """A request that ended, with any outcome, is no longer pending its first byte."""
    for outcome in (Outcome.DONE, Outcome.ABORTED):
        router, silent = one_silent(build)
        router.settle(silent, outcome, 5.0)
        assert silent.endpoint.id in picks(router, build)


def test_a_moved_request_is_not_pending_at_its_pick(build: Build) -> None:
    """A replica that did not serve the request owes no first byte."""
    router, silent = one_silent(build)
    other = "10.0.0.1:8000" if silent.endpoint.id == "r0" else "10.0.0.0:8000"
    moved = router.served(silent, other, 1.0)
    assert moved.endpoint != silent.endpoint
    assert silent.endpoint.id in picks(router, build)


def test_a_restart_ends_it(build: Build) -> None:
    """A restarted replica has no pending first bytes."""
    router, silent = one_silent(build)
    router.registry.restarted(silent.endpoint.id, 5.0)
    assert silent.endpoint.id in picks(router, build)


def serve(router: Router, build: Build, slow: str | None, times: range) -> list[str]:
    """Return the replica picked in each second; ``slow`` takes 3 s, the log lags by one second."""
    picked = []
    log: list[tuple[float, Ticket, float]] = []
    for now in times:
        for due in [entry for entry in log if entry[0] <= now]:
            log.remove(due)
            _, ticket, seconds = due
            router.learner.began(ticket.id, ticket.endpoint, seconds)
            router.settle(ticket, Outcome.DONE, float(now))
        ticket = send(router, build, float(now))
        seconds = 3.0 if ticket.endpoint.id == slow else 0.1
        log.append((now + seconds + 1.0, ticket, seconds))
        picked.append(ticket.endpoint.id)
    return picked


def test_a_replica_that_answered_late_gets_few_requests_afterwards(build: Build) -> None:
    """A slow replica is avoided even with nothing pending, and is tried again after a while."""
    router = build.router(build.pool(2))
    assert serve(router, build, None, range(60)).count("r0") > 20
    assert serve(router, build, "r0", range(100, 130)).count("r0") <= 3
    assert serve(router, build, None, range(300, 360)).count("r0") > 20


def test_the_state_shows_the_slowdown(build: Build) -> None:
    """The state shows by what factor a replica has become slower."""
    router = build.router(build.pool(2))
    serve(router, build, None, range(60))
    serve(router, build, "r0", range(100, 130))
    endpoints = router.state(130.0)["pools"]["llm"]["endpoints"]  # type: ignore[index]  # JSON
    assert endpoints["r0"]["slowed"] > 2.0
    assert endpoints["r1"]["slowed"] == 1.0


def slowed(router: Router, now: float) -> list[float]:
    """Return by what factor each replica has become slower, by the state."""
    endpoints = router.state(now)["pools"]["llm"]["endpoints"]  # type: ignore[index]  # JSON
    return [each["slowed"] for each in endpoints.values()]


def test_prompts_that_outlast_a_new_scale_of_text_slow_no_replica(build: Build) -> None:
    """Their tokens are those of the scale in force when they were sent."""
    router = build.router(build.pool(1))
    tickets = []
    for number in range(64):
        tickets.append(send(router, build, 30.0 * number, b"x" * (3_200 + 1_600 * (number % 8))))
        if number < 60:
            router.learner.began(tickets[-1].id, tickets[-1].endpoint, tickets[-1].work / 500)
    router.learner.rescale("llm", 16.0, tickets[-1].id)
    for ticket in tickets[60:]:
        router.learner.began(ticket.id, ticket.endpoint, ticket.work / 500)
    assert slowed(router, 1900.0) == [1.0]


def test_an_engine_slower_than_the_default_is_not_slow(build: Build) -> None:
    """Text may have a sixteenth of the usual bytes per token, which is learned within seconds."""
    router = build.router(build.pool(2))
    for number in range(40):
        ticket = send(router, build, 30.0 * number, b"x" * (3_200 + 16_000 * (number // 9)))
        router.learner.began(ticket.id, ticket.endpoint, ticket.work / 500)
        assert slowed(router, 30.0 * number + 20.0) == [1.0, 1.0]
