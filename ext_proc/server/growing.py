"""A ``grpc.aio`` server whose largest message can grow.

Rules:

1. ``grpc.aio`` fixes the maximum length of a message when a server is made, so a larger one needs
   another server on the same port. It listens before the one before it stops listening. Streams
   of that one continue; its peers are told to open new ones elsewhere.
2. The limit never falls, and lies at a power of two and one MiB, so that replacements are few.
3. A port in use is an error, although replacements share it.

What ``grpc.aio`` cannot bound is listed in ``docs/reference/transport.md``.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.server.port import AGE_GRACE_S, ENDLESS
from tidegate_common.tls.rpc import add_port, age_options, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.server.port import PortSecurity

MIB: Final = 2**20
MAX_CONNECTIONS: Final = 4096
MAX_CALLS: Final = 65_536
"""Open streams of all connections; gRPC refuses further ones. Each holds about 10 KiB."""
IDLE_MS: Final = 120_000
"""Connections without streams are closed after this time, complete frames or not."""
NEVER_S: Final = 10.0 * 365 * 86_400
"""Grace of a server that was replaced: its streams end by themselves, or with the process.

gRPC's server crashes the process when a second call of ``stop`` meets the end of the first call's
grace.
"""

OPTIONS: Final = (
    # Each HTTP request in flight holds a stream.
    ("grpc.max_concurrent_streams", 100_000),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.max_connection_idle_ms", IDLE_MS),
    # Only `identity`: a compressed message may be 1,000 times as long as what is sent.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Envoy's idle keepalive pings must not be treated as abuse.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Peers that vanished without closing their connection.
    ("grpc.keepalive_time_ms", 40_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Replacements share the port; `add_port` refuses one in use.
    ("grpc.so_reuseport", 1),
)

_log = structlog.stdlib.get_logger("ext_proc.server")


class GrowingServer:
    """The part of ``grpc.aio.Server``'s interface that the picker uses; see the module's rules.

    Args:
        limit: Maximum bytes of a message.
        security: Identity and roles; ``None`` = no TLS.
    """

    def __init__(self, limit: int, security: PortSecurity | None = None) -> None:
        self.limit = _rounded(limit)
        self._security = security
        self._handlers: list[tuple[str, tuple[Any, ...]]] = []
        self._address = ""
        self._server, self._front = self._made(self.limit)
        self._retired: list[tuple[grpc.aio.Server, asyncio.Task[None]]] = []
        self._growth: asyncio.Task[None] | None = None
        self._stopping = False

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._add("add_generic_rpc_handlers", handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Add handlers to serve, of generated code."""
        self._add("add_registered_method_handlers", service, handlers)

    def _add(self, name: str, *arguments: Any) -> None:
        self._handlers.append((name, arguments))
        getattr(self._front, name)(*arguments)

    def add_port(self, address: str) -> int:
        """Bind an address, with TLS if there is an identity, and return its port.

        Raises:
            RuntimeError: The address is in use or not local.
        """
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
                probe.listen(1)
        except (OSError, OverflowError) as error:
            raise RuntimeError(str(error)) from error
        bound = self._bind(self._server, address)
        self._address = f"{host}:{bound}"
        return bound

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        return add_port(server, address, None if self._security is None else self._security.secured)

    def _made(self, limit: int) -> tuple[grpc.aio.Server, Any]:
        """Return a new server, and what its handlers are added to."""
        options = (*OPTIONS, ("grpc.max_receive_message_length", limit))
        security = self._security
        if security is None:
            made = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
            return made, made
        most_s = security.secured.max_age_s
        made = grpc.aio.server(
            options=(*options, *age_options(most_s, AGE_GRACE_S)),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        lasting_s = dict.fromkeys(ENDLESS, most_s)
        return made, guarded(made, security.policy, security.on_refused, lasting_s)

    async def start(self) -> None:
        """Start to serve."""
        await self._server.start()

    def set_limit(self, limit: int) -> None:
        """Let messages be as long as this; a shorter limit changes nothing."""
        wanted = _rounded(limit)
        if wanted > self.limit and not self._stopping:
            self.limit = wanted
            if self._growth is None or self._growth.done():
                self._growth = asyncio.create_task(self._grow())

    async def _grow(self) -> None:
        made = 0
        while made != self.limit and not self._stopping:
            made = self.limit
            server, front = self._made(made)
            for name, arguments in self._handlers:
                getattr(front, name)(*arguments)
            try:
                self._bind(server, self._address)
            except RuntimeError as error:
                _log.error("message_limit_not_raised", limit=made, reason=str(error))
                return
            await server.start()
            before, self._server = self._server, server
            self._retired.append((before, asyncio.create_task(before.stop(NEVER_S))))
            _log.info("message_limit_raised", limit=made)

    async def stop(self, grace: float | None) -> None:
        """Accept no new streams; after ``grace`` seconds (``None`` = at once) cancel open ones."""
        self._stopping = True
        if self._growth is not None:
            await asyncio.wait({self._growth})
        if grace is None:
            for server, _ in self._retired:
                await server.stop(None)
        retired = (asyncio.shield(stopped) for _, stopped in self._retired)
        await asyncio.gather(self._server.stop(grace), *retired)


def _rounded(limit: int) -> int:
    """Return the least power of two and one MiB that is at least ``limit``."""
    return (1 << max(0, limit - MIB - 1).bit_length()) + MIB
