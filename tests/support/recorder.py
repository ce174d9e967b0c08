"""A replica that records each byte it gets, over HTTP/1.1 on raw sockets.

It reads requests as strictly as a replica does: by their length or their chunks. What follows the
end of one is the next one, whoever meant what by it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_OWN = ("GET ", "POST /v2/repository/index ")
"""Beginnings of the requests of health checks and probes."""
_ANSWER = b'{"text_output":"recorded"}'


class Recorded(NamedTuple):
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Number of the connection."""


@dataclass
class Recorder:
    """A recording replica for ``support.replicas.stack_over``."""

    name: str
    variant: str = "stable"
    address: str = ""
    """``ip:port``."""
    got: list[Recorded] = field(default_factory=list)
    """Complete requests other than Tidegate's own."""
    faults: list[bytes] = field(default_factory=list)
    """What could not be read as a request."""
    breaks: int = 0
    """Requests that it will read and not answer: it closes their connections."""
    _connections: int = 0

    def endpoint(self, **more: Any) -> dict[str, Any]:
        """Return the replica as an endpoint of a fleet file."""
        return {"id": self.name, "http": self.address, "variant": self.variant, **more}

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Recorder]:
        """Serve on a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head[:-4].decode("latin-1").split("\r\n")
                headers = {}
                for each in rest:
                    name, _, value = each.partition(":")
                    headers[name.lower()] = value.strip()
                body = await self._body(reader, headers)
                if not line.startswith(_OWN):
                    self.got.append(Recorded(line, headers, body, number))
                    if self.breaks:
                        self.breaks -= 1
                        return
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (len(_ANSWER), _ANSWER)
                )
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.faults.append(error.partial)
        except (ValueError, asyncio.LimitOverrunError) as error:
            self.faults.append(str(error).encode())
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _body(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await reader.readexactly(int(headers["content-length"]))
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            while await reader.readline() != b"\r\n":
                pass
        return body
