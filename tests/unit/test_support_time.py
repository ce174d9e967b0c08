"""Time for tests that do not wait."""

from __future__ import annotations

import asyncio

import pytest

from support.time import Clock, virtual_time


async def test_a_jump_makes_what_waits_due() -> None:
    """A timer of an hour ends where the clock is moved by an hour, and one of two does not."""
    clock = Clock()
    short, long = (asyncio.ensure_future(asyncio.sleep(hours * 3600)) for hours in (1, 2))
    await asyncio.sleep(0)
    clock.advance(3600)
    await clock.until(short.done)
    assert not long.done()
    long.cancel()


async def test_a_loop_in_virtual_time_keeps_the_order_of_timers() -> None:
    """Timers end in the order that they have, each when it is due."""
    loop, seen = asyncio.get_running_loop(), []

    async def note(tenths: int) -> None:
        await asyncio.sleep(tenths / 10)
        seen.append((tenths, loop.time() - began >= tenths / 10))

    with virtual_time():
        began = loop.time()
        await asyncio.gather(note(50), note(1), note(7))
    assert seen == [(1, True), (7, True), (50, True)]


async def test_a_limit_ends_a_wait_that_has_no_end() -> None:
    """What never comes true is an error of the test, not a hang."""
    with pytest.raises(TimeoutError, match="did not come true"):
        await Clock().until(lambda: False, limit_s=0.0)


async def test_virtual_time_ends_with_its_block() -> None:
    """Afterwards the loop waits as before, and its clock has not gone back."""
    loop = asyncio.get_running_loop()
    with virtual_time():
        await asyncio.sleep(1)
        inside = loop.time()
    assert loop.time() >= inside
    assert "select" not in vars(loop._selector)  # type: ignore[attr-defined]  # CPython's loop
