"""The sockets between the workers of one machine.

Laws:

1. Each worker listens on a socket of its own in a private folder, and dials those of all others.
   What it does goes out on the connections that it accepted; what others do comes in on those that
   it dialled.
2. A connection is one life: it begins with names and a snapshot, then come all events in order,
   each once. Where it ends, whoever read it forgets what the other had in flight, and dials again
   for a new snapshot.
3. Nobody waits for anybody. What a socket does not take at once is kept, up to ``MAX_BACKLOG``; a
   reader that is further behind is dropped.
4. What is sent is in the reader's socket when ``send`` returns, unless that is full. So whoever
   reads it before deciding knows all that was sent before.
5. What cannot be read or followed ends the connection: half an event would be worse than a new
   snapshot.
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

    from ext_proc.workers.records import Word

MAX_BACKLOG: Final = 32 * 2**20
"""Bytes kept for one reader."""
MAX_READERS: Final = 256
READ_BYTES: Final = 2**18
READS: Final = 8
"""Most reads in one go."""
LITTLE: Final = 2**18
"""A reader with less than this before it gets the next part of what it asked for."""
HELLO: Final = b"tidegate %d " % VERSION
_GREETING: Final = len(HELLO) + 1
EVERYTHING: Final = b"*"
"""The reader wants the prefix index too."""
NEWS_ONLY: Final = b"-"

_log = structlog.stdlib.get_logger("ext_proc.workers")


def path_of(folder: Path, worker: int) -> Path:
    """Return where a worker listens."""
    return folder / f"{worker}.sock"


class Outlet:
    """What this worker does, for all that dial.

    Args:
        path: Where to listen.
        begin: Returns the bytes with which a new connection begins, whole frames.
        rest: Yields further frames for one that asked for everything, small ones.
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
        """Who reads now, by connection."""
        self.dropped = 0
        """Readers that fell too far behind."""

    def open(self) -> None:
        """Listen.

        Raises:
            OSError: The path cannot be listened on.
        """
        self._path.unlink(missing_ok=True)
        self._server.setblocking(False)
        self._server.bind(str(self._path))
        self._server.listen(MAX_READERS)
        self._loop.add_reader(self._server, self._accept)

    def close(self) -> None:
        """End all connections and listen no more; calling it again does nothing."""
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
        """End all connections; whoever read them dials again."""
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
        """Take a greeting; after it a reader says nothing but that it is gone."""
        try:
            said = sock.recv(_GREETING)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        greeting = self._greeting.get(sock)
        if not said or greeting is None:
            self._drop(sock)
            return
        greeting = self._greeting[sock] = greeting + said
        if len(greeting) < _GREETING:
            return
        if greeting[:-1] != HELLO:
            self._drop(sock)
            return
        del self._greeting[sock]
        more = self._rest() if greeting[-1:] == EVERYTHING else iter(())
        begin = self._begin()
        reader = self.readers[sock] = _Reader(sock, self._loop, more)
        if not reader.send(begin):
            self._drop(sock)
        reader.go_on()

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
        self._kept = bytearray()
        self._later: asyncio.Handle | None = None

    def send(self, frame: bytes) -> bool:
        """Send or keep a frame; tell whether the reader is still worth it."""
        if not self._kept:
            try:
                sent = self._sock.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                return True  # its end is heard of by reading
            if sent == len(frame):
                return True
            frame = frame[sent:]
            self._loop.add_writer(self._sock, self._flush)
        self._kept += frame
        return len(self._kept) <= MAX_BACKLOG

    def go_on(self) -> None:
        """Send the next part of what was asked for, one in each turn of the loop."""
        self._later = None
        if len(self._kept) < LITTLE:
            frame = next(self._more, None)
            if frame is None:
                return
            self.send(frame)
        self._later = self._loop.call_later(0.001, self.go_on)

    def stop(self) -> None:
        """Send nothing more."""
        self._loop.remove_writer(self._sock)
        if self._later is not None:
            self._later.cancel()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._kept)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._kept)
        del self._kept[:sent]
        if not self._kept:
            self._loop.remove_writer(self._sock)


class Inlet:
    """What one peer worker does.

    It is read as it comes, until ``rest``; from then on only its end wakes us.

    Args:
        path: Where it listens.
        on_word: Called with each event.
        on_lost: Called when the connection has ended.
    """

    def __init__(
        self,
        path: Path,
        on_word: Callable[[Word], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._path = path
        self._on_word = on_word
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._end: select.epoll | None = None
        """Readable when the peer worker has gone."""
        self._decoder = Decoder()
        self.heard_at = float("-inf")
        """Loop time of the last bytes."""
        self.failed = 0
        """Connections given up for what they said."""

    @property
    def up(self) -> bool:
        """Tell whether the peer worker is connected."""
        return self._sock is not None

    def dial(self, *, everything: bool) -> bool:
        """Connect, where not connected; tell whether that went well."""
        if self._sock is not None:
            return True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(str(self._path))
            sock.send(HELLO + (EVERYTHING if everything else NEWS_ONLY))
        except OSError:
            sock.close()
            return False
        self._sock, self._decoder = sock, Decoder()
        self.heard_at = self._loop.time()
        self._loop.add_reader(sock, self.read)
        return True

    def rest(self) -> None:
        """Let what comes wake nobody any more: from now on it is read when somebody asks."""
        if self._sock is not None and self._end is None:
            self._loop.remove_reader(self._sock)
            self._end = select.epoll()
            self._end.register(self._sock, select.EPOLLRDHUP)
            self._loop.add_reader(self._end.fileno(), self.read)

    def read(self) -> None:
        """Take what is there, without waiting."""
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
            self.heard_at = self._loop.time()
            try:
                for word in self._decoder.feed(data):
                    self._on_word(word)
            except Exception:  # noqa: BLE001 - law 5
                self.failed += 1
                _log.exception("sibling_not_understood", path=str(self._path))
                self.close()
                return
            if len(data) < READ_BYTES:
                return

    def close(self) -> None:
        """End the connection."""
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
    """Return a frame that says nothing but that its sender lives."""
    return framed(b"")
