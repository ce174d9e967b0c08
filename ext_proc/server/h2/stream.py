"""One gRPC call as its handler sees it: the part of ``grpc.aio``'s context that handlers use.

Rules:

1. Bytes received and not read keep counting against the flow-control windows, so a peer that sends
   faster than its handler reads has to stop. The bytes of an unfinished message are returned at
   once if no complete message waits, because a handler cannot read a message before its end; so at
   most one message per stream exceeds the windows. Its length is bounded, and so is what all
   streams hold (``Held``).
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

from ext_proc.server.h2.frames import PREFIX, Deframer, framed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ext_proc.server.h2.held import Held
    from ext_proc.server.h2.turns import Turns
    from tidegate_common.tls.roles import Peer

NO_MESSAGE: Final = -1
OK: Final = grpc.StatusCode.OK
HIGH: Final = 2**16
"""Unsent bytes of a stream above which its writer waits."""


class AbortError(grpc.aio.BaseError):
    """Raised to end a call with a status that its handler chose."""


class GoneError(grpc.aio.BaseError):
    """The stream is closed: nothing can be written."""


class Channel(ABC):
    """Interface of a connection to its streams and server; ``Http2Connection`` implements it.

    It is a class, not a ``typing.Protocol``, so that compiled code calls it directly.
    """

    loop: asyncio.AbstractEventLoop
    streams: dict[int, Http2Stream]
    """Open streams by HTTP/2 stream id."""
    ready: list[Http2Stream]
    """Streams with new input; each is to be pumped."""
    incomplete: object | None
    """Mark of the input that has completed no frame so far; ``None`` if the last input did."""
    turns: Turns
    """Whose turn it is to do what is costly."""
    since: float
    """When it was opened, seconds of the loop's clock."""
    peer: Peer
    """The names of the certificate at its other end; none without TLS."""

    @abstractmethod
    def address(self) -> str:
        """Return the address at its other end, ``host:port``."""

    @abstractmethod
    def certificates(self) -> list[bytes]:
        """Return the certificate (PEM) at its other end, if it has one."""

    @abstractmethod
    def retire(self) -> None:
        """Let the peer open another connection; at the next call end what would never end."""

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
    def unsent(self, stream: Http2Stream) -> int:
        """Return the bytes of a stream that wait to be sent."""

    @abstractmethod
    def waiting_output(self) -> int:
        """Return the bytes of a connection whose peer does not read, 0 for any other."""

    @abstractmethod
    def reset(self, stream: Http2Stream, details: str) -> None:
        """End a stream that holds too much, and drop what it holds."""

    @abstractmethod
    def ask(self) -> None:
        """Ask the peer for a sign of life."""

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
        held: Counter of what all streams hold.
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
        "heard_of",
        "number",
        "status",
        "task",
        "timer",
    )

    def __init__(self, connection: Channel, number: int, limit: int, held: Held) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.headed = False
        """The response headers have been sent."""
        self.heard_of = False
        """The handler has read a message."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends the call at the caller's deadline."""
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
        self._total = held
        self._waiter: asyncio.Future[None] | None = None
        self._read: Callable[[bytes], Any] | None = None
        self._write: Callable[[Any], bytes] | None = None

    # --- Used by handlers -------------------------------------------------------------------------

    def typed(
        self, read: Callable[[bytes], Any] | None, write: Callable[[Any], bytes] | None
    ) -> None:
        """Set the message parser and serializer; ``None`` = messages are bytes."""
        self._read, self._write = read, write

    def peer(self) -> str:
        """Return the peer's address, ``host:port``."""
        return self._connection.address()

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the peer's certificate (PEM) and its names, as ``grpc.aio`` does."""
        peer = self._connection.peer
        return {
            "peer_uri": [each.encode() for each in peer.uris],
            "peer_dns": [each.encode() for each in peer.dns],
            "x509_pem_cert": self._connection.certificates(),
        }

    async def read(self) -> Any:
        """Return the next message, or ``grpc.aio.EOF`` after the last.

        Raises:
            AbortError: The message cannot be parsed.
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
        self.heard_of = True
        self._took(PREFIX + len(message))
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
            TooLargeError: A message is too large.
        """
        self._owed += len(data)
        self._total.bytes += len(data)
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
        self._deframer.drop()
        self._total.bytes -= self._owed + self._beyond
        self._beyond = 0
        self._give_back(self._owed)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def pump(self) -> None:
        """Process the messages that have arrived; here a handler reads them by itself."""

    def waiter(self) -> asyncio.Future[None] | None:
        """Return a future completed at the end of the call, ``None`` if it is over."""
        return None if self.task is None or self.task.done() else self.task

    def cut(self) -> None:
        """Cancel the call because the server stops."""
        self._cancel(grpc.StatusCode.CANCELLED)

    def expire(self, details: str) -> None:
        """End the call because a time is over."""
        if not self.closed and not self.answered:
            self.details = details
            self._cancel(grpc.StatusCode.DEADLINE_EXCEEDED)

    @property
    def held(self) -> int:
        """Received bytes that it holds."""
        return self._owed + self._beyond

    @property
    def beginning(self) -> int:
        """Bytes of the message that is incomplete."""
        return self._deframer.waiting

    @property
    def incomplete(self) -> int | None:
        """Number of the message for whose rest the call waits; ``None`` if nothing is due.

        It is ``NO_MESSAGE`` if a first message is due and has not begun.
        """
        if self.answered or self.ended or self._unread:
            return None
        if self._deframer.waiting:
            return self._deframer.completed
        return None if self.heard_of else NO_MESSAGE

    def _cancel(self, status: grpc.StatusCode) -> None:
        self.status = status
        if self.task is not None:
            self.task.cancel()

    def _took(self, size: int) -> None:
        """Release ``size`` bytes that are no longer held."""
        self._total.bytes -= size
        if self._beyond:
            first = min(size, self._beyond)
            self._beyond -= first
            size -= first
        self._give_back(size)
        if self._owed and not self._unread:
            self._let_on()

    def _let_on(self) -> None:
        """Let the peer send the rest of a message; all bytes held are its beginning."""
        self._beyond += self._owed
        self._give_back(self._owed)

    def _give_back(self, size: int) -> None:
        if size:
            self._owed -= size
            self._connection.consumed(self.number, size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
