"""A link with a delay: a proxy of TCP that holds back what it forwards, both ways."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def delayed(target: str, delay_s: float) -> AsyncIterator[str]:
    """Yield an address whose connections lead to another one, each way later by ``delay_s``."""
    host, _, port = target.rpartition(":")
    running: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(2**16):
                loop.call_later(delay_s, writer.write, data)
        loop.call_later(delay_s, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(carry(*pair))
            running.add(task)
            task.add_done_callback(running.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        address, number = server.sockets[0].getsockname()
        yield f"{address}:{number}"
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
