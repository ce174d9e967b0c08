"""Reads one engine's KV events over ZMQ: a SUB socket, and a DEALER socket for replays.

Source: vLLM's ``ZmqEventPublisher``. A published message is topic, number (8 bytes, big-endian) and
batch. A replay request is an empty frame and the first number wanted. Each reply is an empty frame,
topic, number and batch (0.32.0, recorded); releases before it had no topic there. The last reply
has the number -1.

Rules:

1. A message has at most ``MAX_BATCH_BYTES``, and at most ``QUEUE`` messages are queued; messages
   lost by a slow reader are a gap like any other.
2. Each new connection begins with a replay from batch 0, so that a picker that starts late learns
   the current content of the cache.
3. At most ``MAX_REPLAYS`` replays are requested to close one gap; each ends when nothing has
   arrived for ``REPLAY_S``.
4. After ``BURST`` messages the subscriber yields to other tasks. The replays of all engines take
   turns of as many, and each turn is followed by a pause of the same length: the histories of a
   fleet, which a new picker reads at once, take half of the event loop's time, and requests that
   come meanwhile are decided as usual (``routing.relief``).
5. Only a cancellation ends ``run``; failed sockets are reopened after ``RETRY_S``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from ext_proc.telemetry.kv_events.decode import MAX_BATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ext_proc.telemetry.kv_events.follower import Follower

QUEUE: Final = 512
REPLAY_QUEUE: Final = 20_000
"""vLLM keeps 10,000 batches, sends them at once, and drops those that do not fit."""
MAX_REPLAYS: Final = 4
REPLAY_S: Final = 2.0
RETRY_S: Final = 1.0
BURST: Final = 16
HEARTBEAT_MS: Final = 2000
RECONNECT_MS: Final = (100, 2000)
_NUMBER: Final = 8
_END: Final = (-1).to_bytes(_NUMBER, "big", signed=True)
_PUBLISHED: Final = 3
_REPLAYED: Final = frozenset({3, 4})
"""Frames of a reply to a replay request: without and with the topic."""
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class EngineAddresses(NamedTuple):
    """Addresses at which one engine publishes."""

    events: str
    """``tcp://host:port``."""
    replay: str | None
    topic: str


class Subscriber:
    """Feeds one follower.

    Args:
        context: The process's ZMQ context.
        addresses: Addresses at which the engine publishes.
        follower: Receives the batches.
        turns: Held for a turn of a replay; one for all subscribers.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: EngineAddresses,
        follower: Follower,
        turns: asyncio.Lock,
    ) -> None:
        self._context = context
        self._addresses = addresses
        self._follower = follower
        self._turns = turns
        self.connected = False

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
            except (zmq.ZMQError, OSError) as error:
                _log.warning("kv_events_failed", address=self._addresses.events, reason=str(error))
            except Exception:  # noqa: BLE001 - one engine's failure must not end the others
                _log.exception("kv_events_failed", address=self._addresses.events)
            self.connected = False
            self._follower.lost()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        with self._open(zmq.SUB, QUEUE) as socket:
            watched = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            try:
                with _Activity(socket, watched) as activity:
                    socket.subscribe(self._addresses.topic)
                    socket.connect(self._addresses.events)
                    while True:
                        await self._read(socket, watched)
                        await activity.wait()
            finally:
                socket.disable_monitor()
                watched.close(0)

    async def _read(self, socket: zmq.Socket[bytes], watched: zmq.Socket[bytes]) -> None:
        """Read all pending messages; the descriptor signals once for many of them."""
        taken = 0
        while True:
            if _readable(watched):
                event = recv_monitor_message(watched, zmq.NOBLOCK)["event"]
                self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                self._follower.lost()
                if self.connected and self._follower.can_replay:
                    await self._replay()
            elif _readable(socket):
                await self._take(socket.recv_multipart(zmq.NOBLOCK))
                taken += 1
                if taken % BURST == 0:
                    await asyncio.sleep(0)
            else:
                return

    async def _take(self, parts: list[bytes]) -> None:
        if len(parts) != _PUBLISHED or len(parts[1]) != _NUMBER:
            self._follower.counts["unreadable"] += 1
            return
        number, payload = int.from_bytes(parts[1], "big"), parts[2]
        if self._follower.live(number, payload):
            return
        await self._replay()
        if not self._follower.live(number, payload):
            self._follower.give_up(number)
            self._follower.live(number, payload)

    async def _replay(self) -> None:
        """Request the missing batches, repeatedly if replies were lost in transit."""
        for _ in range(MAX_REPLAYS):
            self._follower.counts["replays"] += 1
            before = self._follower.missing
            if await self._replay_once() or self._follower.missing == before:
                return

    async def _replay_once(self) -> bool:
        """Request one replay; return whether it arrived completely and without gaps."""
        follower, address = self._follower, self._addresses.replay
        if address is None:
            return True
        with self._open(zmq.DEALER, REPLAY_QUEUE) as socket:
            first = True
            with _Activity(socket) as activity:
                socket.connect(address)
                socket.send_multipart([b"", follower.missing.to_bytes(_NUMBER, "big")], zmq.NOBLOCK)
                while True:
                    while _readable(socket):
                        async with self._turns:
                            began = time.monotonic()
                            whole = self._take_replies(socket, first=first)
                            await asyncio.sleep(time.monotonic() - began)
                        if whole is not None:
                            return whole
                        first = False
                    try:
                        async with asyncio.timeout(REPLAY_S):
                            await activity.wait()
                    except TimeoutError:
                        follower.counts["unanswered"] += 1
                        return False

    def _take_replies(self, socket: zmq.Socket[bytes], *, first: bool) -> bool | None:
        """Read a turn's replies; return as ``_replay_once`` does, ``None`` = there may be more."""
        follower = self._follower
        for _ in range(BURST):
            if not _readable(socket):
                break
            parts = socket.recv_multipart(zmq.NOBLOCK)
            if len(parts) not in _REPLAYED or len(parts[-2]) != _NUMBER:
                follower.counts["unreadable"] += 1
                return False
            *_, packed, payload = parts
            if packed == _END:
                follower.replay_ended(empty=first)
                return True
            if not follower.replayed(int.from_bytes(packed, "big"), payload, first=first):
                return False
            first = False
        return None

    @contextmanager
    def _open(self, kind: int, queue: int) -> Iterator[zmq.Socket[bytes]]:
        socket = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.RCVHWM, queue)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
            socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2 * HEARTBEAT_MS)
            yield socket
        finally:
            socket.close(0)


class _Activity:
    """Tells one task when its sockets are active; a context manager.

    A descriptor stays readable until the events of its socket are read. While the task does not
    wait, as in a replay's pauses, it would wake the event loop again and again, so one that is not
    read at once is watched again at the next wait.

    Args:
        sockets: The sockets; they are open for as long as this.
    """

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._active = asyncio.Event()
        self._descriptors = tuple(each.FD for each in sockets)
        self._watched: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._watched:
            self._loop.remove_reader(each)

    async def wait(self) -> None:
        """Wait until a socket was active since the last wait."""
        if len(self._watched) < len(self._descriptors):
            for each in self._descriptors:
                self._loop.add_reader(each, self._signalled, each)
            self._watched.update(self._descriptors)
        await self._active.wait()
        self._active.clear()

    def _signalled(self, descriptor: int) -> None:
        if self._active.is_set():
            self._loop.remove_reader(descriptor)
            self._watched.discard(descriptor)
        self._active.set()


def _readable(socket: zmq.Socket[bytes]) -> bool:
    # The plain integer: the attribute is an enumeration member, which costs ten times as much.
    return bool(socket.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator] # an integer
