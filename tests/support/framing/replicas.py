"""Replicas that account for each byte on their connections, over HTTP/1.1 and over HTTP/2.

They answer each request as its case says. A byte that is no part of an accounted request, or of a
health check, is a violation of the law (``law``).
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable

import hpack

from support.framing import frames
from support.framing.cases import CASE_HEADER, CLOSES, Case
from support.framing.law import Attempt, Book
from tidegate_api.names import ATTEMPT_HEADER, TICKET_HEADER

REPLICAS = 3
"""Replicas of a stack."""

HEALTH = "/health"
"""Path of health checks."""
_LOOKS = (HEALTH, "/v2/health/ready")
"""Health checks, and how a stack is found ready."""
_LINE = re.compile(rb"(GET|POST) (/\S*) HTTP/1\.1\r\n")
_LARGEST_HEAD = 65_536


def _picks(headers: dict[str, str]) -> int:
    """Return how many replicas Envoy was told of: all, where a picker chose."""
    return REPLICAS if TICKET_HEADER in headers else 0


class Replica:
    """One replica, with a port for each protocol.

    Args:
        book: Where it enters what comes.
        name: Its name.
        shadow: Whether it gets copies only.
    """

    def __init__(self, book: Book, name: str, *, shadow: bool = False) -> None:
        self.book, self.name, self.shadow = book, name, shadow
        self.http = self.grpc = ""
        """Addresses, ``ip:port``."""
        self.connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen on free ports."""
        loop = asyncio.get_running_loop()
        found = []
        for kind in (Http1, Http2):
            server = await loop.create_server(lambda kind=kind: kind(self), "127.0.0.1", 0)
            self._servers.append(server)
            found.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        self.http, self.grpc = found

    async def stop(self) -> None:
        """Close the ports and all connections."""
        for server in self._servers:
            server.close()
        self.break_off()

    def break_off(self) -> None:
        """Break all connections."""
        for connection in list(self.connections):
            connection.close()

    def attempt(self, number: str) -> Attempt | None:
        """Enter a request."""
        return self.book.attempt(number, self.name, copy=self.shadow)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self.replica, self.book = replica, replica.book
        self.last: Case | None = None
        """The case that used the connection last."""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.replica.connections.add(self)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def violated(self, what: str) -> None:
        """Enter a violation of this connection, and close it."""
        self.book.violated(f"at {self.replica.name}, {what}; before it came", self.last)
        self.close()

    def close(self) -> None:
        """Break the connection, and read nothing more."""
        self.closed = True
        own = self.transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def later(self, work: Callable[[], None]) -> None:
        """Do something once a few other requests have been answered."""
        assert self.book.beat is not None
        self.book.beat().add_done_callback(lambda _: None if self.closed else work())


