"""The order that prices give, the work of a request, and explanations that change no state."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.pipeline.scheduler import Decision, cheapest
from ext_proc.routing.values.settings import SlowStart

if TYPE_CHECKING:
    from .conftest import Build


def test_the_cheapest_come_in_order() -> None:
    """It returns the lowest prices first, at most as many as requested and as there are."""
    rng = random.Random(0)
    assert cheapest([3.0, 1.0, 2.0], 2, rng) == [1, 2]
    assert cheapest([3.0, 1.0], 5, rng) == [1, 0]


def test_equal_prices_are_drawn_at_random() -> None:
    """No position in the list is favoured."""
    rng = random.Random(0)
    picks = Counter(cheapest([1.0, 1.0, 2.0, 1.0], 1, rng)[0] for _ in range(3_000))
    assert set(picks) == {0, 1, 3}
    assert max(picks.values()) / min(picks.values()) < 1.15


@pytest.mark.parametrize(
    ("prompt", "blocks", "matched", "tokens"),
    [
        (None, 0, 0, 1.0),
        (b"x" * 400, 0, 0, 100.0),
        (b"x" * 600, 2, 1, 86.0),
        (None, 2, 0, 128.0),
        (b"x" * 512, 2, 2, 1.0),
    ],
)
def test_work_is_the_uncached_part(
    build: Build, prompt: bytes | None, blocks: int, matched: int, tokens: float
) -> None:
    """Four characters are a token, cached tokens are free, and the minimum is 1."""
    request = build.request(tuple(range(blocks)), prompt=prompt)
    router = build.router(build.pool(1))
    if matched:
        router.decide(build.request(tuple(range(matched))), 0.0, 0.0)
    decision = router.decide(request, 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert decision.ticket is not None
    assert decision.ticket.work == tokens


@pytest.mark.parametrize(("count", "matched", "tokens"), [(100, 0, 100.0), (100, 2, 68.0)])
def test_known_tokens_are_no_estimates(build: Build, count: int, matched: int, tokens: int) -> None:
    """If token ids are known, prompt and blocks are counted by them."""
    known = build.request(tuple(range(4)), prompt=b"x" * 9000).changed(
        block_tokens=16.0, tokens=count
    )
    router = build.router(build.pool(1))
    if matched:
        router.decide(build.request(tuple(range(matched))), 0.0, 0.0)
    decision = router.decide(known, 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert decision.ticket is not None
    assert decision.ticket.work == tokens


def test_an_explanation_gives_the_decision_s_prices(build: Build) -> None:
    """An explanation just before a decision shows the same prices."""
    endpoints = (build.endpoint(0), build.endpoint(1), build.endpoint(2, draining=True))
    router = build.router(build.pool(endpoints=endpoints))
    for number in range(30):
        request = build.request(tuple(range(10 + number)))
        explained = router.explain(request, float(number), 0.0)["candidates"]
        decision = router.decide(request, float(number), 0.0)
        assert isinstance(decision, Decision)
        assert isinstance(explained, list)
        assert {each["id"]: each["price"] for each in explained} == dict(decision.scores)


def test_an_explanation_does_not_advance_the_rng(build: Build) -> None:
    """Two routers with one seed decide alike although one of them explains in between."""
    endpoints = tuple(build.endpoint(number, joined_unix_s=90.0 * number) for number in range(3))
    pool = build.pool(
        endpoints=endpoints, policy="weighted-random", slow_start=SlowStart(window_s=200.0)
    )
    explaining, other = build.router(pool), build.router(pool)
    for _ in range(40):
        explaining.explain(build.request(), 0.0, 200.0)
        first = explaining.decide(build.request(), 0.0, 200.0)
        second = other.decide(build.request(), 0.0, 200.0)
        assert isinstance(first, Decision)
        assert isinstance(second, Decision)
        assert first.scores == second.scores
        assert first.changed(candidates=()) == second.changed(candidates=())
