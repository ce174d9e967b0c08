"""A TLS server in front of a real Triton's HTTP port, which may keep requests back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


class TlsFront:
    """Forwards connections to ``address`` (``ip:port``).

    A connection whose first bytes contain ``holds`` is not forwarded before ``released`` is set;
    ``held`` is set when there is one.
    """

    def __init__(self, address: str, holds: bytes = b"") -> None:
        self._address = address
        self._holds = holds
        self.held, self.released = asyncio.Event(), asyncio.Event()
        self.address = ""
        """Where it listens, once it serves."""

    @contextlib.asynccontextmanager
    async def serve(self, tls: ssl.SSLContext) -> AsyncIterator[TlsFront]:
        """Serve; close all connections at the end."""
        talks: set[asyncio.Task[None]] = set()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.add(asyncio.create_task(self._talk(reader, writer)))

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            first = await reader.read(65_536)
            if self._holds and self._holds in first:
                self.held.set()
                await self.released.wait()
            host, _, port = self._address.rpartition(":")
            behind, there = await asyncio.open_connection(host, int(port))
            with contextlib.closing(there):
                there.write(first)
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_carry(reader, there))
                    ways.create_task(_carry(behind, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes until the sender has ended, and end then, too."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
