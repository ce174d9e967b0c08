"""Workers in one loop, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

from ext_proc.routing.router import Router
from ext_proc.workers.bus import Bus, WorkerPlace
from ext_proc.workers.group.members import GroupPlan
from support.crew import router


class Worker:
    """A router on the bus that records what it receives."""

    def __init__(
        self,
        folder: Path | None,
        number: int,
        count: int,
        clock: Callable[[], float],
        group: GroupPlan | None = None,
    ) -> None:
        self.telemetry: list = []
        self.judged: list = []
        self.leads: list[bool] = []
        self.found: list = []
        self.left: frozenset[tuple[str, str]] = frozenset()
        self.listings: list = []
        self.router: Router = router(
            4,
            number,
            on_event=self.tell,
            on_sequence=self.catch_up,
        )
        self.bus = Bus(
            WorkerPlace(folder, number, count),
            self.router.peers,
            on_telemetry=self.telemetry.append,
            on_judged=lambda judged, _: self.judged.append(judged),
            on_found=self.found.append,
            on_lead=self.leads.append,
            on_left=self.leave,
            listings=lambda: self.listings,
            group=group,
            clock=clock,
        )

        self.router.owners = self.bus.owners

    def tell(self, event) -> None:
        self.bus.publish(event)

    def leave(self, pages: frozenset[tuple[str, str]]) -> None:
        self.left = pages

    def catch_up(self) -> None:
        self.bus.catch_up()


class WorkerGroup:
    """Some workers with a common test clock."""

    def __init__(self, folder: Path, count: int) -> None:
        self.now = 100.0
        self.folder, self.count = folder, count
        self.workers: dict[int, Worker] = {}

    def start(self, number: int) -> Worker:
        """Start or restart a worker."""
        worker = Worker(self.folder, number, self.count, lambda: self.now)
        self.workers[number] = worker
        worker.bus.open()
        return worker

    async def settle(self) -> None:
        """Deliver everything that is under way."""
        for _ in range(3):
            for worker in self.workers.values():
                worker.bus.tick()
                worker.bus.flush()
            for _ in range(20):
                await asyncio.sleep(0)
            for worker in self.workers.values():
                worker.bus.catch_up()


@asynccontextmanager
async def worker_group(folder: Path, count: int):
    group = WorkerGroup(folder, count)
    for number in range(count):
        group.start(number)
    try:
        await group.settle()
        yield group
    finally:
        for worker in group.workers.values():
            worker.bus.close()
