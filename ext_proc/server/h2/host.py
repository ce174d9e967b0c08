"""State shared by all connections of a server: handlers, bounds and open connections.

Rules:

1. Handlers are those of ``grpc``'s generic handlers and get a ``Http2Stream`` as their context:
   ``read``, ``write``, ``abort`` and iteration. Handlers that are generators are not supported.
2. At most ``MAX_CONNECTIONS`` are open at one time. A further one replaces the oldest connection
   without streams; where each has streams, it is closed at once.
3. Over TLS a call needs a role of its method. A connection that has reached its maximum age is
   left: its exchanges go on to their end, endless streams are ended.
4. What peers make the server hold is bounded (``Held``), and so is the time for which they may
   leave a frame or message incomplete (``LateInput``). What they make it do is done in portions and
   in turns (``Turns``).
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.server.h2.held import Held
from ext_proc.server.h2.late import LateInput
from ext_proc.server.h2.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ext_proc.server.h2.direct import DirectHandler
    from ext_proc.server.h2.stream import Channel, Http2Stream
    from ext_proc.server.port import PortSecurity

    Call = Callable[[Http2Stream], Awaitable[None]]

MAX_CONNECTIONS: Final = 4096
"""Each Envoy opens one connection per worker thread, and one for health checks."""

_log = structlog.stdlib.get_logger("ext_proc.server.h2")


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class Host:
    """Handlers and connections of one server.

    Args:
        limit: Maximum bytes of a message.
        security: Identity and roles; ``None`` = no TLS.
    """

    def __init__(self, limit: int, security: PortSecurity | None = None) -> None:
        self.limit = limit
        self.security = security
        self.policy = None if security is None else security.policy
        self.held = Held(limit)
        self.turns = Turns()
        self.connections: dict[Channel, None] = {}
        """The open connections, oldest first."""
        self._late = LateInput()
        self._full = False
        """``MAX_CONNECTIONS`` were open at the last new connection."""
        self._futile = False
        """Since the last look no room could be made for a refused stream."""
        self._short = False
        """Streams were refused or reset since less than the limit was held."""
        self.direct: dict[str, Callable[[str], DirectHandler]] = {}
        """Factories of message handlers by method path, called with the call's ``traceparent``
        (empty = none); other paths use ``_handlers``."""
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: dict[str, Call] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls this besides ``add_generic_rpc_handlers``."""

    def set_limit(self, limit: int) -> None:
        """Set the maximum bytes of a message; streams that are open keep theirs."""
        self.limit = limit
        self.held.admit(limit)

    def joined(self, connection: Channel) -> bool:
        """Add a connection; return ``False`` if there is no room for it."""
        full = len(self.connections) >= MAX_CONNECTIONS
        if full and not self._full:  # logged once, or a peer that keeps connecting fills the log
            _log.warning("too_many_connections", most=MAX_CONNECTIONS)
        self._full = full
        if full:
            oldest = next((each for each in self.connections if not each.streams), None)
            if oldest is None:
                return False
            del self.connections[oldest]
            oldest.leave()
            oldest.cut()
        self.connections[connection] = None
        return True

    def left(self, connection: Channel) -> None:
        """Remove a closed connection."""
        self.connections.pop(connection, None)

    def look(self, now: float) -> None:
        """End what is late; ``now`` = monotonic seconds."""
        self._late.look(self.connections, now)
        if self.security is not None:
            oldest = now - self.security.secured.max_age_s
            for connection in list(self.connections):
                if connection.since <= oldest:
                    connection.retire()
        self._futile = False
        if self._short and self.held.bytes < self.held.refuse_at:
            self._short = False

    def relieve(self) -> None:
        """End the largest holders until there is room."""
        excess = self.held.excess
        self._tell_shortage()
        holders: list[tuple[int, Callable[[], object]]] = []
        text = f"all calls together hold more than {self.held.limit} bytes"
        for connection in self.connections:
            if output := connection.waiting_output():  # resets would wait behind it
                size = output + sum(stream.held for stream in connection.streams.values())
                end_soon = partial(connection.loop.call_soon, connection.cut)
                holders.append((size, end_soon))
                continue
            holders += (
                (size, partial(connection.reset, stream, text))
                for stream in connection.streams.values()
                if (size := stream.held + connection.unsent(stream))
            )
        for size, end in sorted(holders, key=itemgetter(0), reverse=True):
            end()
            excess -= size
            if excess <= 0:
                break
        _trim()

    def refused(self) -> None:
        """Make room after a new stream was refused.

        Where that did not help, many small streams hold the most, and it is not tried again before
        the next look.
        """
        if self._futile:
            self._tell_shortage()
        else:
            self.relieve()
            self._futile = self.held.bytes >= self.held.refuse_at

    def _tell_shortage(self) -> None:
        """Log that streams are refused or reset, once until less is held."""
        if not self._short:
            _log.warning("too_much_held", bytes=self.held.bytes, most=self.held.limit)
        self._short = True

    def method(self, path: str) -> Call | None:
        """Return the coroutine function of a method, ``None`` for an unknown one."""
        if (known := self._calls.get(path)) is not None:
            return known
        details = _Details(path)
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                self._calls[path] = call = _call(found)
                return call
        return None


def _trim() -> None:
    """Return freed memory to the system, which glibc keeps where it was in use before."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _call(method: Any) -> Call:
    """Return a coroutine function that runs a method's handler on a stream."""
    run = next(
        behaviour
        for behaviour in (
            method.stream_stream,
            method.stream_unary,
            method.unary_stream,
            method.unary_unary,
        )
        if behaviour is not None
    )
    if inspect.isasyncgenfunction(run):
        raise TypeError("generator handlers are not supported: write to the context")
    read, write = method.request_deserializer, method.response_serializer
    takes_stream, answers_stream = method.request_streaming, method.response_streaming

    async def call(stream: Http2Stream) -> None:
        stream.typed(read, write)
        request: Any = stream
        if not takes_stream:
            request = await stream.read()
            if request is grpc.aio.EOF:
                await stream.abort(grpc.StatusCode.UNIMPLEMENTED, "no message")
        answer = await run(request, stream)
        if not answers_stream:
            await stream.write(answer)

    return call
