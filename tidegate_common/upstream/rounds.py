"""One task for each target of a changing set, while the set is looked after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T", bound="Hashable")


class TargetTasks(Generic[T]):
    """Runs a task per target.

    Args:
        look_after: Looks after one target until it is cancelled.
    """

    def __init__(self, look_after: Callable[[T], Coroutine[None, None, None]]) -> None:
        self._look_after = look_after
        self._targets: set[T] = set()
        self._tasks: dict[T, asyncio.Task[None]] = {}
        self._running = False

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._tasks)

    def keep(self, targets: set[T]) -> set[T]:
        """Look after exactly these from now on; return those that are gone."""
        gone = self._targets - targets
        for target in gone:
            task = self._tasks.pop(target, None)
            if task is not None:
                task.cancel()
        added = targets - self._targets
        self._targets = set(targets)
        if self._running:
            self._start(added)
        return gone

    async def run(self) -> None:
        """Look after the targets until cancelled; no task is left then."""
        self._running = True
        try:
            self._start(self._targets)
            await asyncio.get_running_loop().create_future()
        finally:
            self._running = False
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, targets: set[T]) -> None:
        for target in targets:
            self._tasks[target] = asyncio.create_task(
                self._look_after(target), name=f"{self._look_after.__qualname__} {target}"
            )
