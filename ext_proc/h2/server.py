"""A gRPC server with the part of ``grpc.aio.Server`` that the picker uses.

It takes gRPC's own handlers, so that services do not know over what they are served.

Law:

1. Handlers are those of ``grpc``'s generic handlers, and get a ``Stream`` for their context:
   ``read``, ``write``, ``abort`` and iteration. Handlers that yield are not offered.
2. Messages are not compressed, and deadlines are the callers' (``Connection``, law 6).
3. At most ``MAX_CONNECTIONS`` at one time; a further one is closed at once. One whose peer is gone
   without a word, or reads nothing, is closed after ``DEAD_S`` by the kernel.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.h2.connection import Connection
from ext_proc.h2.stream import Beyond

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ext_proc.h2.direct import Answers
    from ext_proc.h2.stream import Stream

    Call = Callable[[Stream], Awaitable[None]]

MAX_CONNECTIONS: Final = 4096
"""Each Envoy has one for each of its threads, and one for health checks."""
LONG: Final = 4
"""So many messages of the largest size may be held in all, beside what the windows count."""
DEAD_S: Final = 60
PROBES: Final = 3
ROUND_TRIP_S: Final = 0.02
"""Between the two words that a peer shall open no more streams: what it had sent before the first
arrives."""
BACKLOG: Final = 1024
MAX_PORT: Final = 65_535

_log = structlog.stdlib.get_logger("ext_proc.h2")


class _Details(grpc.HandlerCallDetails):
    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()


class Http2Server:
    """Serves gRPC's handlers.

    Args:
        limit: Most bytes of a message.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.beyond = Beyond(LONG * limit)
        self.connections: set[Connection] = set()
        self._full = False
        """A connection was turned away, and none taken since."""
        self.direct: dict[str, Callable[[], Answers]] = {}
        """What makes the answers of a call, by path; other paths have handlers."""
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: dict[str, Call] = {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve these too."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls it beside the generic one."""

    def add_insecure_port(self, address: str) -> int:
        """Take an address, and return its port.

        Raises:
            RuntimeError: It is taken or none of this machine's, as with gRPC's own.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        if int(port) > MAX_PORT:
            raise RuntimeError(f"no port {port}")
        try:
            bound = socket.create_server(
                (host, int(port)), family=family, backlog=BACKLOG, dualstack_ipv6=both
            )
        except OSError as error:
            raise RuntimeError(str(error)) from error
        _set_up(bound)
        self._sockets.append(bound)
        return int(bound.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            made: Any = partial(Connection, self)  # an `asyncio.Protocol` but for its name
            server = await loop.create_server(made, sock=bound, backlog=BACKLOG)
            self._servers.append(server)

    async def stop(self, grace: float | None) -> None:
        """Take no new streams; after ``grace`` seconds (``None`` = at once) end those open."""
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()
        if grace:
            for connection in list(self.connections):
                connection.announce_end()
            await asyncio.sleep(min(ROUND_TRIP_S, grace))
            for connection in list(self.connections):
                connection.leave()
            if under_way := self._under_way():
                await asyncio.wait([waiter for _, waiter in under_way], timeout=grace)
        if under_way := self._under_way():
            for stream, _ in under_way:
                stream.cut()
            await asyncio.wait([waiter for _, waiter in under_way])
        for connection in list(self.connections):
            connection.leave()
            connection.cut()

    # --- The connections' side --------------------------------------------------------------------

    def joined(self, connection: Connection) -> bool:
        """Take a connection; return whether there is room for it."""
        if len(self.connections) >= MAX_CONNECTIONS:
            if not self._full:  # once, or whoever connects fills the log
                _log.warning("too_many_connections", most=MAX_CONNECTIONS)
            self._full = True
            return False
        self._full = False
        self.connections.add(connection)
        return True

    def left(self, connection: Connection) -> None:
        """Take that a connection is gone."""
        self.connections.discard(connection)

    def method(self, path: str) -> Call | None:
        """Return what runs a call of a method, ``None`` for an unknown one."""
        if (known := self._calls.get(path)) is not None:
            return known
        details = _Details(path)
        for handler in self._handlers:
            found = handler.service(details)
            if found is not None:
                self._calls[path] = call = _call(found)
                return call
        return None

    def _under_way(self) -> list[tuple[Stream, asyncio.Future[None]]]:
        return [
            (stream, waiter)
            for connection in self.connections
            for stream in connection.streams.values()
            if (waiter := stream.waiter()) is not None
        ]


def _set_up(listener: socket.socket) -> None:
    """Let the kernel send at once and close connections whose peer is gone: they inherit it."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    each = DEAD_S // (PROBES + 1)
    for name, value in (
        ("TCP_KEEPIDLE", each),
        ("TCP_KEEPINTVL", each),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", DEAD_S * 1000),
    ):
        if hasattr(socket, name):  # not each system has each
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _call(method: Any) -> Call:
    """Return what runs a method's handler on a stream."""
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
        raise TypeError("handlers that yield are not served: write to the context")
    read, write = method.request_deserializer, method.response_serializer
    takes_stream, answers_stream = method.request_streaming, method.response_streaming

    async def call(stream: Stream) -> None:
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
