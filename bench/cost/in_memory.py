"""Exchanges over an in-memory connection of the fast transport, for ``bench/cost/guard.py``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import ngh2

from ext_proc.server.h2.connection import Http2Connection
from ext_proc.server.h2.frames import framed
from ext_proc.server.h2.server import Http2Server
from ext_proc.server.wire import METHOD, SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.server.service import PickerServer

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", f"/{SERVICE}/{METHOD}".encode()),
    (b":authority", b"tidegate-picker"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class Carried:
    """A connection and its client, with in-memory transfer between them.

    Args:
        picker: The picker.
    """

    def __init__(self, picker: PickerServer) -> None:
        server = Http2Server(2**24)
        picker.serve_on(server)
        self._closing = False
        self._written = bytearray()
        self._client = ngh2.Connection(ngh2.Role.CLIENT)
        self._client.initiate_connection()
        self._connection = Http2Connection(server)
        self._connection.connection_made(self)

    @classmethod
    async def begin(cls, picker: PickerServer) -> Self:
        """Connect in the running event loop."""
        carried = cls(picker)
        await carried._carry(lambda: not carried._client.remote_settings)
        return carried

    async def exchange(self, sent: Sequence[bytes]) -> None:
        """Send messages, each after the reply to the previous one, and end the stream."""
        number = self._client.send_request(HEADERS)
        for message in sent:
            self._client.send_data(number, framed(message))
            self._replied = False
            await self._carry(lambda: not self._replied)
        self._closed = False
        self._client.end_stream(number)
        await self._carry(lambda: not self._closed)

    async def end(self) -> None:
        """Disconnect."""
        self._closing = True
        self._connection.connection_lost(None)
        await asyncio.sleep(0)

    async def _carry(self, wanting: Any) -> None:
        for _ in range(100):
            if out := self._client.data_to_send():
                self._connection.data_received(out)
            await asyncio.sleep(0)
            if self._written:
                back, self._written = bytes(self._written), bytearray()
                self._client.receive_data(back)
                for event in self._client.events():
                    self._replied = self._replied or isinstance(event, ngh2.DataReceived)
                    self._closed = self._closed or isinstance(event, ngh2.StreamClosed)
                if not wanting():
                    return
        raise RuntimeError("no answer")

    _replied = _closed = False

    # --- Transport interface ----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Record written bytes."""
        self._written += data

    def is_closing(self) -> bool:
        """Return whether it is closed."""
        return self._closing

    def close(self) -> None:
        """Close it."""
        self._closing = True

    abort = close
