"""How long the proxy waits for a replica's first sign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.routing.values.request import Form
from support.routing import decide

if TYPE_CHECKING:
    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.router import Router

    from .conftest import Build

LEAST_S, MOST_S = 15.0, 120.0


def taught(build: Build, first_byte_s: float | None, **changes: Any) -> Router:
    """Return a router of one replica whose first bytes take so long."""
    router = build.router(build.pool(1, **changes))
    for number in range(64):
        now = 1000.0 * number
        made = asked(router, build, now=now)
        assert made.ticket is not None
        if first_byte_s is not None:
            router.learner.began(made.ticket.id, made.ticket.endpoint, first_byte_s)
            router.learner.answered("llm", made.ticket.endpoint, first_byte_s, None, now)
    return router


def asked(router: Router, build: Build, now: float = 64_000.0, **changes: Any) -> Decision:
    """Decide a streamed request with a prompt of 100 tokens."""
    features = {"streaming": True, "prompt": b"x" * 400, **changes}
    return decide(router, build.request(**features), now)


def test_a_streamed_answer_has_the_least_bound(build: Build) -> None:
    """Where replicas are fast, five times what is expected is below the least."""
    router = taught(build, 0.05)
    assert asked(router, build, now=63_001.0).first_answer_s == LEAST_S


def test_slow_replicas_have_more_time(build: Build) -> None:
    """Five times the recent peak, in steps of 1.5 above the least."""
    router = taught(build, 7.0)
    assert asked(router, build, now=63_001.0).first_answer_s == pytest.approx(LEAST_S * 1.5**3)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"streaming": False}, {}),
        ({"form": Form.GRPC_STREAM}, {}),
        ({}, {"first_answer_least_s": 0.0}),
        ({}, {"first_answer_s": 0.0}),
        ({}, {"first_answer_s": LEAST_S}),
    ],
    ids=["not streamed", "gRPC stream", "off", "no bound", "bound below the least"],
)
def test_nothing_is_shortened_where_the_wait_says_nothing(
    build: Build, changes: dict[str, Any], settings: dict[str, float]
) -> None:
    """The route's own bound is in force."""
    router = taught(build, 0.05, **settings)
    assert asked(router, build, now=63_001.0, **changes).first_answer_s is None


def test_nothing_is_shortened_before_something_is_known(build: Build) -> None:
    """The cold defaults are guesses."""
    assert asked(taught(build, None), build).first_answer_s is None


def test_a_bound_above_the_routes_is_the_routes(build: Build) -> None:
    """A longer one would only be longer than the operator allows."""
    assert asked(taught(build, 40.0), build, now=63_001.0).first_answer_s is None


def test_a_prompt_has_time_for_a_prefix_that_is_still_computed(build: Build) -> None:
    """The replica may have to compute it once more."""
    bounds = []
    for computed in (True, False):
        router = taught(build, 7.0, first_answer_s=1_000.0)
        prompt = {"prompt": b"x" * 256_000, "blocks": tuple(range(1, 1_001))}
        first = asked(router, build, now=63_001.0, **prompt)
        assert first.ticket is not None
        if computed:
            router.confirmed(first.ticket.id, first.ticket.endpoint)
        bounds.append(asked(router, build, now=63_001.0, **prompt).first_answer_s)
    known, unknown = bounds
    assert known is not None
    assert unknown is not None
    assert known < unknown
