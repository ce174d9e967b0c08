"""Hosts, their event loops and a network, in one thread under virtual time.

Rules:

1. A host has an event loop of its own, so that what it does can be held up (it is stopped) or end
   (it is killed) at any point. All loops share one line of what is due.
2. A connection is as TCP makes it: bytes arrive in order, and later where they are slow or lost.
   Where a direction is cut they wait until it is whole again, and are lost with the connection.
   A process that is killed closes its connections after what it has sent; a host that loses power
   says nothing.
3. Nothing is random but what the network's generator draws, so a seed repeats a run.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

WINDOW: Final = 2**16
"""Bytes of one direction that a reader has not read."""
AGAIN_S: Final = 0.2
"""After so long TCP sends again what was lost."""
UNACKNOWLEDGED_S: Final = 10.0
WITHIN_S: Final = 2.0
"""Longest handshake."""


class Handle:
    """A call that is due."""

    __slots__ = ("args", "call", "due", "loop")

    def __init__(self, loop: HostLoop | None, due: float, call: Any, args: tuple[Any, ...]) -> None:
        self.loop, self.due, self.call, self.args = loop, due, call, args

    def cancel(self) -> None:
        """Do not call it."""
        self.call = None

    def cancelled(self) -> bool:
        """Return whether it is not called."""
        return self.call is None

    def when(self) -> float:
        """Return when it is due."""
        return self.due


class Network:
    """Time, and the ways between hosts; see the module's rules."""

    def __init__(self, rng: Random, delay_s: float) -> None:
        self.rng = rng
        self.delay_s = delay_s
        self.now = 0.0
        self.hosts: dict[str, HostLoop] = {}
        """Hosts that run, by address."""
        self.cut: dict[tuple[str, str], int] = {}
        """Directions that nothing passes, each with the number of cuts."""
        self.slow: dict[tuple[str, str], float] = {}
        """Added seconds of a direction."""
        self.lossy: dict[tuple[str, str], float] = {}
        """Probability that bytes of a direction must be sent again."""
        self.sent = 0
        """Bytes."""
        self._due: list[tuple[float, int, Handle]] = []
        self._order = count()
        self._waiting: dict[tuple[str, str], list[tuple[Socket, bytes | None]]] = {}

    def at(self, due: float, call: Callable[..., object], *args: Any) -> Handle:
        """Call a function of the world later."""
        return self.put(Handle(None, due, call, args))

    def put(self, handle: Handle) -> Handle:
        """Take a call into the line."""
        heappush(self._due, (handle.due, next(self._order), handle))
        return handle

    def run(self, until: float) -> None:
        """Let time pass."""
        due, running = self._due, asyncio._set_running_loop
        while due and due[0][0] <= until:
            when, order, handle = heappop(due)
            if handle.call is None:
                continue
            self.now = when
            loop = handle.loop
            if loop is None:
                handle.call(*handle.args)
            elif loop.alive:
                if loop.stopped_until > when:
                    heappush(due, (loop.stopped_until, order, handle))
                    continue
                running(loop)
                try:
                    handle.call(*handle.args)
                finally:
                    running(None)
        self.now = until

    def due_of(self, loop: HostLoop) -> list[Handle]:
        """Return the calls of a host that are due, in their order."""
        until = max(self.now, loop.stopped_until)
        waiting = sorted(self._due, key=_first)
        return [each for due, _, each in waiting if each.loop is loop and due <= until]

    def way_s(self, one: str, two: str) -> float:
        """Return how long bytes take now."""
        rng = self.rng
        took = self.delay_s * (1.0 + rng.random()) + self.slow.get((one, two), 0.0)
        lossy = self.lossy.get((one, two))
        while lossy is not None and rng.random() < lossy:
            took += AGAIN_S
        return took

    def whole(self, one: str, two: str) -> bool:
        """Return whether a direction is not cut."""
        return not self.cut.get((one, two))

    def cuts(self, one: str, two: str) -> None:
        """Cut a direction once more."""
        self.cut[one, two] = self.cut.get((one, two), 0) + 1

    def mends(self, one: str, two: str) -> None:
        """Take back one cut of a direction; what has waited arrives."""
        left = self.cut[one, two] = self.cut[one, two] - 1
        if not left:
            for taker, data in self._waiting.pop((one, two), ()):
                taker.arrived(data)

    def carry(
        self, giver: Socket, taker: Socket, data: bytes | None, *, broken: bool = False
    ) -> None:
        """Send bytes; ``None`` = the end, or that the connection is broken."""
        one, two = giver.loop.address, taker.loop.address
        due = giver.last = max(giver.last, self.now + self.way_s(one, two))
        if data is not None:
            self.sent += len(data)

        def arrive() -> None:
            waiting = self._waiting.get((one, two))
            if waiting or self.cut.get((one, two)):
                self._waiting.setdefault((one, two), []).append((taker, data))
                self.at(self.now + UNACKNOWLEDGED_S, expire)
            elif broken:
                taker.broken()
            else:
                taker.arrived(data)

        def expire() -> None:
            if (taker, data) in self._waiting.get((one, two), ()):
                giver.broken()

        self.at(due, arrive)

    async def connect(self, host: HostLoop, address: str) -> Socket:
        """Return a connection to a host whose other end that host has.

        Raises:
            OSError: It cannot be reached.
        """
        own, began = host.address, self.now
        for there in (True, False, True, False):
            one, two = (own, address) if there else (address, own)
            await asyncio.sleep(self.way_s(one, two))
            other = self.hosts.get(address)
            if other is None and self.whole(own, address) and self.whole(address, own):
                raise ConnectionRefusedError("refused")
            if other is None or not self.whole(one, two) or other.stopped_until > self.now:
                await asyncio.sleep(max(0.0, began + WITHIN_S - self.now))
                raise TimeoutError("no handshake in time")
        if other is None or other.admit is None:
            raise ConnectionRefusedError("refused")
        near, far = Socket(self, host), Socket(self, other)
        near.peer, far.peer = far, near
        other.call_soon(other.admit, far)
        return near


