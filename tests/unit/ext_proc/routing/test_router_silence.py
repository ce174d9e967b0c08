"""A replica that turns slow is left alone, before and after it has answered."""

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
"""Some 0.1 s of prefill."""


def ask(router: Router, build: Build, now: float) -> Ticket:
    """Send a streamed request."""
    asked = build.request(form=Form.GENERATE_STREAM, streaming=True, prompt=PROMPT)
    ticket = decide(router, asked, now).ticket
    assert ticket is not None
    return ticket


def hear(router: Router, ticket: Ticket) -> None:
    """Let the log tell that an answer began."""
    router.learner.began(ticket.id, ticket.endpoint, 0.1)


def one_silent(build: Build) -> tuple[Router, Ticket]:
    """Return a router of two replicas, and a request that one did not answer in ten seconds."""
    router = build.router(build.pool(2))
    silent, other = ask(router, build, 0.0), ask(router, build, 0.001)
    assert silent.endpoint != other.endpoint
    hear(router, other)
    return router, silent


def picks(router: Router, build: Build, count: int = 6) -> set[str]:
    """Return who gets requests from second ten on; each is answered."""
    found = set()
    for number in range(count):
        ticket = ask(router, build, 10.0 + number)
        found.add(ticket.endpoint.id)
        hear(router, ticket)
    return found


def test_who_does_not_answer_gets_nothing_more(build: Build) -> None:
    """All requests go to the other one, though it has more of them."""
    router, silent = one_silent(build)
    assert silent.endpoint.id not in picks(router, build)


def test_an_answer_ends_it(build: Build) -> None:
    """Once it is heard of, the replica is used again."""
    router, silent = one_silent(build)
    hear(router, silent)
    assert silent.endpoint.id in picks(router, build)


def test_the_end_of_the_request_ends_it(build: Build) -> None:
    """A request that ended is not unanswered, whatever the log tells, and however it ended."""
    for outcome in (Outcome.DONE, Outcome.ABORTED):
        router, silent = one_silent(build)
        router.settle(silent, outcome, 5.0)
        assert silent.endpoint.id in picks(router, build)


def test_a_request_that_moved_says_nothing_of_its_pick(build: Build) -> None:
    """Who did not serve it does not owe an answer."""
    router, silent = one_silent(build)
    other = "10.0.0.1:8000" if silent.endpoint.id == "r0" else "10.0.0.0:8000"
    moved = router.served(silent, other, 1.0)
    assert moved.endpoint != silent.endpoint
    assert silent.endpoint.id in picks(router, build)


def test_a_restart_ends_it(build: Build) -> None:
    """A new process owes nothing."""
    router, silent = one_silent(build)
    router.registry.restarted(silent.endpoint.id, 5.0)
    assert silent.endpoint.id in picks(router, build)


def serve(router: Router, build: Build, slow: str | None, times: range) -> list[str]:
    """Return who got a request each second; one replica takes 3 s, and the log lags by one."""
    picked = []
    log: list[tuple[float, Ticket, float]] = []
    for now in times:
        for told in [entry for entry in log if entry[0] <= now]:
            log.remove(told)
            _, ticket, seconds = told
            router.learner.began(ticket.id, ticket.endpoint, seconds)
            router.settle(ticket, Outcome.DONE, float(now))
        ticket = ask(router, build, float(now))
        seconds = 3.0 if ticket.endpoint.id == slow else 0.1
        log.append((now + seconds + 1.0, ticket, seconds))
        picked.append(ticket.endpoint.id)
    return picked


def test_who_answered_late_is_left_alone_afterwards(build: Build) -> None:
    """Also when all it had is answered and nothing is late any more; it is tried again in time."""
    router = build.router(build.pool(2))
    assert serve(router, build, None, range(60)).count("r0") > 20
    assert serve(router, build, "r0", range(100, 130)).count("r0") <= 3
    assert serve(router, build, None, range(300, 360)).count("r0") > 20


def test_what_is_known_is_shown(build: Build) -> None:
    """The state says how many times slower a replica has become."""
    router = build.router(build.pool(2))
    serve(router, build, None, range(60))
    serve(router, build, "r0", range(100, 130))
    endpoints = router.state(130.0)["pools"]["llm"]["endpoints"]  # type: ignore[index]  # JSON
    assert endpoints["r0"]["slowed"] > 2.0
    assert endpoints["r1"]["slowed"] == 1.0
