"""The scheduler changes no state; only a decision does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.settings import SlowStart

if TYPE_CHECKING:
    from .conftest import Build


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
