"""Sampling: the candidates in a large pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.pipeline.sampling import HOLDERS, REMEMBERED, SAMPLE, SMALL
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.refusal import Refusal

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.request import Request

    from .conftest import Build


def decide(router: Router, request: Request, now: float = 0.0) -> Decision:
    decision = router.decide(request, now, 0.0)
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize(
    ("count", "most"), [(SMALL, SMALL), (SMALL + 100, HOLDERS + SAMPLE + REMEMBERED)]
)
def test_a_large_pool_is_sampled(build: Build, count: int, most: int) -> None:
    """All replicas of a small pool are candidates, of a large one a bounded number, each once."""
    router = build.router(build.pool(count))
    names = [name for name, _ in decide(router, build.request()).scores]
    assert len(set(names)) == len(names) <= most
    assert count > SMALL or len(names) == count


def test_the_holder_of_the_prompt_is_a_candidate(build: Build) -> None:
    """Each turn of a conversation finds its replica among hundreds."""
    router = build.router(build.pool(250))
    blocks = tuple(range(50))
    home = decide(router, build.request(blocks)).addresses[0]
    for turn in range(60):
        blocks = (*blocks, 1000 + turn)
        decision = decide(router, build.request(blocks), 10.0 * turn + 10.0)
        assert decision.addresses[0] == home
        assert decision.matched_blocks == len(blocks) - 1


def test_every_replica_is_drawn_in_time(build: Build) -> None:
    """Every position in the pool can be drawn."""
    router = build.router(build.pool(100))
    drawn = set()
    for _ in range(60):
        drawn |= {name for name, _ in decide(router, build.request()).scores}
    assert len(drawn) == 100


def test_a_sample_never_refuses(build: Build) -> None:
    """The only replica below its limit is found; with none the usual refusal is returned."""
    router = build.router(build.pool(80, per_endpoint_in_flight=1))
    assert len({decide(router, build.request()).addresses[0] for _ in range(80)}) == 80
    assert isinstance(router.decide(build.request(), 0.0, 0.0), Refusal)


def test_a_subset_is_not_sampled(build: Build) -> None:
    """The only replica that a hint allows is found among many."""
    router = build.router(build.pool(200))
    decision = decide(router, build.request(subset=frozenset({"10.0.0.77"})))
    assert decision.addresses == ("10.0.0.77:8000",)
