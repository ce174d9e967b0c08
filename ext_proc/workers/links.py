"""The connections between workers: Unix sockets on one machine, TLS over TCP in a group of pickers.

Rules:

1. Each worker listens on its own socket in a private folder, and dials those of all others. It
   sends its messages on accepted connections and receives its peers' on dialled ones. Connections
   of a group are made by ``group.port`` and then used in the same way.
2. A connection begins with names and a snapshot; then all messages follow in order, each once. When
   it ends, the reader discards the sender's in-flight load, and dials again for a new snapshot.
3. No worker blocks on another. Bytes that a socket does not accept at once are buffered, up to
   ``MAX_BACKLOG``; a reader that is further behind is disconnected.
4. When ``send`` returns, the bytes are in the reader's socket, unless that is full. So a reader
   that reads its socket before a decision knows everything that was sent before.
5. A message that cannot be decoded or applied ends the connection: a partial message would be worse
   than a new snapshot. So do more than ``MAX_BYTES_PER_S``.
6. A reader of a group may ask the sender on its connection, which wakes it; the answer comes among
   the messages.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from ext_proc.workers.decode import Decoder
from ext_proc.workers.records import HELLO, GarbledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ext_proc.workers.records import Message

MAX_BACKLOG: Final = 32 * 2**20
"""Maximum bytes buffered for one reader."""
MAX_READERS: Final = 256
MAX_BYTES_PER_S: Final = 2**26
"""Maximum bytes received from one peer in a second."""
WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What non-blocking sockets raise where they must wait."""
READ_BYTES: Final = 2**18
READS: Final = 8
"""Maximum reads in one call."""
LOW_BYTES: Final = 2**18
"""A reader with fewer buffered bytes gets the next part of the index."""
_GREETING: Final = len(HELLO) + 1
WITH_INDEX: Final = b"*"
"""The reader requests the prefix index too."""
EVENTS_ONLY: Final = b"-"

_log = structlog.stdlib.get_logger("ext_proc.workers")


class UnwelcomeError(Exception):
    """The connection must end; whoever raises it has said why."""


def path_of(folder: Path, worker: int) -> Path:
    """Return the path of a worker's socket."""
    return folder / f"{worker}.sock"


class _Rate:
    """Bounds what comes in a second."""

    __slots__ = ("_bytes", "_second")

    def __init__(self) -> None:
        self._second = self._bytes = 0

    def count(self, size: int, now: float) -> None:
        """Count bytes; ``now`` is the loop's time.

        Raises:
            GarbledError: They are too many.
        """
        second = int(now)
        if second != self._second:
            self._second, self._bytes = second, 0
        self._bytes += size
        if self._bytes > MAX_BYTES_PER_S:
            raise GarbledError(f"more than {MAX_BYTES_PER_S} bytes in a second")


