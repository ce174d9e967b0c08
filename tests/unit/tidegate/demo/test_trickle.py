"""The trickle of requests while the demo stays up."""

from __future__ import annotations

import asyncio

from tidegate.demo.live import told, trickle
from tidegate.demo.load import Tally


async def test_requests_go_on_until_the_end_and_failures_are_counted() -> None:
    """A replica may be drained or killed meanwhile; that is what the demo is for."""
    stop, tally, numbers = asyncio.Event(), Tally(), []

    async def ask(number: int) -> str:
        numbers.append(number)
        if number == 2:
            raise ConnectionError("gone")
        if number == 4:
            stop.set()
        return "r1"

    await trickle(ask, stop, tally, 0.0)
    assert numbers == [1, 2, 3, 4]
    assert told(tally) == (
        "a trickle of requests: 3 answered, 1 failed (first: ConnectionError: gone)"
    )


async def test_the_end_does_not_wait_for_a_pause() -> None:
    """Ctrl-C is answered at once."""
    stop, tally = asyncio.Event(), Tally()

    async def ask(_: int) -> str:
        asyncio.get_running_loop().call_soon(stop.set)
        return "r1"

    await asyncio.wait_for(trickle(ask, stop, tally, 3600.0), 10)
    assert told(tally) == "a trickle of requests: 1 answered"
