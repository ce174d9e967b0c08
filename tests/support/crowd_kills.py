"""Requests and streams through each Envoy of a crowd, and kills of its processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from support.crowd import CHUNK_S, CONTROL, Crowd, Talks
from support.crowd_operators import Operators
from support.in_process_stack import Flow

RATE = 60.0
"""Requests per second through each Envoy."""


class Line:
    """Requests and long streams through one Envoy.

    Args:
        crowd: The stack.
        envoy: Name of the Envoy.
        stream_s: Length of a stream, in seconds.
    """

    def __init__(self, crowd: Crowd, envoy: str, stream_s: float) -> None:
        self.envoy = envoy

        async def connect() -> Any:
            return await crowd.connect(envoy)

        self.flow = Flow(crowd.listener, rate=RATE, connections=2)
        self.flow.connect = connect  # type: ignore[method-assign]  # by which Envoy, not address
        self.talks = Talks(connect, round(stream_s / CHUNK_S))

    @property
    def wrong(self) -> Counter[str]:
        """What has failed."""
        return self.flow.wrong + self.talks.wrong

    def forgive(self) -> None:
        """Forget what the death of its Envoy broke: connections, but no answer but 200 came."""
        assert not [each for each in self.wrong if "HTTP/1.1" in each], self.wrong
        self.flow.wrong.clear()
        self.talks.wrong.clear()


class Kills:
    """Kills one process at a time and starts it again."""

    def __init__(self, crowd: Crowd, lines: dict[str, Line], operators: Operators) -> None:
        self.made: Counter[str] = Counter()
        self.started = time.monotonic()
        """When the control server began to serve."""
        self._crowd, self._lines, self._operators = crowd, lines, operators
        self._task: asyncio.Task[None] | None = None

    async def kill(self, name: str) -> None:
        """Kill a process after the one before is back; do not wait until this one is."""
        await self.back()
        await self._operators.settle()
        self.made[name] += 1
        self._task = asyncio.create_task(self._kill(name))

    async def back(self) -> None:
        """Wait until what was killed is back."""
        if self._task is not None:
            await self._task

    async def _kill(self, name: str) -> None:
        others = [line for line in self._lines.values() if line.envoy != name]
        assert not sum((line.wrong for line in self._lines.values()), Counter())
        self._operators.control_down = name == CONTROL
        await self._crowd.kill(name)
        await self._crowd.serving()
        if name == CONTROL:
            await self._crowd.status()
            self.started = time.monotonic()
            self._operators.control_down = False
        if name in self._lines:
            self._lines[name].forgive()
        assert not sum((line.wrong for line in others), Counter()), name