class Outlet:
    """The sending side: messages of this worker, for all peers that dial.

    Args:
        begin: Returns the bytes with which a new connection begins, whole frames.
        rest: Yields further small frames for a reader that requested the index.
        answer: Returns the answer to what a reader asks; it raises ``GarbledError`` where a reader
            may not say that.
    """

    def __init__(
        self,
        begin: Callable[[], bytes],
        rest: Callable[[], Iterator[bytes]],
        answer: Callable[[Message], bytes],
    ) -> None:
        self._begin = begin
        self._rest = rest
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._server: socket.socket | None = None
        self._hello = HELLO
        self._greeting: dict[socket.socket, bytes] = {}
        self.readers: dict[socket.socket, _Reader] = {}
        """Current readers by connection."""
        self.dropped = 0
        """Number of readers disconnected because they were too far behind."""

    def listen(self, path: Path) -> None:
        """Listen on a Unix socket.

        Raises:
            OSError: The path cannot be bound.
        """
        path.unlink(missing_ok=True)
        server = self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.setblocking(False)
        server.bind(str(path))
        server.listen(MAX_READERS)
        self._loop.add_reader(server, self._accept, server)

    def close(self) -> None:
        """Close all connections and stop listening; further calls do nothing."""
        server, self._server = self._server, None
        if server is not None:
            self._loop.remove_reader(server)
            server.close()
        for sock in [*self._greeting, *self.readers]:
            self.drop(sock)

    def send(self, frame: bytes) -> None:
        """Send a frame to all readers."""
        for sock, reader in list(self.readers.items()):
            if not reader.send(frame):
                self.dropped += 1
                self.drop(sock)

    def renew(self) -> None:
        """Close all connections; their readers dial again."""
        for sock in list(self.readers):
            self.drop(sock)

    def admit(self, sock: socket.socket) -> None:
        """Take a connection that does not block, and whose peer may be a reader."""
        if len(self._greeting) + len(self.readers) >= MAX_READERS:
            sock.close()
            return
        self._greeting[sock] = b""
        self._loop.add_reader(sock, self._listen, sock)
        self._listen(sock)  # TLS may have read its first bytes already

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            sock, _ = server.accept()
            sock.setblocking(False)
            self.admit(sock)

    def _listen(self, sock: socket.socket) -> None:
        """Read a greeting; what comes after it is asked, or shows the reader's end."""
        known = self.readers.get(sock)
        if known is not None:
            if not known.heard(self._answer):
                self.drop(sock)
            return
        try:
            data = sock.recv(_GREETING)
        except WOULD_BLOCK:
            return
        except OSError:
            data = b""
        greeting = self._greeting.get(sock)
        if not data or greeting is None:
            self.drop(sock)
            return
        greeting = self._greeting[sock] = greeting + data
        if not greeting.startswith(self._hello[: len(greeting)]):
            with suppress(OSError):
                sock.send(self._hello)
            self.drop(sock)
            return
        if len(greeting) < _GREETING:
            return
        del self._greeting[sock]
        more = self._rest() if greeting[-1:] == WITH_INDEX else iter(())
        begin = self._begin()
        reader = self.readers[sock] = _Reader(sock, self._loop, more)
        if not reader.send(begin):
            self.drop(sock)
        reader.send_more()

    def drop(self, sock: socket.socket) -> None:
        """Close a connection; one that is closed stays so."""
        if sock.fileno() < 0:
            return
        self._greeting.pop(sock, None)
        reader = self.readers.pop(sock, None)
        if reader is not None:
            reader.stop()
        self._loop.remove_reader(sock)
        sock.close()


class _Reader:
    """One accepted connection."""

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, more: Iterator[bytes]
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._more = more
        self._unsent = bytearray()
        self._later: asyncio.Handle | None = None
        self._decoder = Decoder()
        self._rate = _Rate()

    def heard(self, answer: Callable[[Message], bytes]) -> bool:
        """Answer what the reader asks; return whether it is still there, and may ask that."""
        for _ in range(READS):
            try:
                data = self._sock.recv(READ_BYTES)
            except WOULD_BLOCK:
                return True
            except OSError:
                return False
            if not data:
                return False
            try:
                self._rate.count(len(data), self._loop.time())
                for message in self._decoder.feed(data):
                    if not self.send(answer(message)):
                        return False
            except GarbledError as error:
                _log.warning("sibling_not_understood", reason=str(error))
                return False
        return True

    def send(self, frame: bytes) -> bool:
        """Send or buffer a frame; return whether the reader is within ``MAX_BACKLOG``."""
        if not self._unsent:
            try:
                sent = self._sock.send(frame)
            except WOULD_BLOCK:
                sent = 0
            except OSError:
                return True  # reading detects its end
            if sent == len(frame):
                return True
            frame = frame[sent:]
            self._loop.add_writer(self._sock, self._flush)
        self._unsent += frame
        return len(self._unsent) <= MAX_BACKLOG

    def send_more(self) -> None:
        """Send the next part of the requested index, one per iteration of the loop."""
        self._later = None
        if len(self._unsent) < LOW_BYTES:
            frame = next(self._more, None)
            if frame is None:
                return
            self.send(frame)
        self._later = self._loop.call_later(0.001, self.send_more)

    def stop(self) -> None:
        """Stop sending."""
        self._loop.remove_writer(self._sock)
        if self._later is not None:
            self._later.cancel()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except WOULD_BLOCK:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._sock)


