"""An idle fleet, in which one request follows another, tries its slower replicas again."""

from __future__ import annotations

import random

import pytest

from ext_proc.routing.latency.model import RETRY_S
from ext_proc.routing.values.ticket import Outcome

SLOWED_S, END_S = 240.0, 1_800.0
PAUSE_S = 1.0


def served(build, usual: float, slowed: float, seed: int) -> tuple[list[float], list[float]]:
    """Send prompts that no replica holds, one after the other, to two replicas.

    Args:
        build: Builders.
        usual: How many times as long as the second one the first replica needs.
        slowed: The same for its first ``SLOWED_S``.
        seed: Draws the prompts and the noise of the times.

    Returns:
        The times at which the first replica got a prompt, and its learned slowness after each
        prompt.
    """
    router = build.router(build.pool(2), seed=seed)
    rng = random.Random(seed)
    model = router.registry.members[build.endpoint(0).key].latency_models["llm"]
    now, swept, times, slowness = 0.0, 0, list[float](), list[float]()
    while now < END_S:
        blocks = tuple(rng.getrandbits(60) for _ in range(8))
        prompt = build.request(blocks, prompt=b"x" * 2_048, streaming=True)
        ticket = router.decide(prompt, now, now).ticket
        seconds = 0.02 + 0.1 * rng.lognormvariate(0.0, 0.2)
        if ticket.endpoint.id == "r0":
            times.append(now)
            seconds *= slowed if now < SLOWED_S else usual
        router.began(ticket.id, ticket.endpoint, seconds)
        now += seconds
        router.settle(ticket, Outcome.DONE, now)
        slowness.append(model.slowness)
        now += PAUSE_S
        while swept < now:
            router.registry.sweep(float(swept))
            swept += 1
    return times, slowness


@pytest.mark.parametrize("seed", range(2))
def test_a_replica_that_was_slow_gets_its_share_again(build, seed):
    """Its slowness fades by the requests with which it is tried."""
    times, slowness = served(build, 1.0, 1.8, seed)
    assert max(slowness) > slowness[-1] == 1.0
    kept_away = [each for each in times if SLOWED_S / 2 < each < SLOWED_S]
    assert len(kept_away) < 0.2 * SLOWED_S / 2 / PAUSE_S
    last = [each for each in times if each > END_S / 2]
    assert 0.4 < len(last) * (PAUSE_S + 0.12) / (END_S / 2) < 0.6


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_replica_is_tried_now_and_then(build, seed):
    """It is known to be slow all the same, and ever better by how much."""
    times, slowness = served(build, 2.0, 2.0, seed)
    last = [each for each in times if each > END_S / 2]
    assert 0.5 < len(last) * RETRY_S / (END_S / 2) < 1.2
    assert 1.5 < max(slowness) < 2.5
