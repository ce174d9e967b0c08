"""Stored results are found by their key only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.simulate.measure import METRICS, RunMetrics
from bench.simulate.scenario import Scenario
from bench.simulate.suite.plan import TrafficSource
from bench.simulate.suite.store import Store, digest, key, router_digest, simulator_digest

NUMBERS = RunMetrics(**dict.fromkeys(METRICS, 0.5))
TRAFFIC = TrafficSource("sessions", 50)


def test_what_is_kept_is_found_by_the_next_one(tmp_path: Path) -> None:
    """Numbers of a run and plain numbers survive in the file."""
    store = Store(tmp_path / "new" / "cells.jsonl")
    store.keep("a", NUMBERS)
    store.keep("b", 2.5)
    again = Store(tmp_path / "new" / "cells.jsonl")
    assert (again.metrics("a"), again.number("b"), len(again)) == (NUMBERS, 2.5, 2)
    assert (again.metrics("b"), again.number("a"), again.metrics("c")) == (None, None, None)


def test_a_line_that_was_cut_costs_only_itself(tmp_path: Path) -> None:
    """A truncated line is skipped and does not affect the next one."""
    path = tmp_path / "cells.jsonl"
    store = Store(path)
    store.keep("a", 1.0)
    with path.open("ab") as file:
        file.write(b'{"key": "b", "val')
    Store(path).keep("c", 3.0)
    again = Store(path)
    assert (again.number("a"), again.number("b"), again.number("c")) == (1.0, None, 3.0)


def test_numbers_of_another_version_are_not_read(tmp_path: Path) -> None:
    """A cell without a current metric is run again."""
    path = tmp_path / "cells.jsonl"
    path.write_text('{"key": "a", "value": {"ttft_mean": 1.0}}\n[]\n')
    assert Store(path).metrics("a") is None


def test_whatever_makes_a_run_makes_its_key() -> None:
    """Each of code, traffic, data, fleet, policy, seed and rate changes the key."""
    plain = key("c", TRAFFIC, "", Scenario(), policy="auto", seed=1, rate=2.0)
    others = [
        key("d", TRAFFIC, "", Scenario(), policy="auto", seed=1, rate=2.0),
        key("c", replace(TRAFFIC, requests=51), "", Scenario(), policy="auto", seed=1, rate=2.0),
        key("c", TRAFFIC, "x", Scenario(), policy="auto", seed=1, rate=2.0),
        key("c", TRAFFIC, "", Scenario(pickers=2), policy="auto", seed=1, rate=2.0),
        key("c", TRAFFIC, "", Scenario(), policy="probe", seed=1, rate=2.0),
        key("c", TRAFFIC, "", Scenario(), policy="auto", seed=2, rate=2.0),
        key("c", TRAFFIC, "", Scenario(), policy="auto", seed=1, rate=2.1),
    ]
    assert len({plain, *others}) == 8
    assert plain == key("c", TRAFFIC, "", Scenario(), policy="auto", seed=1, rate=2.0)


def test_changed_code_has_another_digest(tmp_path: Path) -> None:
    """The digest covers contents and names; router and simulator have separate digests."""
    path = tmp_path / "a.py"
    path.write_text("x = 1")
    before = digest([path])
    path.write_text("x = 2")
    assert digest([path]) != before
    assert simulator_digest() != router_digest()
