"""Raw HTTP/1.1 and cleartext HTTP/2 clients, for requests that no library sends."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Raw:
    """One TCP connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._peer = host, int(port)

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(*self._peer)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(self, *parts: bytes) -> None:
        """Send all parts."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def status(self) -> int:
        """Read the head of a response and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    def vanish(self) -> None:
        """Reset the connection, like a killed process."""
        own = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """Return an HTTP/1.1 request head."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: test", *lines, "", "")).encode()


def chunks(pieces: Iterable[bytes], trailers: Mapping[str, str] | None = None) -> bytes:
    """Return a chunked body."""
    made = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    end = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
    return made + b"0\r\n" + end.encode() + b"\r\n"


@dataclass
class H2Answer:
    """Response on one HTTP/2 stream."""

    headers: dict[str, str] = field(default_factory=dict)
    """Trailers too."""
    body: bytes = b""
    reset: bool = False


async def h2_request(
    raw: Raw,
    path: str,
    pieces: Iterable[bytes],
    trailers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    pause_s: float | None = None,
    *,
    authority: str = "test",
    apart_s: float | None = None,
) -> H2Answer:
    """Send one request over cleartext HTTP/2, with optional trailers; return the response.

    The pieces must fit into the initial window of 65,535 bytes in total. They are sent at once, or
    with a pause of ``pause_s`` seconds before the end; or each frame by itself, ``apart_s`` seconds
    after the one before.
    """
    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", authority)]
    pseudo.append((":path", path))
    connection.send_headers(1, [*pseudo, *(headers or {}).items()])
    for piece in pieces:
        if apart_s is not None:
            await raw.send(connection.data_to_send())
            await asyncio.sleep(apart_s)
        connection.send_data(1, piece)
    pause_s = apart_s if pause_s is None else pause_s
    if pause_s is not None:
        await raw.send(connection.data_to_send())
        await asyncio.sleep(pause_s)
    if trailers:
        connection.send_headers(1, list(trailers.items()), end_stream=True)
    else:
        connection.end_stream(1)
    await raw.send(connection.data_to_send())
    return await _h2_answer(raw, connection)


async def _h2_answer(raw: Raw, connection: H2Connection) -> H2Answer:
    """Read the response on the only stream of a connection."""
    answer = H2Answer()
    while data := await raw.reader.read(65_536):
        for event in connection.receive_data(data):
            if isinstance(event, ResponseReceived):
                answer.headers = dict(event.headers)
            elif isinstance(event, TrailersReceived):
                answer.headers |= dict(event.headers)
            elif isinstance(event, DataReceived):
                answer.body += event.data
            elif isinstance(event, StreamEnded | StreamReset):
                answer.reset = isinstance(event, StreamReset)
                return answer
        await raw.send(connection.data_to_send())
    return answer