def _first(entry: tuple[float, int, Handle]) -> tuple[float, int]:
    return entry[:2]


class Socket:
    """One end of a connection."""

    def __init__(self, network: Network, loop: HostLoop) -> None:
        self.network, self.loop = network, loop
        self.peer: Socket = self
        self.buffer = bytearray()
        self.unread = 0
        """Bytes that this end has sent and the other has not read."""
        self.last = 0.0
        self.closed = self.ended = self.reset = False
        loop.sockets[self] = None

    # --- as sockets have it -----------------------------------------------------------------------

    def fileno(self) -> int:
        """Return -1 once closed."""
        return -1 if self.closed else 3

    def setblocking(self, _: bool) -> None:
        """Never block."""

    def send(self, data: bytes) -> int:
        """Send as many bytes as there is room for."""
        if self.closed or self.reset:
            raise BrokenPipeError("reset")
        size = min(len(data), WINDOW - self.unread)
        if size <= 0:
            raise BlockingIOError
        self.unread += size
        self.network.carry(self, self.peer, bytes(data[:size]))
        return size

    def recv(self, size: int) -> bytes:
        """Return what has arrived; empty = the end."""
        if self.closed:
            raise OSError("closed")
        if self.buffer:
            data = bytes(self.buffer[:size])
            del self.buffer[:size]
            peer = self.peer
            peer.unread -= len(data)
            peer.loop.poll(peer)
            return data
        if self.reset:
            raise ConnectionResetError("reset")
        if self.ended:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        """Close; the other end learns of it after what was sent."""
        if not self.closed:
            self.closed = True
            self.loop.sockets.pop(self, None)
            self.loop.forget(self)
            if not self.reset:
                self.network.carry(self, self.peer, None)

    # --- as the network has it --------------------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        """Take bytes, or the other's end."""
        if self.closed or not self.loop.alive:
            if data is not None and not self.loop.lost_power:
                self.network.carry(self, self.peer, None, broken=True)
            return
        if data is None:
            self.ended = True
        else:
            self.buffer += data
        self.loop.poll(self)

    def broken(self) -> None:
        """Take that the connection is no more."""
        if not self.closed and self.loop.alive:
            self.reset = True
            self.loop.poll(self)


class End:
    """As ``select.epoll``: readable when a connection's other end has gone."""

    def __init__(self) -> None:
        self.socket: Socket | None = None

    def register(self, socket: Socket, _: int) -> None:
        """Look at a connection."""
        self.socket = socket
        socket.loop.ends[socket] = self

    def fileno(self) -> End:
        """Return what stands for this in the loop."""
        return self

    def close(self) -> None:
        """Look no more."""
        if self.socket is not None:
            self.socket.loop.ends.pop(self.socket, None)


