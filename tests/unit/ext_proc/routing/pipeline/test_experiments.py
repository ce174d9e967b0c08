"""Which requests chance may send to a suspected replica, or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.blame.origins import number_of
from ext_proc.routing.health.experiment import DRAWN, identity
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Care
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.request import Request

    from .conftest import Build

BLOCKS = tuple(range(100, 140))


def made(build: Build, **changes) -> tuple[Router, Decision]:
    """Return a router that has sent a prompt to a replica, which then failed twice."""
    router = build.router(build.pool(4, **changes))
    first = router.decide(build.request(BLOCKS), 0.0, 0.0)
    router.confirmed(first.ticket.id, first.ticket.endpoint)
    for origin in (10, 11):
        router.conditions.bad("llm", first.ticket.endpoint, 0.0, answered=True, origin=origin)
    return router, first


def times_at(router: Router, request: Request, key: EndpointKey, count: int = 800) -> int:
    """Return how often a request is sent to a replica; each ends at once."""
    found = 0
    for _ in range(count):
        ticket = router.decide(request, 0.1, 0.0).ticket
        found += ticket.endpoint == key
        router.rejected(ticket.id)
        router.ledger.settle(ticket.id, Outcome.DONE)
    return found


def test_half_of_what_a_prompt_draws_to_a_suspect_goes_elsewhere(build: Build) -> None:
    """Then its failures tell whether it is at fault, or what was drawn to it."""
    router, first = made(build)
    suspect = first.ticket.endpoint
    decision = router.decide(build.request((*BLOCKS, 1)), 0.1, 0.0)
    gets_it = decision.ticket.endpoint == suspect
    part = number_of(identity(suspect, drawn=True, gets_it=gets_it))
    assert router.sent.origin(decision.ticket.id) == part
    assert times_at(router, build.request((*BLOCKS, 1)), suspect) == pytest.approx(
        800 * DRAWN, rel=0.15
    )


def test_a_suspect_gets_its_share_of_what_nothing_draws(build: Build) -> None:
    """One in four, and what it does not get has no fallback there."""
    router, first = made(build, fallbacks=2)
    suspect, elsewhere = first.ticket.endpoint, 0
    assert times_at(router, build.request(), suspect) == pytest.approx(200, rel=0.2)
    for _ in range(100):
        decision = router.decide(build.request(), 0.1, 0.0)
        assert len(decision.addresses) == (4 if decision.ticket.endpoint == suspect else 3)
        if decision.ticket.endpoint != suspect:
            elsewhere += 1
            assert first.addresses[0] not in decision.addresses
    assert elsewhere > 50


def test_what_is_drawn_to_another_replica_goes_there(build: Build) -> None:
    """It would be moved in vain."""
    router, first = made(build)
    other = next(
        k for k in (EndpointKey(f"r{n}", 1) for n in range(4)) if k != first.ticket.endpoint
    )
    router.conditions.good("llm", first.ticket.endpoint, 0.1, 0.1)
    for origin in (12, 13):
        router.conditions.bad("llm", other, 0.1, answered=True, origin=origin)
    assert times_at(router, build.request(BLOCKS), first.ticket.endpoint, 50) == 50


def test_what_cannot_be_moved_is_no_part_of_an_experiment(build: Build) -> None:
    """Sequences with a lease, and suspects of a death."""
    router = build.router(build.pool(4))
    sequence = build.request(sequence_id=7)
    home = router.decide(sequence, 0.0, 0.0).ticket.endpoint
    for origin in (10, 11):
        router.conditions.bad("llm", home, 0.0, answered=True, origin=origin)
    assert times_at(router, sequence, home, 50) == 50
    held = build.request().changed(care=Care(b"f", suspected=True))
    ticket = router.decide(held, 0.1, 0.0).ticket
    assert router.sent.origin(ticket.id) != number_of(
        identity(home, drawn=False, gets_it=ticket.endpoint == home)
    )


def test_a_hash_draws_to_its_replica(build: Build) -> None:
    """So a request of another key is not sent to the suspect."""
    router = build.router(build.pool(4, policy="consistent-hash"))
    asked = [build.request(session=f"s{n}") for n in range(40)]
    homes = [router.decide(each, 0.0, 0.0).ticket.endpoint for each in asked]
    for origin in (10, 11):
        router.conditions.bad("llm", homes[0], 0.0, answered=True, origin=origin)
    assert times_at(router, asked[0], homes[0], 400) == pytest.approx(200, rel=0.2)
    for each, home in zip(asked, homes, strict=True):
        if home != homes[0]:
            assert times_at(router, each, home, 5) == 5


def test_in_a_large_pool_a_suspect_gets_about_its_share(build: Build) -> None:
    """Whether the policy sees a sample or all."""
    for policy in ("auto", "least-in-flight"):
        router = build.router(build.pool(64, policy=policy))
        suspect = EndpointKey("r0", 1)
        for origin in (10, 11):
            router.conditions.bad("llm", suspect, 0.0, answered=True, origin=origin)
        assert 10 <= times_at(router, build.request(), suspect, 2000) <= 90, policy
