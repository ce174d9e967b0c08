"""One gRPC call, as handlers see it: what they use of ``grpc.aio``'s context.

Law:

1. What was received and not read keeps its bytes of the windows: a peer that sends faster than is
   read stops. Only where no whole message waits are the bytes of an unfinished one given back at
   once, since nobody can read it before its end: one message is beyond the windows at most. How
   long it may be is bounded, and so is what all streams have beyond theirs (``Beyond``).
2. Each byte that was received is given back once: as above, when its message is read, or when the
   stream closes.
3. A handler that writes waits while more than ``HIGH`` bytes of its stream have not gone out, so
   that a peer that does not read is not read either.
4. Nothing is written once the stream is closed: whoever writes then is told. What was not read by
   then is dropped, and the handler is cancelled.
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
"""Bytes of a stream that wait to be sent before its writer does."""


class AbortError(grpc.aio.BaseError):
    """A handler ends its call with a status of its own."""


class GoneError(grpc.aio.BaseError):
    """The stream is closed: nothing can be written."""


class Beyond:
    """Bytes that are held and no window counts, over all streams of a server.

    Args:
        limit: Most of them. A stream that would exceed it fails, and no other.
    """

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def change(self, by: int) -> None:
        """Take more, or give back.

        Raises:
            TooLargeError: It would be too many; they are not taken.
        """
        if by > 0 and self.held + by > self.limit:
            raise TooLargeError(f"more than {self.limit} bytes of long messages would wait")
        self.held += by


class Channel(ABC):
    """What streams and the server use of a connection; ``Connection`` implements it.

    It is a class, not a ``typing.Protocol``, so that compiled code calls it directly.
    """

    loop: asyncio.AbstractEventLoop
    streams: dict[int, Http2Stream]
    """Open streams by HTTP/2 stream id."""
    ready: list[Http2Stream]
    """Streams for which something came; each is to be pumped."""

    @abstractmethod
    def send(self, stream: Http2Stream, data: bytes) -> bool:
        """Send bytes of an open stream; return whether its writer has to wait."""

    @abstractmethod
    async def drained(self, stream: Http2Stream) -> None:
        """Wait until little of a stream is unsent, or it is gone."""

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
        """Take no more streams, and close once none is open."""

    @abstractmethod
    def cut(self) -> None:
        """Send what is ready, and close."""


class Http2Stream:
    """A call that the peer has opened.

    Args:
        connection: Of which it is a stream.
        number: Its HTTP/2 id.
        limit: Most bytes of a message.
        beyond: Where all streams' are counted.
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
        """The answer's headers are under way."""
        self.ended = False
        """The peer has sent all it will."""
        self.answered = False
        """The status is under way: nothing of what comes counts."""
        self.closed = False
        self.status = OK
        self.details = ""
        self._connection = connection
        self._deframer = Deframer(limit)
        self._unread: deque[bytes] = deque()
        self._owed = 0
        """Bytes held that the windows count."""
        self._beyond = 0
        """Bytes held that they do not: the first of them."""
        self._total = beyond
        self._waiter: asyncio.Future[None] | None = None
        self._read: Callable[[bytes], Any] | None = None
        self._write: Callable[[Any], bytes] | None = None

    # --- What handlers use ------------------------------------------------------------------------

    def typed(
        self, read: Callable[[bytes], Any] | None, write: Callable[[Any], bytes] | None
    ) -> None:
        """Set what messages are parsed and serialized by; ``None`` = they are bytes."""
        self._read, self._write = read, write

    async def read(self) -> Any:
        """Return the next message, or ``grpc.aio.EOF`` after the last.

        Raises:
            AbortError: It cannot be parsed, or what follows cannot be taken.
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
        """Hand a message over; wait while too much of what was written has not gone out.

        Raises:
            GoneError: The stream is closed.
        """
        if self.closed:
            raise GoneError("the peer has left")
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

    # --- What the connection uses -----------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take bytes that came.

        Raises:
            CompressedError: A message is compressed.
            TooLargeError: A message is too large, or too much is held.
        """
        self._owed += len(data)
        self._unread.extend(self._deframer.feed(data))
        if self._unread:
            self._wake()
        else:
            self._let_on()

    def end(self) -> None:
        """Take the end of what the peer sends."""
        self.ended = True
        self._wake()

    def close(self) -> None:
        """Take that the stream is gone; its handler is cancelled."""
        self.closed = True
        self._unread.clear()
        self._total.change(-self._beyond)
        self._beyond = 0
        self._give_back(self._owed)
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def pump(self) -> None:
        """Handle the messages that have come; a handler reads them by itself."""

    def waiter(self) -> asyncio.Future[None] | None:
        """Return what is done when the call is over, ``None`` where it is."""
        return None if self.task is None or self.task.done() else self.task

    def cut(self) -> None:
        """End the call, as the server stops."""
        if self.task is not None:
            self.task.cancel()

    def _took(self, size: int) -> None:
        """Take that so many bytes are held no longer."""
        if self._beyond:
            first = min(size, self._beyond)
            self._beyond -= first
            self._total.change(-first)
            size -= first
        self._give_back(size)
        if self._owed and not self._unread:
            self._let_on()

    def _let_on(self) -> None:
        """Let the peer send the rest of a message, of which all that is held is the beginning."""
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
