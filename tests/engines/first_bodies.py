"""A TCP proxy between Envoy and an engine that times the first bytes of answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@contextlib.asynccontextmanager
async def first_bodies(inside: str, path: str, took: Callable[[float], None]) -> AsyncIterator[str]:
    """Serve HTTP/1.1 for an engine; yield the proxy's ``ip:port``.

    Args:
        inside: The engine's ``ip:port``.
        path: Path of the POST requests that count; pickers send others.
        took: Receives seconds from a request's first byte to the first byte of its answer's body.
    """
    host, _, port = inside.rpartition(":")
    line = f"POST {path} ".encode()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        began: float | None = None
        head = b""

        async def requests() -> None:
            nonlocal began, head
            while data := await reader.read(65_536):
                if data.startswith(line):
                    began, head = time.perf_counter(), b""
                back.write(data)

        async def answers() -> None:
            nonlocal began, head
            while data := await there.read(65_536):
                if began is not None:
                    head += data
                    if head.partition(b"\r\n\r\n")[2]:
                        took(time.perf_counter() - began)
                        began = None
                writer.write(data)

        tasks = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            back.close()

    server = await asyncio.start_server(carry, "127.0.0.1")
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
