"""The sockets between the workers of one machine.

Rules:

1. Each worker listens on its own socket in a private folder, and dials those of all others. It
   sends its messages on accepted connections and receives its peers' on dialled ones.
2. A connection begins with names and a snapshot; then all messages follow in order, each once. When
   it ends, the reader discards the sender's in-flight load, and dials again for a new snapshot.
3. No worker blocks on another. Bytes that a socket does not accept at once are buffered, up to
   ``MAX_BACKLOG``; a reader that is further behind is disconnected.
4. When ``send`` returns, the bytes are in the reader's socket, unless that is full. So a reader
   that reads its socket before a decision knows everything that was sent before.
5. A message that cannot be decoded or applied ends the connection: a partial message would be worse
   than a new snapshot.
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from ext_proc.workers.decode import Decoder
from ext_proc.workers.records import VERSION, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ext_proc.workers.records import Message

MAX_BACKLOG: Final = 32 * 2**20
"""Maximum bytes buffered for one reader."""
MAX_READERS: Final = 256
READ_BYTES: Final = 2**18
READS: Final = 8
"""Maximum reads in one call."""
LOW_BYTES: Final = 2**18
"""A reader with fewer buffered bytes gets the next part of the index."""
HELLO: Final = b"tidegate %d " % VERSION
_GREETING: Final = len(HELLO) + 1
WITH_INDEX: Final = b"*"
"""The reader requests the prefix index too."""
EVENTS_ONLY: Final = b"-"

_log = structlog.stdlib.get_logger("ext_proc.workers")


def path_of(folder: Path, worker: int) -> Path:
    """Return the path of a worker's socket."""
    return folder / f"{worker}.sock"


class Outlet:
    """The sending side: messages of this worker, for all peers that dial.

    Args:
        path: Path of the socket to listen on.
        begin: Returns the bytes with which a new connection begins, whole frames.
        rest: Yields further small frames for a reader that requested the index.
    """

    def __init__(
        self, path: Path, begin: Callable[[], bytes], rest: Callable[[], Iterator[bytes]]
    ) -> None:
        self._path = path
        self._begin = begin
        self._rest = rest
        self._loop = asyncio.get_running_loop()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._greeting: dict[socket.socket, bytes] = {}
        self.readers: dict[socket.socket, _Reader] = {}
        """Current readers by connection."""
        self.dropped = 0
        """Number of readers disconnected because they were too far behind."""

    def open(self) -> None:
        """Listen.

        Raises:
            OSError: The path cannot be bound.
        """
        self._path.unlink(missing_ok=True)
        self._server.setblocking(False)
        self._server.bind(str(self._path))
        self._server.listen(MAX_READERS)
        self._loop.add_reader(self._server, self._accept)

    def close(self) -> None:
        """Close all connections and stop listening; further calls do nothing."""
        if self._server.fileno() < 0:
            return
        self._loop.remove_reader(self._server)
        self._server.close()
        for sock in [*self._greeting, *self.readers]:
            self._drop(sock)

    def send(self, frame: bytes) -> None:
        """Send a frame to all readers."""
        for sock, reader in list(self.readers.items()):
            if not reader.send(frame):
                self.dropped += 1
                self._drop(sock)

    def renew(self) -> None:
        """Close all connections; their readers dial again."""
        for sock in list(self.readers):
            self._drop(sock)

    def _accept(self) -> None:
        with suppress(OSError):
            sock, _ = self._server.accept()
            if len(self._greeting) + len(self.readers) >= MAX_READERS:
                sock.close()
                return
            sock.setblocking(False)
            self._greeting[sock] = b""
            self._loop.add_reader(sock, self._listen, sock)

    def _listen(self, sock: socket.socket) -> None:
        """Read a greeting; after it a reader sends nothing, and reading only detects its end."""
        try:
            data = sock.recv(_GREETING)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        greeting = self._greeting.get(sock)
        if not data or greeting is None:
            self._drop(sock)
            return
        greeting = self._greeting[sock] = greeting + data
        if len(greeting) < _GREETING:
            return
        if greeting[:-1] != HELLO:
            self._drop(sock)
            return
        del self._greeting[sock]
        more = self._rest() if greeting[-1:] == WITH_INDEX else iter(())
        begin = self._begin()
        reader = self.readers[sock] = _Reader(sock, self._loop, more)
        if not reader.send(begin):
            self._drop(sock)
        reader.send_more()

    def _drop(self, sock: socket.socket) -> None:
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

    def send(self, frame: bytes) -> bool:
        """Send or buffer a frame; return whether the reader is within ``MAX_BACKLOG``."""
        if not self._unsent:
            try:
                sent = self._sock.send(frame)
            except BlockingIOError:
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
        except BlockingIOError:
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
        path: Path of the peer's socket.
        on_message: Called with each message.
        on_lost: Called when the connection has ended.
    """

    def __init__(
        self,
        path: Path,
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._path = path
        self._on_message = on_message
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._end: select.epoll | None = None
        """Readable when the peer worker has gone."""
        self._decoder = Decoder()
        self.received_at = float("-inf")
        """Loop time of the last received bytes."""
        self.failed = 0
        """Number of connections closed because of an invalid message."""

    @property
    def up(self) -> bool:
        """Return whether the peer worker is connected."""
        return self._sock is not None

    def dial(self, *, with_index: bool) -> bool:
        """Connect unless connected; return whether the peer is connected."""
        if self._sock is not None:
            return True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(str(self._path))
            sock.send(HELLO + (WITH_INDEX if with_index else EVENTS_ONLY))
        except OSError:
            sock.close()
            return False
        self._sock, self._decoder = sock, Decoder()
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

    def read(self) -> None:
        """Process the bytes that have arrived, without waiting."""
        for _ in range(READS):
            sock = self._sock
            if sock is None:
                return
            try:
                data = sock.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.received_at = self._loop.time()
            try:
                for message in self._decoder.feed(data):
                    self._on_message(message)
            except Exception:  # noqa: BLE001 - rule 5
                self.failed += 1
                _log.exception("sibling_not_understood", path=str(self._path))
                self.close()
                return
            if len(data) < READ_BYTES:
                return

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


def heartbeat() -> bytes:
    """Return an empty frame, which only shows that the sender is alive."""
    return framed(b"")
