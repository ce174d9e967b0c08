"""Choosing asks; only deciding changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.pipeline.decision import Decision
from ext_proc.routing.values.settings import SlowStart

if TYPE_CHECKING:
    from .conftest import Build


def test_asking_gives_the_decision_s_prices(build: Build) -> None:
    """An explanation just before a decision shows the prices that it has."""
    endpoints = (build.endpoint(0), build.endpoint(1), build.endpoint(2, draining=True))
    router = build.router(build.pool(endpoints=endpoints))
    for number in range(30):
        request = build.request(tuple(range(10 + number)))
        asked = router.explain(request, float(number), 0.0)["candidates"]
        decision = router.decide(request, float(number), 0.0)
        assert isinstance(decision, Decision)
        assert isinstance(asked, list)
        assert {each["id"]: each["price"] for each in asked} == dict(decision.scores)


def test_asking_throws_no_dice_of_the_router(build: Build) -> None:
    """Two routers of one seed decide alike although one of them was asked in between."""
    endpoints = tuple(build.endpoint(number, joined_unix_s=90.0 * number) for number in range(3))
    pool = build.pool(
        endpoints=endpoints, policy="weighted-random", slow_start=SlowStart(window_s=200.0)
    )
    asked, left_alone = build.router(pool), build.router(pool)
    for _ in range(40):
        asked.explain(build.request(), 0.0, 200.0)
        first = asked.decide(build.request(), 0.0, 200.0)
        second = left_alone.decide(build.request(), 0.0, 200.0)
        assert isinstance(first, Decision)
        assert isinstance(second, Decision)
        assert first.scores == second.scores
        assert first.changed(candidates=()) == second.changed(candidates=())
