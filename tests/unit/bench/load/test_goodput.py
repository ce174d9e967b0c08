"""Answers in time under overload: what a run sets, and the table of its results."""

from __future__ import annotations

import pytest

from bench.load.goodput import DEFAULTS, OFF, Cell, fleet_of, jobs_of, table


def row(setting: str, goodput: float) -> dict[str, object]:
    """Return the result of a run."""
    key = {"engine": "observed", "traffic": "plain", "load": 2.0, "setting": setting}
    return {**key, "goodput": goodput, "refused": 0.25, "held": 0.5}


@pytest.mark.parametrize(
    ("setting", "routing", "breaker"),
    [
        (DEFAULTS, None, None),
        (OFF, {"limit": "none", "max_wait": 0}, None),
        ("3", None, {"per_endpoint_in_flight": 3}),
    ],
)
def test_a_run_sets_its_limit_and_nothing_else(setting, routing, breaker):
    """The defaults are those of a pool without settings."""
    pool = {"match": {}, "routing": {"policy": "x"}, "circuit_breaker": {}, "endpoints": []}
    fleet_of(Cell("declared", "plain", 1.0, setting))({"pools": [pool]})
    assert (pool.get("routing"), pool.get("circuit_breaker")) == (routing, breaker)


def test_the_defaults_are_compared_with_the_best_fixed_limit():
    """Not with no limit, which may be better or worse."""
    found = table([row("2", 8.0), row("3", 10.0), row(OFF, 20.0), row(DEFAULTS, 9.0)], ["2", "3"])
    cells = found.splitlines()[-1].strip("| ").split(" | ")
    assert cells == ["observed, plain", "2", "8.0", "10.0", "20.0", "9.0", "0.90", "25.0%", "50.0%"]


def test_plain_requests_take_half_a_second():
    """On engines of 50 tokens a second: 3 engines of 2 slots sustain 12 requests a second."""
    lengths = [job.output_tokens for job in jobs_of("plain").jobs]
    assert sum(lengths) / len(lengths) / 50.0 == pytest.approx(0.5, rel=0.05)
