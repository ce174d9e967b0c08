"""The sending half of an HTTP/2 connection.

Rules:

1. Output is written once per iteration of the loop, however many streams wrote. Replies that direct
   streams (``direct``) gave at once are written with the chunk of input that requested them.
2. A peer that does not read its replies is not read from: writers wait (``Http2Stream.write``), so
   their windows close.
3. What waits to be sent counts as held by the peer (``Held``), at the latest once per iteration.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

import ngh2

from ext_proc.server.h2.limits import UNSENT
from ext_proc.server.h2.stream import HIGH, Channel

if TYPE_CHECKING:
    from ext_proc.server.h2.host import Host
    from ext_proc.server.h2.stream import Http2Stream

HEAD: Final = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
)
"""Response headers of a call."""
_NO_ERROR: Final = 0


class Http2Output(Channel):
    """Sends what streams write; ``Http2Connection`` adds the receiving half.

    Args:
        server: Server that accepted the connection.
        h2: Protocol state.
    """

    def __init__(self, server: Host, h2: ngh2.Connection) -> None:
        self.loop = asyncio.get_running_loop()
        self.streams: dict[int, Http2Stream] = {}
        self.turns = server.turns
        self._server = server
        self._h2 = h2
        self._transport: Any = None
        self._paused = False
        self._flushes = False
        self._taking = False
        """Received bytes are being processed; output is flushed afterwards."""
        self._early: set[int] = set()
        """Streams fully answered while their peer may still send."""
        self._writers: dict[asyncio.Future[None], Http2Stream] = {}
        """Writers that wait until less of their stream is unsent."""
        self._leaving = False
        self._unsent = 0
        """Unsent bytes, as counted in what the server holds."""

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume sending."""
        self._paused = False
        self._flush()

    def send(self, stream: Http2Stream, data: bytes) -> bool:
        """Send bytes of an open stream; return whether its writer has to wait."""
        if not stream.headed:
            stream.headed = True
            self._h2.send_response(stream.number, HEAD)
        self._h2.send_data(stream.number, data)
        self._flush_soon()
        return self._held_up(stream)

    async def drained(self, stream: Http2Stream) -> None:
        """Wait until little of a stream is unsent, or the stream is closed."""
        while not stream.closed and self._held_up(stream):
            self._writers[waiter := self.loop.create_future()] = stream
            try:
                await waiter
            finally:
                self._writers.pop(waiter, None)

    def unsent(self, stream: Http2Stream) -> int:
        """Return the bytes of a stream that wait to be sent."""
        return self._h2.queued_body_size(stream.number)

    def waiting_output(self) -> int:
        """Return the bytes of a connection whose peer does not read, 0 for any other."""
        if not self._paused:
            return 0
        written: int = self._transport.get_write_buffer_size()
        return written + self._h2.queued_body_size()

    # --- Of the receiving half --------------------------------------------------------------------

    @abstractmethod
    def _take_events(self) -> Any:
        """Take what has arrived, and return it."""

    @abstractmethod
    def _broken(self, error: ngh2.NGH2Error) -> None:
        """End the connection after a protocol error."""

    # --- Within -----------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flushes and not self._taking:
            self._flushes = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if self._transport.is_closing():
            return
        if self._paused:
            self._count_unsent(self.waiting_output())
            return
        try:
            self._send_ready()
            if self._early:
                self._reset_answered()
                self._send_ready()
        except ngh2.NGH2Error as error:
            self._broken(error)
            return
        self._take_events()
        if (unsent := self._h2.queued_body_size()) != self._unsent:
            self._count_unsent(unsent)
        if self._writers:
            self._wake_writers()
        if self._leaving and not self.streams:
            self.cut()

    def _send_ready(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)

    def _count_unsent(self, unsent: int) -> None:
        held = self._server.held
        held.bytes += unsent - self._unsent
        self._unsent = unsent
        if held.bytes > held.limit:
            self._server.relieve()

    def _reset_answered(self) -> None:
        """Reset streams whose answers are sent: further input on them is irrelevant."""
        for number in [each for each in self._early if not self._h2.queued_body_size(each)]:
            self._early.discard(number)
            with contextlib.suppress(ngh2.StreamProtocolError):  # the peer ended it meanwhile
                self._h2.reset_stream(number, _NO_ERROR)

    def _held_up(self, stream: Http2Stream) -> bool:
        """Return whether too much is unsent for a stream to write more."""
        if self._paused:
            return True
        unsent = self._h2.queued_body_size()
        return unsent > HIGH and (
            unsent > UNSENT or self._h2.queued_body_size(stream.number) > HIGH
        )

    def _wake_writers(self) -> None:
        for waiter, stream in self._writers.items():
            if not waiter.done() and (stream.closed or not self._held_up(stream)):
                waiter.set_result(None)
