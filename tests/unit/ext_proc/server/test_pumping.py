"""What waits is tried after ends and at intervals, with what peer workers have sent."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from ext_proc.server.pumping import Pumping
from support.time import virtual_time


class Router(SimpleNamespace):
    """A router with one request that waits until a peer tells of room."""

    def __init__(self) -> None:
        super().__init__(queue=SimpleNamespace(count=1), on_room=lambda: None)
        self.room = False
        self.tried = 0

    def pump(self, *_: Any) -> int:
        self.tried += 1
        self.queue.count = 0 if self.room else 1
        return int(self.room)


async def test_what_peers_have_sent_is_read_before_anything_is_tried() -> None:
    """No request need come to a worker for it to learn of room that a peer has made."""
    router, loop, scheduled = Router(), asyncio.get_running_loop(), []

    def refresh() -> None:
        before = len(loop._ready)
        router.on_room()  # as a peer's end does
        scheduled.append(len(loop._ready) - before)
        router.room = len(scheduled) == 3

    pumping = Pumping(router, time.monotonic, time.time, refresh)
    with virtual_time() as clock:
        pumping.begin()
        await clock.until(lambda: not router.queue.count)
    assert router.tried == 3
    assert scheduled == [0, 0, 0]  # what is read is tried by this look, and by no other soon after
