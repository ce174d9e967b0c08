"""Requests over HTTP/2 whose bodies are requests themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamEnded, StreamReset

from support.traffic import GENERATE, eventually
from tidegate_api.names import REASON_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    import aiohttp

    from support.sockets import Raw
    from tidegate.stack.local import LocalStack

SMUGGLED = (
    b"POST /v2/repository/models/vision/unload HTTP/1.1\r\nhost: replica\r\n"
    b"content-length: 0\r\n\r\n"
)


class Attack:
    """A POST over HTTP/2 in clear text, sent step by step."""

    def __init__(
        self,
        raw: Raw,
        body: bytes,
        *,
        path: str = GENERATE,
        length: bool = True,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.raw, self.body = raw, body
        settings = H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = H2Connection(settings)
        self.h2.initiate_connection()
        named = [(":method", "POST"), (":scheme", "http"), (":authority", "t"), (":path", path)]
        if length:
            named.append(("content-length", str(len(body))))
        self.h2.send_headers(1, [*named, *headers])

    async def flush(self) -> None:
        """Send what is ready."""
        await self.raw.send(self.h2.data_to_send())

    def data(self, *cuts: int, end: bool = False) -> None:
        """Send the body, in parts that end at ``cuts``."""
        for start, stop in zip((0, *cuts), (*cuts, len(self.body)), strict=True):
            last = end and stop == len(self.body)
            self.h2.send_data(1, self.body[start:stop], end_stream=last)

    def trailers(self) -> None:
        """End the request."""
        self.h2.send_headers(1, [("x-checksum", "7")], end_stream=True)

    async def answer(self) -> tuple[int | None, str | None]:
        """Return status and reason; a status of None is a reset."""
        await self.flush()
        headers: dict[str, str] = {}
        while data := await self.raw.reader.read(65_536):
            for event in self.h2.receive_data(data):
                if isinstance(event, ResponseReceived):
                    headers = dict(event.headers)
                elif isinstance(event, StreamEnded | StreamReset):
                    reset = isinstance(event, StreamReset)
                    return None if reset else int(headers[":status"]), headers.get(REASON_HEADER)
            await self.flush()
        return None, None


async def asked_for_the_body(http: aiohttp.ClientSession, stack: LocalStack, before: int) -> None:
    """Wait until the picker has asked for a body: Envoy has its reply to the headers."""

    async def look() -> bool:
        return await replies(http, stack) > before

    assert await eventually(look)


async def replies(http: aiohttp.ClientSession, stack: LocalStack) -> int:
    """Return the picker's messages that Envoy has received."""
    async with http.get(f"http://{stack.envoy_admin}/stats?filter=stream_msgs_received") as answer:
        return sum(int(line.split()[-1]) for line in (await answer.text()).splitlines())
