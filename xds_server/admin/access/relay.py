"""A Unix socket in front of gRPC, which does not tell which user connects to one.

Rules:

1. The kernel says which user has connected.
2. Each connection goes on to gRPC by one whose address is a random name (an abstract socket). As
   long as the connection exists no other process can have that name, and gRPC tells it with each
   call.
3. A name is known before its connection exists, and forgotten before it ends. A call from any other
   address has no user.
4. At most ``MAX_CONNECTIONS`` exist, and ``MAX_OF_ONE`` of one user, so that none keeps others out;
   further ones are closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from tidegate_common.unix import LocalUser, connected_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate_common.unix import UnixListener

MAX_CONNECTIONS: Final = 256
MAX_OF_ONE: Final = 64
CHUNK_BYTES: Final = 64 * 1024
ABSTRACT: Final = "unix-abstract:"
"""Begin of abstract sockets' addresses in gRPC."""

_log = structlog.stdlib.get_logger(__name__)


class NamedUser(NamedTuple):
    """A user who has connected, and the name of that user."""

    user: LocalUser
    name: str


class UserRelay:
    """Passes connections on; see the module's rules.

    Args:
        name_of: Returns a user's name; it may block, and is called in worker threads.
    """

    def __init__(self, name_of: Callable[[LocalUser], str] = lambda user: user.name) -> None:
        self._inner = f"tidegate-{secrets.token_hex(16)}"
        self._name_of = name_of
        self._users: dict[str, NamedUser] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def inner_address(self) -> str:
        """Where gRPC must listen."""
        return f"{ABSTRACT}{self._inner}"

    def user_of(self, peer: str) -> NamedUser | None:
        """Return the user of a call; ``None`` = it did not come through this socket.

        Args:
            peer: The peer's address in gRPC's form.
        """
        return self._users.get(peer.removeprefix(ABSTRACT)) if peer.startswith(ABSTRACT) else None

    async def serve(self, listener: UnixListener) -> None:
        """Begin to pass on what connects to a socket; closing it is the caller's task."""
        server = await asyncio.start_unix_server(self._connected, sock=listener.socket)
        self._servers.append(server)

    async def stop(self) -> None:
        """Stop, and end all connections."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._pass_on(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = f"tidegate-{secrets.token_hex(16)}"
        try:
            user = connected_user(writer.get_extra_info("socket"))
            if sum(each.user.uid == user.uid for each in self._users.values()) >= MAX_OF_ONE:
                return
            self._users[name] = NamedUser(user, "")  # counted from now on
            self._users[name] = NamedUser(user, await asyncio.to_thread(self._name_of, user))
            inward, outward = await self._inward(name)
            try:
                await _both(reader, writer, inward, outward)
            finally:
                self._users.pop(name, None)
                outward.transport.abort()
        except OSError as error:
            _log.debug("admin_connection_ended", error=str(error))
        finally:
            self._users.pop(name, None)
            writer.close()  # after what is on its way to the client

    async def _inward(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(f"\0{name}")
            await asyncio.get_running_loop().sock_connect(connection, f"\0{self._inner}")
            return await asyncio.open_unix_connection(sock=connection)
        except BaseException:
            connection.close()
            raise


async def _both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    inward: asyncio.StreamReader,
    outward: asyncio.StreamWriter,
) -> None:
    """Pass bytes in both directions until either end closes."""
    ways = {asyncio.create_task(_pump(reader, outward)), asyncio.create_task(_pump(inward, writer))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