class Poll:
    """As ``select.poll`` for one connection."""

    def __init__(self) -> None:
        self._socket: Socket | None = None

    def register(self, socket: Socket, _: int) -> None:
        """Look at a connection."""
        self._socket = socket

    def poll(self, _: int) -> bool:
        """Return whether there is something to read, or the end."""
        socket = self._socket
        return socket is not None and bool(socket.buffer or socket.reset or socket.ended)


class Select:
    """As the module ``select``."""

    EPOLLRDHUP = POLLIN = 0
    epoll, poll = End, Poll


class HostLoop(asyncio.AbstractEventLoop):
    """The event loop of a host's process."""

    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address
        self.alive = True
        self.lost_power = False
        self.stopped_until = 0.0
        self.admit: Callable[[Socket], None] | None = None
        """Takes an accepted connection; ``None`` = nothing listens."""
        self.sockets: dict[Socket, None] = {}
        self.ends: dict[Socket, End] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._readers: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
        self._writers: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
        self._polled: set[Any] = set()
        network.hosts[address] = self

    def do(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a function as this host would."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call(*args)
        finally:
            asyncio._set_running_loop(before)

    def end(self, *, power: bool = False) -> None:
        """End the process, or the host with it."""
        self.lost_power = power
        if self.network.hosts.get(self.address) is self:
            del self.network.hosts[self.address]
        if not power:
            for socket in tuple(self.sockets):
                socket.close()
        self.alive = False
        for task in tuple(self._tasks):
            task._log_destroy_pending = False
            self.do(task.get_coro().close)
        self._tasks.clear()

    # --- as event loops have it -------------------------------------------------------------------

    def time(self) -> float:
        """Return virtual seconds."""
        return self.network.now

    def get_debug(self) -> bool:
        """Return that nothing is to be traced."""
        return False

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self.alive

    def call_soon(self, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call after what runs now."""
        return self.network.put(Handle(self, self.network.now, call, args))

    def call_at(self, when: float, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call at a time."""
        return self.network.put(Handle(self, max(when, self.network.now), call, args))

    def call_later(self, delay: float, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call later."""
        return self.network.put(Handle(self, self.network.now + max(0.0, delay), call, args))

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> Any:
        """Run a coroutine; an error that it raises ends the run."""
        task = asyncio.Task(coro, loop=self, name=named.get("name"))
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.result()

    def add_reader(self, fd: Any, call: Any, *args: Any) -> None:
        """Call while there is something to read."""
        self._readers[fd] = (call, args)
        self.poll(fd.socket if isinstance(fd, End) else fd)

    def remove_reader(self, fd: Any) -> bool:
        """Do not."""
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, call: Any, *args: Any) -> None:
        """Call while there is room."""
        self._writers[fd] = (call, args)
        self.poll(fd)

    def remove_writer(self, fd: Any) -> bool:
        """Do not."""
        return self._writers.pop(fd, None) is not None

    def forget(self, socket: Socket) -> None:
        """Drop what a closed connection has here."""
        self._readers.pop(socket, None)
        self._writers.pop(socket, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let an error end the run."""
        raise context.get("exception") or RuntimeError(context["message"])

    # --- readiness --------------------------------------------------------------------------------

    def _due(self, socket: Socket) -> Any:
        """Return what is to be called for a connection, with its arguments."""
        gone = socket.ended or socket.reset
        if gone or socket.buffer:
            found = self._readers.get(socket)
            if found is None and gone:
                end = self.ends.get(socket)
                found = None if end is None else self._readers.get(end)
            if found is not None:
                return found
        if socket.unread < WINDOW or socket.reset:
            return self._writers.get(socket)
        return None

    def poll(self, socket: Socket) -> None:
        """Call what waits for a connection, in its turn."""
        if socket in self._polled or socket.closed or not self.alive or self._due(socket) is None:
            return
        self._polled.add(socket)
        self.call_soon(self._ready, socket)

    def _ready(self, socket: Socket) -> None:
        self._polled.discard(socket)
        due = None if socket.closed else self._due(socket)
        if due is not None:
            due[0](*due[1])
            self.poll(socket)
