"""One task for each target of a changing set."""

from __future__ import annotations

import asyncio

from tidegate_common.upstream.rounds import TargetTasks


async def test_each_target_has_a_task_while_it_is_one() -> None:
    """Targets that come get one, those that go lose theirs, others keep it."""
    log: list[str] = []

    async def look_after(target: str) -> None:
        log.append(f"+{target}")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            log.append(f"-{target}")

    tasks = TargetTasks(look_after)
    assert tasks.keep({"a"}) == set()
    assert len(tasks) == 0
    running = asyncio.create_task(tasks.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == ["+a"]
    assert tasks.keep({"a", "b"}) == set()
    await asyncio.sleep(0)
    assert tasks.keep({"b"}) == {"a"}
    await asyncio.sleep(0)
    assert log == ["+a", "+b", "-a"]
    assert len(tasks) == 1
    running.cancel()
    await asyncio.wait({running})
    assert log == ["+a", "+b", "-a", "-b"]
    assert len(tasks) == 0
