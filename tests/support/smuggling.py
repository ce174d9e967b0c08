"""Requests over HTTP/2 whose bodies are requests themselves."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamEnded, StreamReset

from support.sockets import Raw
from support.traffic import GENERATE, eventually
from tidegate_api.names import REASON_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import aiohttp

    from tidegate.stack.local import LocalStack

SMUGGLED = (
    b"POST /v2/repository/models/vision/unload HTTP/1.1\r\nhost: replica\r\n"
    b"content-length: 0\r\n\r\n"
)

_REPLIES = "stream_msgs_received"
LATE = "message_timeouts"
"""Envoy's counter of messages for which it did not wait for the picker."""


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


@asynccontextmanager
async def asked_for_the_body(
    http: aiohttp.ClientSession, stack: LocalStack, body: bytes, **options: Any
) -> AsyncIterator[Attack]:
    """Begin an attack, and wait until the picker has asked for the body.

    Where Envoy did not wait for the picker's reply to the headers, another request is begun.

    Args:
        http: Client.
        stack: The stack.
        body: Body of the request.
        options: Further arguments of ``Attack``.
    """
    async with AsyncExitStack() as exit_:
        asked = False
        while not asked:
            replied, late = [await counted(http, stack, each) for each in (_REPLIES, LATE)]
            attack = Attack(
                await exit_.enter_async_context(Raw(stack.http_address)), body, **options
            )
            await attack.flush()

            async def look(replied: int = replied, late: int = late) -> bool:
                nonlocal asked
                asked = await counted(http, stack, _REPLIES) > replied
                return asked or await counted(http, stack, LATE) > late

            assert await eventually(look)
        yield attack


async def counted(http: aiohttp.ClientSession, stack: LocalStack, name: str) -> int:
    """Return the sum of Envoy's counters of this name."""
    async with http.get(f"http://{stack.envoy_admin}/stats?filter={name}") as answer:
        return sum(int(line.split()[-1]) for line in (await answer.text()).splitlines())
