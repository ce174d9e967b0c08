"""Prompts that come before the prefix that they share is computed, in the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.values.ticket import Outcome, Ticket
from support.routing import decide

if TYPE_CHECKING:
    from ext_proc.routing.router import Router

    from .conftest import Build

TOKENS = 64
"""Tokens of a block, by the default ``block_chars``."""


def sent(router: Router, build: Build, blocks: range, now: float, **changes: object) -> Ticket:
    """Decide a streamed prompt of whole blocks; return its ticket."""
    prompt = b"x" * (256 * len(blocks))
    features = {"streaming": True, "prompt": prompt, **changes}
    ticket = decide(router, build.request(tuple(blocks), **features), now).ticket
    assert ticket is not None
    return ticket


def began(router: Router, ticket: Ticket, seconds: float) -> None:
    """Report the first byte of an answer, as the proxy's log does."""
    router.confirmed(ticket.id, ticket.endpoint)
    router.learner.began(ticket.id, ticket.endpoint, seconds)


def taught(build: Build) -> Router:
    """Return a router of one replica that has learned 1,000 tokens per second from first bytes."""
    router = build.router(build.pool(1))
    for number in range(300):
        now, blocks = 10.0 * number, range(1_000 * number + 1, 1_000 * number + 20 + number % 40)
        ticket = sent(router, build, blocks, now)
        began(router, ticket, (ticket.work - ticket.coming) / 1_000.0)
        router.settle(ticket, Outcome.DONE, now + 5.0)
    return router


def test_a_step_before_the_first_token_of_the_step_before_has_a_prefix_that_is_coming(
    build: Build,
) -> None:
    """After that token the prefix is cached."""
    router = build.router(build.pool(1))
    first = sent(router, build, range(1, 11), 0.0)
    early = sent(router, build, range(1, 13), 0.1)
    assert (first.coming, early.work, early.coming) == (0.0, 2.0 * TOKENS, 10.0 * TOKENS)
    began(router, first, 0.2)
    began(router, early, 0.3)
    later = sent(router, build, range(1, 14), 1.0)
    assert (later.work, later.coming) == (1.0 * TOKENS, 0.0)


def test_no_speed_is_learned_from_a_prompt_of_unknown_work(build: Build) -> None:
    """Neither from its first byte nor from its end, which say the same of all its blocks."""
    router = taught(build)
    before = router.learner.describe("llm", 0.0)["pace"]
    now = 4_000.0
    first = sent(router, build, range(10_000_001, 10_000_101), now)
    early = sent(router, build, range(10_000_001, 10_000_102), now)
    began(router, early, 12.8)
    router.settle(early, Outcome.DONE, now + 14.0)
    assert router.learner.describe("llm", 0.0)["pace"] == before
    assert first.coming == 0.0


def test_an_answer_that_was_not_streamed_is_computed_at_its_end(build: Build) -> None:
    """Without first bytes the end of the request confirms its blocks."""
    router = build.router(build.pool(1))
    first = sent(router, build, range(1, 11), 0.0, streaming=False)
    assert sent(router, build, range(1, 11), 0.1, streaming=False).coming > 0.0
    router.settle(first, Outcome.DONE, 1.0)
    router.confirmed(first.id, first.endpoint)
    assert sent(router, build, range(1, 11), 1.1, streaming=False).coming == 0.0


def test_a_prompt_whose_answer_began_delays_no_other_while_it_runs(build: Build) -> None:
    """An answer may take long after its first token; when it has ended, nothing is left of it."""
    router = taught(build)
    now = 4_000.0
    (replica,) = router.registry.members.values()
    first = sent(router, build, range(10_000_001, 10_000_101), now)
    assert replica.drain_s(now, 0.001) > 6.0
    began(router, first, 0.1)  # a replica that has become fast
    assert replica.drain_s(now + 1.0, 0.001) == 0.0
    second = sent(router, build, range(20_000_001, 20_000_011), now + 1.0)
    assert 0.6 < replica.drain_s(now + 1.0, 0.001) < 0.7
    router.settle(first, Outcome.DONE, now + 2.0)
    router.settle(second, Outcome.DONE, now + 2.0)
    assert replica.first_bytes.done == 0.0
