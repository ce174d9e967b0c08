"""A TCP proxy that simulates network failures: it stalls or resets connections."""

from __future__ import annotations

import asyncio
from typing import Self


class Cable:
    """Forwards connections from one address to another.

    Args:
        outside: Address for clients, ``ip:port``.
        inside: Address of the server, ``ip:port``.
    """

    def __init__(self, outside: str, inside: str) -> None:
        self._outside, self._inside = outside, inside
        self._whole = asyncio.Event()
        self._whole.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()

    async def __aenter__(self) -> Self:
        host, _, port = self._outside.rpartition(":")
        self._server = await asyncio.start_server(self._carry, host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()

    def stall(self) -> None:
        """Stop forwarding; connections stay open and new ones are accepted."""
        self._whole.clear()

    def reset(self) -> None:
        """Reset all connections."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    def mend(self) -> None:
        """Resume forwarding."""
        self._whole.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._ends.add(writer)
        host, _, port = self._inside.rpartition(":")
        try:
            await self._whole.wait()
            there, back = await asyncio.open_connection(host, int(port))
            self._ends.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
