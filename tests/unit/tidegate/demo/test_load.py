"""The closed-loop load."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.demo.load import MAX_ERROR_CHARS, closed_loop


async def test_a_total_is_met_exactly() -> None:
    """Exactly ``total`` requests are sent, each with its own number."""
    seen: list[int] = []

    async def ask(number: int) -> str:
        await asyncio.sleep(0)
        seen.append(number)
        return f"r{number % 2}"

    tally = await closed_loop(ask, workers=3, total=10)
    assert sorted(seen) == list(range(10))
    assert tally.by_replica == {"r0": 5, "r1": 5}
    assert (tally.answered, tally.failed, tally.asked) == (10, 0, 10)
    assert tally.problems() == []


async def test_no_more_than_the_workers_are_in_flight() -> None:
    """The number of requests in flight never exceeds the number of workers."""
    flying, most = 0, 0

    async def ask(_: int) -> str:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        return "r"

    await closed_loop(ask, workers=4, total=20)
    assert most == 4


async def test_a_stop_ends_the_load() -> None:
    """After the stop, each worker finishes its current request and ends."""
    stop = asyncio.Event()

    async def ask(number: int) -> str:
        await asyncio.sleep(0)
        if number == 5:
            stop.set()
        return "r"

    tally = await closed_loop(ask, workers=2, stop=stop)
    assert 6 <= tally.asked <= 8


async def test_failures_are_counted_and_the_first_is_kept() -> None:
    """Failed requests are counted and do not end the load."""

    async def ask(number: int) -> str:
        if number % 2:
            raise OSError(f"broken {number}" + "!" * 500)
        return "r"

    tally = await closed_loop(ask, workers=1, total=4)
    assert (tally.answered, tally.failed) == (2, 2)
    assert len(tally.first_error) == MAX_ERROR_CHARS
    (problem,) = tally.problems()
    assert problem.startswith("2 of 4 requests failed (first: OSError: broken 1")


async def test_a_load_needs_an_end() -> None:
    """A load without an end is an error."""

    async def ask(_: int) -> str:
        return "r"

    with pytest.raises(ValueError, match="needs an end"):
        await closed_loop(ask, workers=1)
