"""A local socket whose other end speaks TLS to an address.

gRPC's own TLS always checks the name in a certificate; health checks of Envoys check what the pool
asks for. So gRPC speaks in the clear to a Unix socket in a private folder, and the bytes go on
through a TLS context of Python's.

Rules:

1. Each connection gets the context of that moment. One that cannot be made is closed at once.
2. A handshake has ``CONNECT_S``; at most ``MAX_CONNECTIONS`` are open, further ones are closed.
3. What a connection held is given up when either end closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

CONNECT_S: Final = 10.0
MAX_CONNECTIONS: Final = 8
_CHUNK: Final = 65_536
_BACKLOG: Final = 8


class Tunnel:
    """One far end; ``open`` and ``close`` it, or use it as an asynchronous context manager.

    Args:
        address: ``ip:port`` of the far end.
        context: Returns the TLS context of a new connection; a ``ValueError`` or ``OSError`` closes
            that connection.
        server_name: Name to ask the far end for; ``None`` = none.
        on_fault: Called with the error of a connection that could not be made.
    """

    def __init__(
        self,
        address: str,
        context: Callable[[], Awaitable[ssl.SSLContext]],
        server_name: str | None,
        on_fault: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._context = context
        self._server_name = server_name
        self._on_fault = on_fault
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._listening: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self.fault: Exception | None = None
        """Why the last connection could not be made; ``None`` if it could."""

    def open(self) -> str:
        """Listen; return gRPC's name of the local end.

        Raises:
            OSError: There is no place for the socket.
        """
        folder = self._folder = tempfile.TemporaryDirectory(prefix="tidegate-tls-")
        path = str(Path(folder.name) / "s")
        listening = self._listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        listening.bind(path)
        listening.listen(_BACKLOG)
        self._starting = asyncio.create_task(self._serve(listening))
        return f"unix:{path}"

    async def close(self) -> None:
        """Close the socket and all connections."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        elif self._listening is not None:
            self._listening.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        if self._folder is not None:
            self._folder.cleanup()

    async def __aenter__(self) -> Self:
        self.target = self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._carrying)

    async def _serve(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._begun, sock=listening)

    def _begun(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if len(self._carrying) >= MAX_CONNECTIONS:
            back.transport.abort()
            return
        task = asyncio.create_task(self._carry(near, back))
        self._carrying.add(task)

        def ended(_: object) -> None:
            self._carrying.discard(task)
            back.transport.abort()

        task.add_done_callback(ended)

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                context = await self._context()
                name = self._server_name or self._host
                far, forth = await asyncio.open_connection(
                    self._host, self._port, ssl=context, server_hostname=name
                )
        except (OSError, ValueError) as error:  # an SSLError and a TimeoutError are OSErrors
            self.fault = error
            self._on_fault(error)
            return
        self.fault = None
        try:
            await asyncio.gather(_copy(near, forth), _copy(far, back))
        finally:
            forth.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK):
            target.write(chunk)
            await target.drain()
    target.close()
