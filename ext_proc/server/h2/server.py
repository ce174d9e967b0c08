"""A gRPC server with the part of ``grpc.aio.Server``'s interface that the picker uses.

It accepts gRPC's own handlers, so services do not depend on the transport.

Rules:

1. Messages are not compressed, and answers say so.
2. The kernel closes a connection after ``DEAD_S`` if its peer has vanished or reads nothing.
   ``host`` states the rules of handlers and connections.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ext_proc.server.h2.connection import Http2Connection
from ext_proc.server.h2.host import Host
from ext_proc.server.h2.late import LOOK_S
from ext_proc.server.h2.limits import GREETING_S, LINGER_S

if TYPE_CHECKING:
    from ext_proc.server.h2.stream import Http2Stream
    from ext_proc.server.port import PortSecurity

DEAD_S: Final = 60
PROBES: Final = 3
ROUND_TRIP_S: Final = 0.02
"""Seconds between the shutdown notice and GOAWAY: streams that the peer opened before it read the
notice arrive in this time."""
BACKLOG: Final = 1024
MAX_PORT: Final = 65_535


class Http2Server(Host):
    """Serves gRPC's handlers.

    Args:
        limit: Maximum bytes of a message.
        security: Identity and roles; ``None`` = no TLS.
    """

    def __init__(self, limit: int, security: PortSecurity | None = None) -> None:
        super().__init__(limit, security)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    def add_port(self, address: str) -> int:
        """Bind an address and return its port.

        Raises:
            RuntimeError: The address is in use or not local, as with gRPC's own server.
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
        """Start accepting connections."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            made: Any = partial(Http2Connection, self)  # an `asyncio.Protocol` but for its name
            server = await loop.create_server(made, sock=bound, backlog=BACKLOG, **self._tls())
            self._servers.append(server)
        self._timer = loop.call_later(LOOK_S, self._look_around)

    def _tls(self) -> dict[str, Any]:
        """Return the arguments for a listener with TLS; none without an identity."""
        if self.security is None:
            return {}
        return {
            "ssl": self.security.secured.context(["h2"]),
            "ssl_handshake_timeout": GREETING_S,
            "ssl_shutdown_timeout": LINGER_S,
        }

    def _look_around(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self._look_around)
        self.look(loop.time())

    async def stop(self, grace: float | None) -> None:
        """Accept no new streams; after ``grace`` seconds (``None`` = at once) cancel open ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()
        if grace:
            await self._let_end(grace)
        if under_way := self._under_way():
            for stream, _ in under_way:
                stream.cut()
            await asyncio.wait([waiter for _, waiter in under_way])
        for connection in list(self.connections):
            connection.leave()
            connection.cut()

    async def _let_end(self, grace: float) -> None:
        for connection in list(self.connections):
            connection.announce_end()
        await asyncio.sleep(min(ROUND_TRIP_S, grace))
        for connection in list(self.connections):
            connection.leave()
        if under_way := self._under_way():
            await asyncio.wait([waiter for _, waiter in under_way], timeout=grace)

    def _under_way(self) -> list[tuple[Http2Stream, asyncio.Future[None]]]:
        return [
            (stream, waiter)
            for connection in self.connections
            for stream in connection.streams.values()
            if (waiter := stream.waiter()) is not None
        ]


def _set_up(listener: socket.socket) -> None:
    """Disable Nagle's algorithm and make the kernel close dead connections; both are inherited."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    each = DEAD_S // (PROBES + 1)
    for name, value in (
        ("TCP_KEEPIDLE", each),
        ("TCP_KEEPINTVL", each),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", DEAD_S * 1000),
    ):
        if hasattr(socket, name):  # not every system has every option
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
