"""Low-overhead HTTP/1.1 clients: one protocol object per connection, no tasks.

Open loop: each request is sent at its time on an idle connection, or on a new one if none is idle,
so a slow server never delays the next request (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import httptools

from bench.load.plan import OK, Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.load.plan import LoadPlan

TAIL: Final = 64
"""Bytes kept of the end of a response."""
_STATUS_OK: Final = 200


class _Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self, done: Callable[[_Connection, int, str], None], ends_with: bytes) -> None:
        self._done = done
        self._ends_with = ends_with
        self._parser: Any = None
        self._tail = b""
        self.entry = -1
        self.first: float | None = None
        self.transport: Any = None

    def send(self, entry: int, request: bytes) -> None:
        """Send one request; ``done`` is called at its end."""
        self.entry = entry
        self.first = None
        self._tail = b""
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def give_up(self) -> None:
        """End the current request as timed out."""
        self._finish("timeout")
        self.transport.abort()

    # asyncio

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish("cut")
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self.entry >= 0:
            self._finish("closed" if self.first is None else "cut")
        self.transport = None

    # httptools

    def on_body(self, body: bytes) -> None:
        if self.first is None:
            self.first = time.perf_counter()
        if self._ends_with:
            self._tail = (self._tail + body)[-TAIL:]

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != _STATUS_OK:
            self._finish(f"status {status}")
        elif self._ends_with and not self._tail.rstrip().endswith(self._ends_with):
            self._finish("cut")
        else:
            self._finish(OK)

    def _finish(self, outcome: str) -> None:
        entry, self.entry = self.entry, -1
        parser, self._parser = self._parser, None
        if not (parser is not None and outcome == OK and parser.should_keep_alive()):
            self.transport.close()
        self._done(self, entry, outcome)


class LoadClient:
    """One phase of load.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._results = Results()
        self._idle: list[_Connection] = []
        self._busy: dict[int, _Connection] = {}
        self._open = 0
        self._pending: set[asyncio.Task[None]] = set()
        self._finished = asyncio.Event()
        self._start = 0.0
        self._failure = ""

    async def run(self) -> Results:
        """Send all requests and wait until each has ended.

        Raises:
            RuntimeError: A request of a closed loop failed, so that its measurement is invalid.
        """
        cpu = time.process_time()
        self._start = time.perf_counter()
        if self._plan.at:
            await self._open_loop()
        else:
            await self._closed_loop()
        results = self._results
        results.seconds = time.perf_counter() - self._start
        results.began = self._start
        results.cpu_s = time.process_time() - cpu
        for connection in self._idle:
            if connection.transport is not None:
                connection.transport.close()
        return results

    # --- Open loop ------------------------------------------------------------------------------

    async def _open_loop(self) -> None:
        plan, results = self._plan, self._results
        count = len(plan.at)
        results.intended = list(plan.at)
        results.sent = [0.0] * count
        results.first = [None] * count
        results.end = [None] * count
        results.outcome = ["timeout"] * count
        self._open = count
        loop = asyncio.get_running_loop()
        begin = loop.time() + (self._start - time.perf_counter())
        self._next = 0

        def due() -> None:
            now = time.perf_counter() - self._start
            while self._next < count and plan.at[self._next] <= now:
                self._send(self._next)
                self._next += 1
            if self._next < count:
                loop.call_at(begin + plan.at[self._next], due)

        due()
        watch = asyncio.create_task(self._watch())
        await self._finished.wait()
        watch.cancel()

    def _send(self, entry: int) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                self._send_on(connection, entry)
                return
        task = asyncio.create_task(self._connect(entry))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _connect(self, entry: int) -> None:
        host, _, port = self._plan.address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                _, connection = await loop.create_connection(self._made, host, int(port))
        except (OSError, TimeoutError):
            self._results.sent[entry] = time.perf_counter() - self._start
            self._end(entry, None, "connect")
            return
        self._send_on(connection, entry)

    def _made(self) -> _Connection:
        return _Connection(self._heard, self._plan.ends_with.encode())

    def _send_on(self, connection: _Connection, entry: int) -> None:
        self._results.sent[entry] = time.perf_counter() - self._start
        self._busy[entry] = connection
        connection.send(entry, self._plan.requests[self._plan.which[entry]])

    def _heard(self, connection: _Connection, entry: int, outcome: str) -> None:
        self._busy.pop(entry, None)
        self._end(entry, connection.first, outcome)
        if connection.transport is not None and not connection.transport.is_closing():
            self._idle.append(connection)

    def _end(self, entry: int, first: float | None, outcome: str) -> None:
        results = self._results
        results.first[entry] = None if first is None else first - self._start
        results.end[entry] = time.perf_counter() - self._start
        results.outcome[entry] = outcome
        self._open -= 1
        if self._open == 0:
            self._finished.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            now = time.perf_counter() - self._start
            for entry, connection in list(self._busy.items()):
                if now - self._plan.at[entry] > self._plan.timeout_s:
                    connection.give_up()

    # --- Closed loop ----------------------------------------------------------------------------

    async def _closed_loop(self) -> None:
        plan, results = self._plan, self._results
        host, _, port = plan.address.rpartition(":")
        loop = asyncio.get_running_loop()
        turn = 0

        def again(connection: _Connection) -> None:
            nonlocal turn
            now = time.perf_counter() - self._start
            if now >= plan.seconds:
                self._open -= 1
                if self._open == 0:
                    self._finished.set()
                return
            entry = len(results.sent)
            results.sent.append(now)
            results.intended.append(now)
            results.first.append(None)
            results.end.append(None)
            results.outcome.append("")
            request = plan.requests[plan.which[turn % len(plan.which)]]
            turn += 1
            connection.send(entry, request)

        def heard(connection: _Connection, entry: int, outcome: str) -> None:
            first = connection.first
            results.first[entry] = None if first is None else first - self._start
            results.end[entry] = time.perf_counter() - self._start
            results.outcome[entry] = outcome
            if outcome == OK:
                again(connection)
            else:
                self._failure = outcome
                self._finished.set()

        self._open = plan.connections
        connections = []
        for _ in range(plan.connections):
            _, connection = await loop.create_connection(
                lambda: _Connection(heard, plan.ends_with.encode()), host, int(port)
            )
            connections.append(connection)
        self._start = time.perf_counter()
        for connection in connections:
            again(connection)
        async with asyncio.timeout(plan.seconds + plan.timeout_s):
            await self._finished.wait()
        if self._failure:
            raise RuntimeError(f"{plan.address}: {self._failure}")
        for connection in connections:
            connection.transport.close()
