"""A replica that joins cold: a minimum share, a ramp, uncached prompts, and no stampede."""

from __future__ import annotations

import random
from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.pipeline.slow_start import factor
from ext_proc.routing.values.settings import SlowStart
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from ext_proc.routing.router import Router

    from .conftest import Build

JOINED = 1_000.0
POLICIES = ("auto", "learned", "prefix-affinity", "least-in-flight", "p2c", "round-robin")


def joined(build: Build, warm: int, ramp: SlowStart, policy: str) -> Router:
    """Return a router of warm replicas and a last one that joined at ``JOINED``."""
    endpoints = [build.endpoint(number) for number in range(warm)]
    endpoints.append(build.endpoint(warm, joined_unix_s=JOINED))
    return build.router(build.pool(endpoints=tuple(endpoints), policy=policy, slow_start=ramp))


def serve(router: Router, build: Build, count: int, age: float, known: int = 0) -> Counter[str]:
    """Serve ``count`` prompts, four at a time, and count them by replica.

    With ``known`` they are drawn from that many repeated prompts; otherwise all are new.
    """
    rng, found, running = random.Random(5), Counter[str](), []
    for number in range(count):
        start = 1_000 * (rng.randrange(known) if known else number + 10_000)
        blocks = tuple(range(start, start + 8))
        now = age + number * 1e-3
        decision = router.decide(build.request(blocks), now, JOINED + age)
        assert isinstance(decision, Decision)
        assert decision.ticket is not None
        found[decision.ticket.endpoint.id] += 1
        running.append(decision.ticket)
        if len(running) > 4:
            router.settle(running.pop(rng.randrange(len(running))), Outcome.DONE, now)
    for ticket in running:
        router.settle(ticket, Outcome.DONE, now)
    return found


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=5)
@given(
    age=st.floats(0, 29),
    aggression=st.sampled_from([0.5, 1.0, 2.0]),
    least=st.sampled_from([0.05, 0.1, 0.3]),
    warm=st.integers(2, 7),
)
def test_it_gets_its_floor_and_never_more_than_its_ramp(
    build: Build, policy: str, age: float, aggression: float, least: float, warm: int
) -> None:
    """Its share of new prompts is ``f / (f + warm)``, within chance, under every kind of policy."""
    ramp = SlowStart(30.0, aggression, least)
    router = joined(build, warm, ramp, policy)
    count = 600
    got = serve(router, build, count, age)[f"r{warm}"]
    risen = factor(ramp, JOINED, JOINED + age)
    share = risen / (risen + warm)
    assert got <= count * share + 4 * sqrt(count * share) + 1
    assert got >= 0.4 * count * share - 4 * sqrt(count * share)


@pytest.mark.parametrize("policy", ["auto", "prefix-affinity"])
def test_what_others_hold_stays_there(build: Build, policy: str) -> None:
    """It attracts uncached prompts; a conversation does not move because of a ramp."""
    router = joined(build, 3, SlowStart(30.0, 1.0, 0.1), policy)
    for number in range(20):
        blocks = tuple(range(1_000 * number, 1_000 * number + 8))
        decision = router.decide(
            build.request(blocks, subset=frozenset({f"10.0.0.{number % 3}"})), 0.0, JOINED
        )
        assert isinstance(decision, Decision)
        assert decision.ticket is not None
        router.settle(decision.ticket, Outcome.DONE, 0.0)
    found = serve(router, build, 300, 5.0, known=20)
    assert found["r3"] <= 6