class Http1(_Connection):
    """A connection over HTTP/1.1."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._kept = bytearray()
        self._attempt: Attempt | None = None
        """The request that is being read, or has not been answered."""
        self._left: int | None = 0
        """Bytes of the body, or of the chunk, that are to come; ``None`` = in chunks."""
        self._read: Callable[[], bool] = self._head
        self._chunked = False
        self._answering = False

    def data_received(self, data: bytes) -> None:
        """Take the bytes apart as far as possible."""
        if self.closed:
            return
        self._kept += data
        while not self.closed and self._read():
            pass

    def connection_lost(self, _: Exception | None) -> None:
        """Judge how the connection ended."""
        self.replica.connections.discard(self)
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.over = True
        elif self._kept and not self.closed:
            self.book.violated(
                f"at {self.replica.name}, a connection ended with {bytes(self._kept[:60])!r}",
                self.last,
            )
        self.closed = True

    # --- reading --------------------------------------------------------------------------------

    def _head(self) -> bool:
        kept = self._kept
        if not kept:
            return False
        if self._attempt is not None:
            self.violated(f"bytes after a request that is not answered: {bytes(kept[:60])!r}")
            return False
        end = kept.find(b"\r\n\r\n")
        line = _LINE.match(kept)
        start = bytes(kept[:5])
        begun = b"GET ".startswith(start[:4]) or b"POST ".startswith(start)
        if line is None and (b"\r\n" in kept or not begun):
            self.violated(f"bytes that are no request: {bytes(kept[:60])!r}")
            return False
        if end < 0:
            if len(kept) > _LARGEST_HEAD:
                self.violated("a head without an end")
            return False
        assert line is not None
        method, path = line[1].decode(), line[2].decode()
        lines = bytes(kept[line.end() : end]).decode("latin1").split("\r\n")
        pairs = [(k.lower(), v.strip()) for k, _, v in (each.partition(":") for each in lines)]
        headers = dict(pairs)
        del kept[: end + 4]
        if method == "GET" and path in _LOOKS:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return True
        self._begin(method, path, pairs, headers)
        return not self.closed

    def _begin(
        self, method: str, path: str, pairs: list[tuple[str, str]], headers: dict[str, str]
    ) -> None:
        attempt = self.replica.attempt(headers.get(CASE_HEADER, ""))
        if attempt is None:
            self.violated(f"a request of nobody: {method} {path} {headers}")
            return
        self._attempt, self.last = attempt, attempt.case
        attempt.picks, attempt.sent = _picks(headers), int(headers.get(ATTEMPT_HEADER, 0))
        lengths = [value for name, value in pairs if name == "content-length"]
        codings = [value for name, value in pairs if name == "transfer-encoding"]
        self._chunked = codings == ["chunked"] and not lengths
        if not self._chunked and (
            codings or len(lengths) > 1 or not all(map(str.isdigit, lengths))
        ):
            attempt.wrong = f"framed by {lengths} and {codings}"
        if lengths and int(lengths[0]) != len(attempt.case.body) and not attempt.case.malformed:
            attempt.wrong = f"declares {lengths[0]} of {len(attempt.case.body)} bytes"
        if path != attempt.case.path or "expect" in headers:
            attempt.wrong = f"{path} {headers.get('expect')}"
        self._left = 0 if self._chunked else int(lengths[0]) if lengths else 0
        self._read = self._chunk if self._chunked else self._body
        self._act("head")

    def _body(self) -> bool:
        assert self._attempt is not None
        if self._left:
            data = bytes(self._kept[: self._left])
            if not data:
                return False
            del self._kept[: len(data)]
            self._left -= len(data)
            self._take(data)
            return not self.closed
        self._complete()
        return True

    def _chunk(self) -> bool:
        assert self._attempt is not None
        kept = self._kept
        if self._left:
            data = bytes(kept[: self._left])
            if not data:
                return False
            del kept[: len(data)]
            self._left -= len(data)
            self._take(data)
            if not self._left:
                self._read = self._chunk_end
            return not self.closed
        end = kept.find(b"\r\n")
        if end < 0:
            return False
        try:
            self._left = int(kept[:end], 16)
        except ValueError:
            self.violated(f"no chunk: {bytes(kept[:60])!r}")
            return False
        del kept[: end + 2]
        if not self._left:
            self._read = self._trailers
        return True

    def _chunk_end(self) -> bool:
        if len(self._kept) < 2:
            return False
        if self._kept[:2] != b"\r\n":
            self.violated(f"a chunk without an end: {bytes(self._kept[:60])!r}")
            return False
        del self._kept[:2]
        self._read = self._chunk
        return True

    def _trailers(self) -> bool:
        assert self._attempt is not None
        end = self._kept.find(b"\r\n")
        if end < 0:
            return False
        line = bytes(self._kept[:end]).decode("latin1")
        del self._kept[: end + 2]
        if line:
            name, _, value = line.partition(":")
            self._attempt.trailers.append((name.lower(), value.strip()))
        else:
            self._complete()
        return True

    def _take(self, data: bytes) -> None:
        assert self._attempt is not None
        self._attempt.take(data)
        if self._attempt.action == "close-half" and 2 * self._attempt.got >= len(
            self._attempt.case.body
        ):
            self.close()

    def _complete(self) -> None:
        assert self._attempt is not None
        self._attempt.whole = self._attempt.over = True
        self._read = self._head
        self._act("end")
        if self._attempt is not None and self._attempt.answered and not self._answering:
            self._attempt = None

    # --- answering ------------------------------------------------------------------------------

    def _act(self, at: str) -> None:
        attempt = self._attempt
        assert attempt is not None
        action = attempt.action
        if action == "refuse":
            action = "close-head"
        if action in CLOSES:
            if action == f"close-{at}" or (at == "end" and not self.closed):
                self.close()
        elif action in {"busy-head", "early"}:
            if at == "head":
                self._answer(attempt)
        elif at == "head" and action == "stall":
            self.transport.pause_reading()
            self.later(self.transport.resume_reading)
        elif at == "end":
            if action == "slow":
                self._answering = True
                self.later(lambda: self._answer(attempt))
            else:
                self._answer(attempt)

    def _answer(self, attempt: Attempt) -> None:
        case = attempt.case
        busy = attempt.action.startswith("busy")
        content = b"busy" if busy else case.answer
        status = b"503 Service Unavailable" if busy else b"200 OK"
        attempt.answered = True
        chunked = case.number % 2 and not busy
        framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(content)
        head = b"HTTP/1.1 %s\r\n%s: %d\r\nx-replica: %s\r\n%s\r\n\r\n" % (
            status,
            CASE_HEADER.encode(),
            case.number,
            attempt.replica.encode(),
            framing,
        )
        middle = len(content) // 2
        halves = (content[:middle], content[middle:])
        if chunked:
            halves = tuple(b"%x\r\n%s\r\n" % (len(half), half) for half in halves if half)
            halves = (halves[0], b"".join(halves[1:]) + b"0\r\n\r\n")
        self.transport.write(head + halves[0])
        if attempt.action == "cut":
            self.closed = True
            self.transport.close()
        elif attempt.action == "drip":
            self._answering = True
            self.later(lambda: self._finish(attempt, halves[1]))
        else:
            self._finish(attempt, halves[1])

    def _finish(self, attempt: Attempt, rest: bytes) -> None:
        self.transport.write(rest)
        self.transport.resume_reading()
        self._answering = False
        if attempt.whole:
            self._attempt = None
            self.data_received(b"")


class _Stream:
    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.answered = False
        """Whether the whole answer has been sent."""


class Http2(_Connection):
    """A connection over HTTP/2, as the replicas' gRPC servers take it."""

    def __init__(self, replica: Replica) -> None:
        super().__init__(replica)
        self._framed = frames.Framed()
        self._preface = bytearray()
        self._decoder = hpack.Decoder()
        self._streams: dict[int, _Stream] = {}
        self._seen = 0
        """The last stream that was opened."""
        self._block: tuple[frames.Frame, bytearray] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the settings, the defaults."""
        super().connection_made(transport)
        self.transport.write(frames.settings() + frames.window(0, 2**24))

    def data_received(self, data: bytes) -> None:
        """Take the frames apart."""
        if len(self._preface) < len(frames.PREFACE):
            self._preface += data
            if len(self._preface) < len(frames.PREFACE):
                return
            if not self._preface.startswith(frames.PREFACE):
                self.violated(f"no preface: {bytes(self._preface[:60])!r}")
                return
            data = bytes(self._preface[len(frames.PREFACE) :])
            del self._preface[len(frames.PREFACE) :]
        for each in self._framed.feed(data):
            if self.closed:
                return
            if not each.makes_sense:
                self.violated(f"a frame of nobody: {each}")
                return
            self._frame(each)

    def connection_lost(self, _: Exception | None) -> None:
        """Judge how the connection ended."""
        self.replica.connections.discard(self)
        for stream in self._streams.values():
            stream.attempt.over = True
        self._streams.clear()
        if self._framed.rest and not self.closed:
            self.book.violated(f"at {self.replica.name}, a frame without an end", self.last)
        self.closed = True

    def _frame(self, each: frames.Frame) -> None:
        kind, flags, number, payload = each
        if kind in {frames.SETTINGS, frames.PING}:
            if not flags & frames.ACK:
                content = payload if kind == frames.PING else b""
                self.transport.write(frames.frame(kind, frames.ACK, 0, content))
        elif kind in {frames.HEADERS, frames.CONTINUATION}:
            self._header_frame(each)
        elif kind == frames.DATA:
            self._data(each)
        elif kind == frames.RESET:
            stream = self._streams.pop(number, None)
            if stream is not None:
                stream.attempt.over = True

    def _header_frame(self, each: frames.Frame) -> None:
        if each.kind == frames.HEADERS:
            self._block = (each, bytearray(each.content))
        elif self._block is not None:
            self._block[1].extend(each.payload)
        if each.flags & frames.END_HEADERS and self._block is not None:
            (first, block), self._block = self._block, None
            self._headers(first, bytes(block))

    def _headers(self, first: frames.Frame, block: bytes) -> None:
        pairs = [(str(name), str(value)) for name, value in self._decoder.decode(block)]
        number, ends = first.stream, bool(first.flags & frames.END_STREAM)
        stream = self._streams.get(number)
        if stream is not None:
            stream.attempt.trailers += pairs
            if ends:
                self._complete(number, stream)
            return
        if number <= self._seen:
            return  # what was on its way when the replica reset the stream
        self._seen = number
        headers = dict(pairs)
        if headers.get(":path") in _LOOKS and headers.get(":method") == "GET":
            self.transport.write(
                frames.header_frames(number, [(":status", "200")], frames.END_STREAM)
            )
            return
        attempt = self.replica.attempt(headers.get(CASE_HEADER, ""))
        if attempt is None:
            self.violated(f"a request of nobody: {headers}")
            return
        self.last = attempt.case
        attempt.picks, attempt.sent = _picks(headers), int(headers.get(ATTEMPT_HEADER, 0))
        if headers.get(":path") != attempt.case.path:
            attempt.wrong = f"path {headers.get(':path')}"
        stream = self._streams[number] = _Stream(attempt)
        self._act(number, stream, "head")
        if ends and number in self._streams:
            self._complete(number, stream)

    def _data(self, each: frames.Frame) -> None:
        number, size = each.stream, len(each.payload)
        stream = self._streams.get(number)
        attempt = None if stream is None else stream.attempt
        if size:
            update = frames.window(0, size)
            if attempt is not None and attempt.action == "stall":
                self.later(lambda: self.transport.write(frames.window(number, size)))
            else:
                update += frames.window(number, size)
            self.transport.write(update)
        if stream is None or attempt is None:
            if number > self._seen:
                self.violated("data of a stream that was not opened")
            return
        if attempt.whole:
            attempt.wrong = "data after the end"
        attempt.take(each.content)
        if attempt.action == "close-half" and 2 * attempt.got >= len(attempt.case.body):
            self._reset(number, attempt, frames.INTERNAL_ERROR)
        elif each.flags & frames.END_STREAM:
            self._complete(number, stream)

    def _complete(self, number: int, stream: _Stream) -> None:
        attempt = stream.attempt
        attempt.whole = attempt.over = True
        if stream.answered:
            self._streams.pop(number, None)
        else:
            self._act(number, stream, "end")

    def _reset(self, number: int, attempt: Attempt, code: int) -> None:
        attempt.over = True
        self._streams.pop(number, None)
        self.transport.write(frames.reset(number, code))

    # --- answering ------------------------------------------------------------------------------

    def _act(self, number: int, stream: _Stream, at: str) -> None:
        attempt = stream.attempt
        action = attempt.action
        if action == "refuse":
            self._reset(number, attempt, frames.REFUSED)
        elif action in CLOSES:
            if action == f"close-{at}" or at == "end":
                self._reset(number, attempt, frames.INTERNAL_ERROR)
        elif action in {"busy-head", "early"}:
            if at == "head":
                self._answer(number, attempt)
        elif at == "end" and not attempt.answered:
            if action == "slow":
                self.later(lambda: self._answer(number, attempt))
            else:
                self._answer(number, attempt)

    def _answer(self, number: int, attempt: Attempt) -> None:
        case = attempt.case
        attempt.answered = True
        head = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            (CASE_HEADER, str(case.number)),
            ("x-replica", attempt.replica),
        ]
        if attempt.action.startswith("busy"):
            head.append(("grpc-status", "14"))
            self._write(number, frames.header_frames(number, head, frames.END_STREAM))
            self._ended(number, attempt)
            return
        content = case.answer
        middle = len(content) // 2
        first = frames.header_frames(number, head)
        first += frames.frame(frames.DATA, 0, number, content[:middle])
        if attempt.action == "cut":
            self._write(number, first)
            self._reset(number, attempt, frames.INTERNAL_ERROR)
            return
        rest = frames.frame(frames.DATA, 0, number, content[middle:])
        rest += frames.header_frames(number, [("grpc-status", "0")], frames.END_STREAM)
        self._write(number, first)
        if attempt.action == "drip":
            self.later(lambda: self._finish(number, attempt, rest))
        else:
            self._finish(number, attempt, rest)

    def _finish(self, number: int, attempt: Attempt, rest: bytes) -> None:
        self._write(number, rest)
        self._ended(number, attempt)

    def _ended(self, number: int, attempt: Attempt) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.answered = True
            if attempt.whole:
                del self._streams[number]

    def _write(self, number: int, data: bytes) -> None:
        if number in self._streams and not self.closed:
            self.transport.write(data)
