"""Execution of suites: limits, results of interrupted suites, and the announcement."""

from __future__ import annotations

import asyncio
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from rich.console import Console

from bench import run
from bench.peers.environment import Environment
from bench.suites.context import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Suite = Callable[[Context], Awaitable[dict[str, Any]]]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a call that runs a suite named ``real`` and returns ``(failed, what is on disk)``."""

    async def call(suite: Suite, limit: float = 60.0) -> tuple[bool, dict[str, Any]]:
        monkeypatch.setitem(sys.modules, "bench.suites.real", SimpleNamespace(run=suite))
        monkeypatch.setitem(run.LIMITS, "real", (limit, limit))
        path = tmp_path / "results.json"
        results = orjson.loads(path.read_bytes()) if path.exists() else {"suites": {}}
        context = Context(full=False, environment=Environment(Path()), say=lambda _: None)
        failed = await run._suite("real", context, results, path)
        return failed, orjson.loads(path.read_bytes())["suites"]["real"]

    return call


async def test_a_suite_s_results_are_on_disk(measure: Any) -> None:
    """Results are stored with command, commit and form."""

    async def suite(_: Context) -> dict[str, Any]:
        return {"rows": [1, 2]}

    failed, found = await measure(suite)
    assert (failed, found["rows"]) == (False, [1, 2])
    assert found["command"] == "tidegate bench real --quick --seeds 1"
    assert {"commit", "date", "took_s"} <= found.keys()


async def test_a_suite_that_is_cut_keeps_what_it_saved(measure: Any) -> None:
    """An interrupted suite keeps its saved results with the reason; without any it has failed."""

    async def slow(context: Context) -> dict[str, Any]:
        context.save({"rows": [1]})
        await asyncio.Event().wait()
        raise AssertionError

    failed, found = await measure(slow, limit=0.01)
    assert (failed, found["rows"]) == (True, [1])
    assert found["stopped"].startswith("not done after")
    assert "failed" not in found

    async def broken(_: Context) -> dict[str, Any]:
        raise ValueError("no")

    failed, found = await measure(broken)
    assert (failed, found["failed"]) == (True, "ValueError: no")
    assert "rows" not in found


async def test_what_is_saved_is_on_disk_at_once(measure: Any, tmp_path: Path) -> None:
    """Saved results are on disk before the suite ends."""
    seen = []

    async def suite(context: Context) -> dict[str, Any]:
        context.save({"rows": [7]})
        seen.append(orjson.loads((tmp_path / "results.json").read_bytes()))
        return {"rows": [7, 8]}

    await measure(suite)
    assert seen[0]["suites"]["real"]["rows"] == [7]


def test_the_time_is_told_before() -> None:
    """The announcement contains the expected duration of each suite and the maximum."""
    text = StringIO()
    context = Context(full=False, environment=Environment(Path()), say=print)
    run._announce(("real", "control"), context, Console(file=text, width=200))
    assert text.getvalue().strip() == "about 1 minutes, 4 at most: real 1, control 1"