class Inlet:
    """The receiving side: messages of one peer worker.

    It is read as messages arrive, until ``rest`` is called; then only the peer's end wakes us.

    Args:
        name: The peer, for the log.
        on_messages: Called with the messages that were read together; it raises ``UnwelcomeError``
            to end the connection.
        on_lost: Called when the connection has ended.
    """

    def __init__(
        self,
        name: str,
        on_messages: Callable[[Iterator[Message]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.name = name
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._arrived = select.poll()
        """Whether there is something to read; asking is cheaper than a read that fails."""
        self._end: select.epoll | None = None
        """Readable when the peer worker has gone."""
        self._hello = HELLO
        self._decoder = Decoder()
        self._rate = _Rate()
        self.received_at = float("-inf")
        """Loop time of the last received bytes."""
        self.received = 0
        """Bytes received on all connections."""
        self.failed = 0
        """Number of connections closed because of an invalid message, or too many."""

    @property
    def up(self) -> bool:
        """Return whether the peer worker is connected."""
        return self._sock is not None

    def adopt(self, sock: socket.socket, *, with_index: bool) -> bool:
        """Greet on a new connection and receive from it; return whether that went well."""
        try:
            sock.send(self._hello + (WITH_INDEX if with_index else EVENTS_ONLY))
        except OSError:
            sock.close()
            return False
        self._sock, self._decoder = sock, Decoder()
        self._arrived = select.poll()
        self._arrived.register(sock, select.POLLIN)
        self.received_at = self._loop.time()
        self._loop.add_reader(sock, self.read)
        return True

    def rest(self) -> None:
        """Stop waking up for messages: from now on they are read on ``read`` only."""
        if self._sock is not None and self._end is None:
            self._loop.remove_reader(self._sock)
            self._end = select.epoll()
            self._end.register(self._sock, select.EPOLLRDHUP)
            self._loop.add_reader(self._end.fileno(), self.read)

    def wake(self) -> None:
        """Read messages as they arrive again."""
        end, self._end = self._end, None
        if end is not None and self._sock is not None:
            self._loop.remove_reader(end.fileno())
            end.close()
            self._loop.add_reader(self._sock, self.read)

    def read(self) -> None:
        """Process the bytes that have arrived, without waiting."""
        for _ in range(READS):
            sock = self._sock
            if sock is None or not (self._arrived.poll(0) or _decrypted(sock)):
                return
            try:
                data = sock.recv(READ_BYTES)
            except WOULD_BLOCK:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.received_at = self._loop.time()
            self.received += len(data)
            try:
                self._rate.count(len(data), self.received_at)
                self._on_messages(self._decoder.feed(data))
            except UnwelcomeError:
                self.close()
                return
            except Exception:  # noqa: BLE001 - rule 5
                self.failed += 1
                _log.exception("sibling_not_understood", path=self.name)
                self.close()
                return
            if len(data) < READ_BYTES and not isinstance(sock, ssl.SSLSocket):
                return

    def ask(self, frame: bytes) -> bool:
        """Send a small frame to the peer; return whether it was sent."""
        if self._sock is None:
            return False
        try:
            if self._sock.send(frame) == len(frame):
                return True
        except OSError:
            pass
        self._loop.call_soon(self._give_up)  # part of it may have been sent
        return False

    def _give_up(self) -> None:
        """Process what a peer that is gone sent before, and close the connection."""
        self.read()
        self.close()

    def close(self) -> None:
        """Close the connection."""
        sock, self._sock = self._sock, None
        end, self._end = self._end, None
        if end is not None:
            self._loop.remove_reader(end.fileno())
            end.close()
        if sock is not None:
            self._loop.remove_reader(sock)
            sock.close()
            self._on_lost()


def _decrypted(sock: socket.socket) -> bool:
    """Return whether TLS has bytes that are not in the socket any more."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def dialled(path: Path) -> socket.socket | None:
    """Return a connection to a worker's socket; ``None`` = it is not listened on."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock
