"""Connections over TLS between the pickers of a group, up to the point where both may use them.

Rules:

1. Both sides present certificates. A peer without the role ``picker`` is refused, whichever side
   it is on; the host in its address does not matter, because pickers move.
2. At most ``MAX_HANDSHAKES`` accepted connections are under way, each for ``WITHIN_S``.
3. A connection ends at the maximum age of connections over TLS. The reader makes another.
4. Connections do not delay small records, and end ``UNACKNOWLEDGED_MS`` after a host is lost.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Final

from tidegate_common.tls.contexts import client_context, peer_of, server_context
from tidegate_common.tls.roles import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_common.tls.settings import Secured

WITHIN_S: Final = 2.0
MAX_HANDSHAKES: Final = 32
UNACKNOWLEDGED_MS: Final = 10_000
PROTOCOL: Final = "tidegate-group"


class RefusedMemberError(OSError):
    """A peer is no picker; the message says why."""


class GroupPort:
    """The port on which a picker's records are read, and the way to those of others.

    Args:
        secured: Identity and roles.
        on_refused: Called with address, names and reason of each refusal.
        admit: Takes an accepted connection of a picker.
        drop: Closes it.
    """

    def __init__(
        self,
        secured: Secured,
        on_refused: Callable[[str, Peer, str], None],
        admit: Callable[[socket.socket], None],
        drop: Callable[[socket.socket], None],
    ) -> None:
        self._secured = secured
        self._on_refused = on_refused
        self._admit = admit
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._context = server_context(secured.identity, "required", [PROTOCOL])
        self._server: socket.socket | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._ends: dict[socket.socket, asyncio.TimerHandle] = {}

    def open(self, address: str) -> str:
        """Listen; return the address with the port that was bound.

        Raises:
            OSError: The address cannot be bound.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, int(port)), family=family, backlog=MAX_HANDSHAKES)
        server.setblocking(False)
        self._server = server
        self._loop.add_reader(server, self._accept, server)
        return f"{address.rpartition(':')[0]}:{server.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening and end what is under way; further calls do nothing."""
        server, self._server = self._server, None
        if server is not None:
            self._loop.remove_reader(server)
            server.close()
        for task in self._handshakes:
            task.cancel()
        for timer in self._ends.values():
            timer.cancel()
        self._ends.clear()

    async def connect(self, address: str) -> tuple[socket.socket, Peer]:
        """Return a connection to a picker's port, unused yet, and the names in its certificate.

        Raises:
            OSError: It cannot be reached within ``WITHIN_S``, or is refused.
        """
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(WITHIN_S):
            found = await self._loop.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
            family, kind, protocol, _, where = found[0]
            plain = socket.socket(family, kind, protocol)
            plain.setblocking(False)
            context = client_context(self._secured.identity.material)
            context.check_hostname = False  # rule 1
            context.set_alpn_protocols([PROTOCOL])
            try:
                await self._loop.sock_connect(plain, where)
                return await self._shaken(plain, context, address, server_side=False)
            except BaseException:
                plain.close()
                raise

    def _accept(self, server: socket.socket) -> None:
        try:
            plain, where = server.accept()
        except OSError:
            return
        if len(self._handshakes) >= MAX_HANDSHAKES:
            plain.close()
            return
        plain.setblocking(False)
        task = self._loop.create_task(self._serve(plain, f"{where[0]}:{where[1]}"))
        self._handshakes.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self._handshakes.discard(task)
            plain.close()  # unless TLS has taken it; a task that never began has not

        task.add_done_callback(done)

    async def _serve(self, plain: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                sock, _ = await self._shaken(plain, self._context, address, server_side=True)
        except (OSError, TimeoutError) as error:
            if isinstance(error, ssl.SSLError):
                self._on_refused(address, Peer(), f"no handshake as a picker: {error.reason}")
            return
        now = self._loop.time()
        self._ends = {each: timer for each, timer in self._ends.items() if timer.when() > now}
        self._ends[sock] = self._loop.call_later(self._secured.max_age_s, self._drop, sock)
        self._admit(sock)

    async def _shaken(
        self, plain: socket.socket, context: ssl.SSLContext, address: str, *, server_side: bool
    ) -> tuple[ssl.SSLSocket, Peer]:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        sock = context.wrap_socket(plain, server_side=server_side, do_handshake_on_connect=False)
        try:
            while True:
                try:
                    sock.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._readiness(sock, self._loop.add_reader, self._loop.remove_reader)
                except ssl.SSLWantWriteError:
                    await self._readiness(sock, self._loop.add_writer, self._loop.remove_writer)
            return sock, self._judged(sock, address)
        except BaseException:
            sock.close()
            raise

    async def _readiness(
        self,
        sock: ssl.SSLSocket,
        add: Callable[..., object],
        remove: Callable[[ssl.SSLSocket], object],
    ) -> None:
        ready = self._loop.create_future()
        add(sock, _set, ready)
        try:
            await ready
        finally:
            remove(sock)

    def _judged(self, sock: ssl.SSLSocket, address: str) -> Peer:
        peer = peer_of(_Shown(sock))
        if "picker" in self._secured.table.of(peer):
            return peer
        reason = f"a group of pickers needs the role picker; this peer ({peer}) has it not"
        self._on_refused(address, peer, reason)
        raise RefusedMemberError(reason)


class _Shown:
    """A socket as ``peer_of`` reads transports."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def get_extra_info(self, _: str) -> ssl.SSLSocket:
        """Return what knows the peer's certificate."""
        return self._sock


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
