"""Groups that are released together."""

from __future__ import annotations

import asyncio

import pytest

from ext_proc.server import holds as module
from ext_proc.server.holds import GROUP, MOST_S, Holds

KEY = ("p", "10.0.0.1:80")


class Clock:
    """A clock that advances by a tenth of the longest hold at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += MOST_S / 10
        return self.now


async def test_a_group_goes_when_it_is_full() -> None:
    """All members are released, long before the time is over."""
    clock = Clock()
    holds = Holds(clock)
    waits = [asyncio.create_task(holds.wait(KEY, MOST_S)) for _ in range(GROUP)]
    await asyncio.gather(*waits)
    assert clock.now < MOST_S / 2
    assert (holds.held, repr(holds)) == (GROUP, f"<Holds groups=0 held={GROUP}>")


async def test_a_group_goes_when_its_time_is_over() -> None:
    """However few members came; a wait never exceeds the bound."""
    clock = Clock()
    holds = Holds(clock)
    await asyncio.gather(holds.wait(KEY, 1000.0), holds.wait(KEY, 1000.0))
    assert clock.now <= MOST_S * 1.3


async def test_replicas_do_not_wait_for_each_other() -> None:
    """A group belongs to one pool and one replica."""
    holds = Holds(Clock())
    await asyncio.gather(*[holds.wait(("p", f"10.0.0.{n}:80"), MOST_S) for n in range(GROUP)])
    assert holds.held == GROUP


async def test_none_is_left_when_the_first_one_goes() -> None:
    """Its stream may end while it waits; the others are released and the group is closed."""
    holds = Holds(lambda: 0.0)  # time stands still: only the end of the first one frees them
    first = asyncio.create_task(holds.wait(KEY, MOST_S))
    await asyncio.sleep(0)
    second = asyncio.create_task(holds.wait(KEY, MOST_S))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert "groups=0" in repr(holds)


async def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound requests do not wait."""
    monkeypatch.setattr(module, "MAX_GROUPS", 1)
    holds = Holds(lambda: 0.0)
    first = asyncio.create_task(holds.wait(KEY, MOST_S))
    await asyncio.sleep(0)
    await holds.wait(("p", "10.0.0.2:80"), MOST_S)
    assert holds.held == 1
    first.cancel()
