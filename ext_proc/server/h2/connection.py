"""One HTTP/2 connection of a peer, between the loop's transport and the streams' handlers.

Rules:

1. Everything runs in the loop's thread: bytes in, events, handlers' tasks, bytes out.
2. Output is written once per iteration of the loop, however many streams wrote. Replies that direct
   streams (``direct``) gave at once are written with the chunk of input that requested them.
3. A stream's handler runs until it returns, or until the stream or the connection is gone.
4. Bytes that are not HTTP/2 end this connection. Exceeding a bound ends the connection or the
   stream. Neither affects anything else.
5. A peer that does not read its replies is not read from: writers wait (``Http2Stream.write``), so
   their windows close. A connection that is to end is aborted ``LINGER_S`` later, whatever the peer
   has not read.
6. A caller's deadline (``grpc-timeout``) is not enforced: callers that set one reset their stream
   when it has passed, and the reset ends the handler.

Source: RFC 9113; gRPC's ``doc/PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import grpc
import ngh2
import structlog

from ext_proc.server.h2.direct import DirectStream
from ext_proc.server.h2.frames import CompressedError
from ext_proc.server.h2.limits import (
    CONFIG,
    CONNECTION_WINDOW,
    GREETING_S,
    LINGER_S,
    MAX_DETAILS,
    SETTINGS,
    UNSENT,
)
from ext_proc.server.h2.stream import HIGH, OK, AbortError, Channel, Http2Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.server.h2.host import Host

_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK_TRAILERS: Final = ((b"grpc-status", b"0"),)
_NO_GRPC: Final = ((b":status", b"415"),)
_GRPC: Final = b"application/grpc"
_NO_ERROR: Final = 0
_DATA: Final = ngh2.DataReceived
_REQUEST: Final = ngh2.RequestReceived
_CLOSED: Final = ngh2.StreamClosed
_PLAIN: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters left unescaped in a status message, besides letters and digits."""

_log = structlog.stdlib.get_logger("ext_proc.server.h2")


