"""Verbs that tune a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run


def test_limits_are_sent_by_name(run: Run, admin: FakeAdmin) -> None:
    """Only named limits are set in the request; 0 is a value."""
    ran = run(
        "breaker", "llm", "max-requests=64", "per-endpoint=0", "retry-percent=12.5",
        *("--server", admin.address),
    )  # fmt: skip
    assert ran.code == 0
    (request,) = admin.requests
    assert {field.name for field, _ in request.ListFields()} == {
        "pool",
        "max_requests",
        "per_endpoint_in_flight",
        "retry_budget_percent",
        "options",
    }
    assert (request.max_requests, request.per_endpoint_in_flight) == (64, 0)
    assert request.retry_budget_percent == 12.5


def test_a_ramp_is_sent_in_seconds(run: Run, admin: FakeAdmin) -> None:
    """The window may have a unit and is sent in seconds."""
    run("slow-start", "llm", "window=500ms", "aggression=2", "min=5", "--server", admin.address)
    run("slow-start", "llm", "window=2m", "--server", admin.address)
    first, second = admin.requests
    assert (first.window, first.aggression, first.min_weight_percent) == (0.5, 2.0, 5.0)
    assert (second.window, second.HasField("aggression")) == (120.0, False)


def test_the_brake_is_a_percentage(run: Run, admin: FakeAdmin) -> None:
    """A percentage above 100 is a usage error."""
    assert run("shed", "llm", "12.5", "--server", admin.address).code == 0
    assert run("shed", "llm", "101", "--server", admin.address).code == 2
    (request,) = admin.requests
    assert (request.pool, request.percent) == ("llm", 12.5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("max-requests",), "NAME=N"),
        (("requests=5",), "max-requests"),
        (("max-requests=1", "max-requests=2"), "named twice"),
        (("max-requests=many",), "not a number"),
        (("max-requests=5s",), "not a number"),
        (("max-requests=1.5",), "whole number"),
        (("max-requests=4294967296",), "whole number"),
    ],
)
def test_what_is_no_limit_is_told(
    run: Run, admin: FakeAdmin, words: tuple[str, ...], message: str
) -> None:
    """An invalid setting is a usage error with the expected form; no request is sent."""
    ran = run("breaker", "llm", *words, "--server", admin.address)
    assert ran.code == 2
    assert message in ran.err
    assert not admin.requests
