"""One gRPC call as its handler sees it: the part of ``grpc.aio``'s context that handlers use.

Rules:

1. Bytes received and not read keep counting against the flow-control windows, so a peer that sends
   faster than its handler reads has to stop. The bytes of an unfinished message are returned at
   once if no complete message waits, because a handler cannot read a message before its end; so at
   most one message per stream exceeds the windows. Its length is bounded, and so is the sum over
   all streams (``Beyond``).
2. Each received byte is returned to the windows exactly once: as above, when its message is read,
   or when the stream closes.
3. A handler's write waits while more than ``HIGH`` bytes of its stream are unsent. So a handler
   does not read from a peer that does not read from it.
4. Nothing is written to a closed stream: a write raises an error. Unread messages are dropped then,
   and the handler is cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from ext_proc.server.h2.frames import PREFIX, Deframer, TooLargeError, framed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

OK: Final = grpc.StatusCode.OK
HIGH: Final = 2**16
"""Unsent bytes of a stream above which its writer waits."""


class AbortError(grpc.aio.BaseError):
    """Raised to end a call with a status that its handler chose."""


class GoneError(grpc.aio.BaseError):
    """The stream is closed: nothing can be written."""


class Beyond:
    """Counts the held bytes that no window counts, over all streams of a server.

    Args:
        limit: Maximum of the sum. Only the stream that would exceed it fails.
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def change(self, by: int) -> None:
        """Add ``by`` bytes, which may be negative.

        Raises:
            TooLargeError: The sum would exceed the limit; it is left unchanged.
        """
        if by > 0 and self.held + by > self.limit:
            raise TooLargeError(f"unread long messages would exceed {self.limit} bytes")
        self.held += by


class Channel(ABC):
    """Interface of a connection to its streams and server; ``Http2Connection`` implements it.

    It is a class, not a ``typing.Protocol``, so that compiled code calls it directly.
    """

    loop: asyncio.AbstractEventLoop
    streams: dict[int, Http2Stream]
    """Open streams by HTTP/2 stream id."""
    ready: list[Http2Stream]
    """Streams with new input; each is to be pumped."""

    @abstractmethod
    def send(self, stream: Http2Stream, data: bytes) -> bool:
        """Send bytes of an open stream; return whether its writer has to wait."""

    @abstractmethod
    async def drained(self, stream: Http2Stream) -> None:
        """Wait until little of a stream is unsent, or the stream is closed."""

    @abstractmethod
    def consumed(self, number: int, size: int) -> None:
        """Let the peer send ``size`` more bytes on a stream."""

    @abstractmethod
    def finish(self, stream: Http2Stream) -> None:
        """Send the status of an open stream."""

    @abstractmethod
    def announce_end(self) -> None:
        """Ask the peer to open no more streams; those under way are served."""

    @abstractmethod
    def leave(self) -> None:
        """Accept no more streams, and close once none is open."""

    @abstractmethod
    def cut(self) -> None:
        """Send what is ready, and close."""


class Http2Stream:
    """A call opened by the peer.

    Args:
        connection: Connection of the stream.
        number: HTTP/2 stream id.
        limit: Maximum bytes of a message.
        beyond: Counter of long messages' bytes over all streams.
    """

    __slots__ = (
        "_beyond",
        "_connection",
        "_deframer",
        "_owed",
        "_read",
        "_total",
        "_unread",
        "_waiter",
        "_write",
        "answered",
        "closed",
        "details",
        "ended",
        "headed",
        "number",
        "status",
        "task",
    )

    def __init__(self, connection: Channel, number: int, limit: int, beyond: Beyond) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.headed = False
        """The response headers have been sent."""
        self.ended = False
        """The peer has half-closed the stream."""
        self.answered = False
        """The status has been sent: further input is ignored."""
        self.closed = False
        self.status = OK
        self.details = ""
        self._connection = connection
        self._deframer = Deframer(limit)
        self._unread: deque[bytes] = deque()
        self._owed = 0
        """Held bytes that the windows count."""
        self._beyond = 0
        """Held bytes that the windows do not count; they are the oldest."""
        self._total = beyond
        self._waiter: asyncio.Future[None] | None = None
        self._read: Callable[[bytes], Any] | None = None
        self._write: Callable[[Any], bytes] | None = None

    # --- Used by handlers -------------------------------------------------------------------------

    def typed(
        self, read: Callable[[bytes], Any] | None, write: Callable[[Any], bytes] | None
    ) -> None:
        """Set the message parser and serializer; ``None`` = messages are bytes."""
        self._read, self._write = read, write

    async def read(self) -> Any:
        """Return the next message, or ``grpc.aio.EOF`` after the last.

        Raises:
            AbortError: The message cannot be parsed, or a size limit is exceeded.
        """
        while not self._unread:
            if self.ended or self.closed:
                return grpc.aio.EOF
            self._waiter = self._connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._unread.popleft()
        try:
            self._took(PREFIX + len(message))
        except TooLargeError as error:
            await self.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if self._read is None:
            return message
        try:
            return self._read(message)
        except Exception:  # noqa: BLE001 - whatever a parser raises, the bytes are the peer's
            return await self.abort(grpc.StatusCode.INTERNAL, "the message cannot be parsed")

    async def write(self, message: Any) -> None:
        """Send a message; wait while too much of the stream is unsent.

        Raises:
            GoneError: The stream is closed.
        """
        if self.closed:
            raise GoneError("the peer has closed the stream")
        data: bytes = message if self._write is None else self._write(message)
        if self._connection.send(self, framed(data)):
            await self._connection.drained(self)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status.

        Raises:
            AbortError: Always.
        """
        self.status, self.details = code, details
        raise AbortError(details)

    def __aiter__(self) -> Self:
        """Iterate over the messages."""
        return self

    async def __anext__(self) -> Any:
        """Return the next message."""
        message = await self.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    # --- Used by the connection -------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Add received bytes.

        Raises:
            CompressedError: A message is compressed.
            TooLargeError: A message is too large, or too many bytes are held.
        """
        self._owed += len(data)
        self._unread.extend(self._deframer.feed(data))
        if self._unread:
            self._wake()
        else:
            self._let_on()

    def end(self) -> None:
        """Handle the end of the peer's messages."""
        self.ended = True
        self._wake()

    def close(self) -> None:
        """Handle that the stream is gone: drop unread messages and cancel the handler."""
        self.closed = True
        self._unread.clear()
        self._total.change(-self._beyond)
        self._beyond = 0
        self._give_back(self._owed)
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def pump(self) -> None:
        """Process the messages that have arrived; here a handler reads them by itself."""

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future completed at the end of the call, ``None`` if it is over."""
        return None if self.task is None or self.task.done() else self.task

    def cut(self) -> None:
        """Cancel the call because the server stops."""
        if self.task is not None:
            self.task.cancel()

    def _took(self, size: int) -> None:
        """Release ``size`` bytes that are no longer held."""
        if self._beyond:
            first = min(size, self._beyond)
            self._beyond -= first
            self._total.change(-first)
            size -= first
        self._give_back(size)
        if self._owed and not self._unread:
            self._let_on()

    def _let_on(self) -> None:
        """Let the peer send the rest of a message; all bytes held are its beginning."""
        self._total.change(self._owed)
        self._beyond += self._owed
        self._give_back(self._owed)

    def _give_back(self, size: int) -> None:
        if size:
            self._owed -= size
            self._connection.consumed(self.number, size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