class Http2Connection(Channel):
    """The event loop's protocol object (``asyncio.Protocol``) of one connection.

    It does not inherit from ``asyncio.Protocol``, so that it can be compiled; loops only call its
    methods.

    Args:
        server: Server that accepted the connection.
    """

    def __init__(self, server: Host) -> None:
        self.loop = asyncio.get_running_loop()
        self.streams: dict[int, Http2Stream] = {}
        self.ready: list[Http2Stream] = []
        self._server = server
        self._h2 = ngh2.Connection(ngh2.Role.SERVER, CONFIG)
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
        self._greeting: asyncio.TimerHandle | None = None

    # --- The loop's side --------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Register the connection and send the HTTP/2 preface."""
        self._transport = transport
        if not self._server.joined(self):
            transport.abort()
            return
        self._greeting = self.loop.call_later(GREETING_S, self.cut)
        self._h2.initiate_connection(SETTINGS)
        self._h2.set_local_window_size(CONNECTION_WINDOW)
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        """End all streams."""
        self._server.left(self)
        self._end()

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self._transport.is_closing():
            return
        try:
            self._h2.receive_data(data)
        except ngh2.NGH2Error as error:
            self._broken(error)
            return
        self._taking = True
        self._take_events()
        answered = bool(self.ready)
        while self.ready:
            ready, self.ready = self.ready, []
            for stream in ready:
                stream.pump()
        self._taking = False
        if answered:
            self._flush()
        else:
            self._flush_soon()

    def eof_received(self) -> None:
        """Let the transport close: the peer accepts no answer."""

    def pause_writing(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume sending."""
        self._paused = False
        self._flush()

    # --- The streams' side ------------------------------------------------------------------------

    def send(self, stream: Http2Stream, data: bytes) -> bool:
        """Send bytes of an open stream; return whether its writer has to wait."""
        if not stream.headed:
            stream.headed = True
            self._h2.send_response(stream.number, _HEAD)
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

    def consumed(self, number: int, size: int) -> None:
        """Let the peer send ``size`` more bytes on a stream."""
        if size and not self._transport.is_closing():
            self._h2.acknowledge_received_data(size, number)
            self._flush_soon()

    # --- The server's side ------------------------------------------------------------------------

    def announce_end(self) -> None:
        """Ask the peer to open no more streams; those under way are served."""
        if not self._transport.is_closing():
            self._h2.send_shutdown_notice()
            self._flush()

    def leave(self) -> None:
        """Accept no more streams, and close once none is open."""
        if not self._transport.is_closing() and not self._leaving:
            self._leaving = True
            self._h2.send_goaway()
            self._flush()

    def cut(self) -> None:
        """Send what is ready, and close."""
        if self._transport.is_closing():
            return
        try:
            self._transport.write(self._h2.data_to_send())
        except ngh2.NGH2Error as error:
            _log.debug("nothing_to_say", error=str(error))
        self._transport.close()
        self.loop.call_later(LINGER_S, self._transport.abort)
        self._end()  # streams can send nothing from here on

    # --- Within -----------------------------------------------------------------------------------

    def _take_events(self) -> None:
        # By identity: events have no subclasses, and structural patterns cost twice as much.
        for event in self._h2.events():
            kind: type[Any] = type(event)
            each: Any = event
            if kind is _DATA:
                self._take(each.stream_id, each.data, each.end_stream)
            elif kind is _REQUEST:
                self._open(each.stream_id, each.headers, each.end_stream)
            elif kind is _CLOSED:
                self._close(each.stream_id)
            elif kind is ngh2.TrailersReceived:
                self._take(each.stream_id, b"", True)
            elif kind is ngh2.SettingsReceived:
                self._greeted()
            elif kind is ngh2.ConnectionClosed:
                self.cut()
                return

    def _take(self, number: int, data: bytes, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is None or stream.answered:
            self.consumed(number, len(data))
            return
        if data:
            try:
                stream.feed(data)
            except ValueError as error:
                self._refuse(stream, error)
                return
        if end:
            stream.end()

    def _refuse(self, stream: Http2Stream, error: ValueError) -> None:
        """End a stream whose bytes are not acceptable."""
        stream.status = (
            grpc.StatusCode.UNIMPLEMENTED
            if isinstance(error, CompressedError)
            else grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        stream.details = str(error)
        stream.close()
        self.finish(stream)

    def _open(self, number: int, headers: tuple[tuple[bytes, bytes], ...], end: bool) -> None:
        named = dict(headers)
        kind = named.get(b"content-type", b"")
        if kind != _GRPC and not kind.startswith((_GRPC + b"+", _GRPC + b";")):
            self._answer(number, _NO_GRPC, ended=end)
            return
        server = self._server
        path = named.get(b":path", b"").decode("latin-1")
        stream: Http2Stream
        if (make := server.direct.get(path)) is not None:
            stream = DirectStream(self, number, server.limit, server.beyond, make())
            self.streams[number] = stream
            if end:
                stream.end()
            return
        stream = self.streams[number] = Http2Stream(self, number, server.limit, server.beyond)
        if end:
            stream.end()
        call = server.method(path)
        if call is None:
            stream.status, stream.details = grpc.StatusCode.UNIMPLEMENTED, f"no method {path:.200}"
            self.finish(stream)
            return
        stream.task = self.loop.create_task(self._run(call, stream))

    async def _run(self, call: Callable[[Http2Stream], Any], stream: Http2Stream) -> None:
        try:
            await call(stream)
        except asyncio.CancelledError:
            if stream.closed:
                return
            stream.status = grpc.StatusCode.CANCELLED
        except AbortError:
            pass
        except Exception:  # noqa: BLE001 - a handler's bug ends its own call only
            if stream.closed:
                return
            stream.status = grpc.StatusCode.UNKNOWN
            _log.exception("handler_failed")
        if not stream.closed:
            self.finish(stream)

    def finish(self, stream: Http2Stream) -> None:
        """Send the status of an open stream."""
        stream.answered = True
        trailers: tuple[tuple[bytes, bytes], ...] = _OK_TRAILERS
        if stream.status is not OK:
            details = quote(stream.details[:MAX_DETAILS], safe=_PLAIN, errors="replace")
            trailers = (
                (b"grpc-status", str(stream.status.value[0]).encode()),
                (b"grpc-message", details.encode()),
            )
        if not stream.headed:
            self._answer(stream.number, _HEAD + trailers, ended=stream.ended)
            return
        try:  # noqa: SIM105 - a context manager costs as much again
            self._h2.send_trailers(stream.number, trailers)
        except ngh2.StreamProtocolError:  # see `_answer`
            pass
        self._answered(stream.number, ended=stream.ended)

    def _answer(
        self, number: int, headers: tuple[tuple[bytes, bytes], ...], *, ended: bool
    ) -> None:
        """Answer with headers only."""
        # The peer may have reset the stream in the same chunk of input; that event follows.
        with contextlib.suppress(ngh2.StreamProtocolError):
            self._h2.send_response(number, headers, end_stream=True)
        self._answered(number, ended=ended)

    def _answered(self, number: int, *, ended: bool) -> None:
        if not ended:
            self._early.add(number)
        self._flush_soon()

    def _close(self, number: int) -> None:
        self._early.discard(number)
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.close()

    def _flush_soon(self) -> None:
        if not self._flushes and not self._taking:
            self._flushes = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if self._paused or self._transport.is_closing():
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
        if self._writers:
            self._wake_writers()
        if self._leaving and not self.streams:
            self.cut()

    def _send_ready(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)

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

    def _greeted(self) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None

    def _broken(self, error: ngh2.NGH2Error) -> None:
        _log.info("connection_protocol_error", error=str(error))
        self.cut()

    def _end(self) -> None:
        """Close all streams: their peer is gone."""
        self._greeted()
        self._early.clear()
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.close()
        self._wake_writers()
