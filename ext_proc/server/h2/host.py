"""State shared by all connections of a server: handlers, bounds and open connections.

Rules:

1. Handlers are those of ``grpc``'s generic handlers and get a ``Http2Stream`` as their context:
   ``read``, ``write``, ``abort`` and iteration. Handlers that are generators are not supported.
2. At most ``MAX_CONNECTIONS`` are open at one time; a further one is closed at once.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.server.h2.stream import Beyond

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ext_proc.server.h2.direct import DirectHandler
    from ext_proc.server.h2.stream import Channel, Http2Stream

    Call = Callable[[Http2Stream], Awaitable[None]]

MAX_CONNECTIONS: Final = 4096
"""Each Envoy opens one connection per worker thread, and one for health checks."""
LONG: Final = 4
"""Messages of the maximum size that may be held in all, beyond the bytes the windows count."""

_log = structlog.stdlib.get_logger("ext_proc.server.h2")


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class Host:
    """Handlers and connections of one server.

    Args:
        limit: Maximum bytes of a message.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.beyond = Beyond(LONG * limit)
        self.connections: set[Channel] = set()
        self._full = False
        """A connection was refused, and none was accepted since."""
        self.direct: dict[str, Callable[[], DirectHandler]] = {}
        """Factories of message handlers by method path; other paths use ``_handlers``."""
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: dict[str, Call] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls this besides ``add_generic_rpc_handlers``."""

    def joined(self, connection: Channel) -> bool:
        """Add a connection; return ``False`` if ``MAX_CONNECTIONS`` are open."""
        if len(self.connections) >= MAX_CONNECTIONS:
            if not self._full:  # logged once, or a peer that keeps connecting fills the log
                _log.warning("too_many_connections", most=MAX_CONNECTIONS)
            self._full = True
            return False
        self._full = False
        self.connections.add(connection)
        return True

    def left(self, connection: Channel) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)

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
