"""Plans, results and clients of the load process, with a test server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from bench.load.client import LoadClient
from bench.load.plan import LoadPlan, Results, read_plan, read_results, write_plan, write_results

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Handler = Callable[[asyncio.StreamWriter, int], Awaitable[None]]

REQUEST = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone"


@asynccontextmanager
async def server(handle: Handler) -> AsyncIterator[str]:
    """Serve requests with ``handle``, which receives the number of the request."""
    count = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                count += 1
                await handle(writer, count)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{made.sockets[0].getsockname()[1]}"
    finally:
        made.close()


async def good(writer: asyncio.StreamWriter, number: int) -> None:  # noqa: ARG001 - a handler
    """Answer."""
    writer.write(ANSWER)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    """A plan is read as it was written, with identical requests."""
    plan = LoadPlan("a:1", [0, 1, 0], [0.0, 0.5, 1.0], ends_with="x", requests=[b"one", b"two\n"])
    write_plan(tmp_path / "plan", plan)
    assert read_plan(tmp_path / "plan") == plan


def test_results_survive_their_file(tmp_path: Path) -> None:
    """Unknown times stay unknown."""
    results = Results([0.0], [0.1], [None], [0.2], ["closed"], 1.0, 0.5)
    write_results(tmp_path / "results", results)
    assert read_results(tmp_path / "results") == results


def test_times_count_from_the_intended_moment_and_of_whole_answers() -> None:
    """Latency counts from the intended time; failed requests have none."""
    results = Results([1.0, 2.0], [1.5, 2.0], [1.75, None], [2.0, 3.0], ["ok", "timeout"])
    assert results.latencies() == [1.0]
    assert results.first_bytes() == [0.75]
    assert results.errors == {"timeout": 1}
    assert results.lag(1.0) == 0.5


async def test_an_open_loop_does_not_wait_for_responses() -> None:
    """The second request is sent and answered while the first one is pending."""
    release = asyncio.Event()

    async def handle(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            await release.wait()
        else:
            release.set()
        writer.write(ANSWER)

    async with server(handle) as address:
        plan = LoadPlan(address, [0, 0], [0.0, 0.01], requests=[REQUEST], timeout_s=60.0)
        results = await LoadClient(plan).run()
    assert results.outcome == ["ok", "ok"]
    first, second = results.end
    assert first is not None
    assert second is not None


async def test_failures_are_told_apart() -> None:
    """Error status, closed connection, cut response and missing end are distinct outcomes."""

    async def handle(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")
        elif number == 2:
            writer.close()
        elif number == 3:
            writer.write(ANSWER[:-2])
            await writer.drain()
            writer.close()
        else:
            writer.write(ANSWER.replace(b"done", b"half"))

    outcomes = []
    async with server(handle) as address:
        for _ in range(4):
            plan = LoadPlan(
                address, [0], [0.0], requests=[REQUEST], ends_with="done", timeout_s=60.0
            )
            outcomes += (await LoadClient(plan).run()).outcome
    assert outcomes == ["status 503", "closed", "cut", "cut"]


async def test_a_refused_connection_is_an_outcome() -> None:
    """A refused connection has the outcome ``connect``."""
    async with server(good) as address:
        pass
    results = await LoadClient(
        LoadPlan(address, [0], [0.0], requests=[REQUEST], timeout_s=60.0)
    ).run()
    assert results.errors == {"connect": 1}


@pytest.mark.usefixtures("_counted_time")
async def test_a_closed_loop_sends_one_after_the_other() -> None:
    """Each connection has one request at a time, until the time is over."""
    async with server(good) as address:
        plan = LoadPlan(address, [0], connections=2, seconds=0.05, requests=[REQUEST])
        results = await LoadClient(plan).run()
    assert len(results.outcome) > 2
    assert set(results.outcome) == {"ok"}


@pytest.mark.usefixtures("_counted_time")
async def test_a_closed_loop_does_not_hide_failures() -> None:
    """A failed request in a closed loop raises."""

    async def handle(writer: asyncio.StreamWriter, number: int) -> None:  # noqa: ARG001
        writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")

    async with server(handle) as address:
        plan = LoadPlan(address, [0], seconds=0.05, requests=[REQUEST])
        with pytest.raises(RuntimeError, match="status 503"):
            await LoadClient(plan).run()
