"""An HTTP/2 peer of the picker's server without sockets: the test transfers the bytes.

The client uses ngh2 as well, so that a test can send arbitrary frames, split arbitrarily.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc
import ngh2

from ext_proc.server.h2.connection import Http2Connection
from ext_proc.server.h2.frames import Deframer, framed
from ext_proc.server.h2.server import Http2Server

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 2**20
"""Maximum size of a message, bytes."""
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"picker"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class Pipe:
    """Transport of a connection that records all written bytes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False
        self.reading = True

    def write(self, data: bytes) -> None:
        """Record bytes."""
        assert not self.closing
        self.written += data

    def pause_reading(self) -> None:
        """Let the test see that the peer is not read from."""
        self.reading = False

    def resume_reading(self) -> None:
        """Let the test see that the peer is read from."""
        self.reading = True

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the peer has not read."""
        return len(self.written)

    def is_closing(self) -> bool:
        """Return whether either side closed the connection."""
        return self.closing

    def close(self) -> None:
        """Close the connection."""
        self.closing = True

    abort = close


class Calls:
    """Test handlers, and a record of their calls."""

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.traces: list[str] = []
        """What direct calls were told of their traces."""
        self.cancelled = 0
        self.heard: Counter[str] = Counter()
        """Number of notifications of direct calls, by kind."""
        self.go = asyncio.Event()
        """Set by the test to release `Held`."""

    async def echo(self, _: Any, context: Any) -> None:
        """Reply to each message with the same message."""
        while (message := await context.read()) is not grpc.aio.EOF:
            self.read.append(message)
            await context.write(message)

    async def held(self, _: Any, context: Any) -> None:
        """Read nothing until the test releases it."""
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await self.echo(_, context)

    async def early(self, _: Any, context: Any) -> None:
        """Reply to the first message and return."""
        await context.write(b"answer to " + await context.read())

    async def fails(self, _: Any, context: Any) -> None:
        """Raise an unexpected exception."""
        await context.read()
        raise ZeroDivisionError

    async def aborts(self, _: Any, context: Any) -> None:
        """Abort with a status."""
        await context.abort(grpc.StatusCode.NOT_FOUND, "50 % älter: 潮\n")

    async def pours(self, _: Any, context: Any) -> None:
        """Write small messages without end."""
        try:
            while True:
                await context.write(b"x" * 1000)
                self.read.append(b"")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def collect(self, messages: Any, _: Any) -> bytes:
        """Receive a stream of messages; reply with their lengths."""
        return b",".join([str(len(message)).encode() async for message in messages])

    async def once(self, message: bytes, _: Any) -> bytes:
        """Reply to one message."""
        return message[::-1]

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handlers as a gRPC handler."""
        both: Any = grpc.stream_stream_rpc_method_handler
        names = ("echo", "held", "early", "fails", "aborts", "pours")
        methods = {name: both(getattr(self, name)) for name in names}
        methods["collect"] = grpc.stream_unary_rpc_method_handler(self.collect)  # type: ignore[arg-type]  # asyncio's
        methods["once"] = grpc.unary_unary_rpc_method_handler(self.once)  # type: ignore[arg-type]  # asyncio's
        return grpc.method_handlers_generic_handler("test.T", methods)


class Direct:
    """Direct call whose behaviour depends on the method; ``Calls.heard`` counts notifications."""

    def __init__(self, calls: Calls, method: str, trace: str) -> None:
        self.calls = calls
        self.method = method
        self.trace = trace
        calls.traces.append(trace)
        calls.heard["begun"] += 1

    def costly(self, message: bytes) -> bool:
        """Return whether the message says so."""
        return message.startswith(b"costly")

    def client(self) -> str | None:
        """Return the trace as the client, if there is one."""
        return self.trace or None

    def answer(self, message: bytes) -> list[bytes] | None:
        """Return the message, several, none or an invalid value, depending on the method."""
        self.calls.read.append(message)
        if self.method == "fails-directly":
            raise ZeroDivisionError
        if self.method == "over":
            return None
        return [message] * (1000 if self.method == "pours-directly" else 1)

    def attach(self, send: Callable[[bytes], object]) -> None:
        """Keep how to send messages that are no replies."""
        self.send = send

    def pauses(self) -> bool:
        """Return whether replies must wait."""
        return self.method == "paused"

    def waits(self) -> bool:
        """Return whether further replies follow."""
        return False

    async def wait(self) -> list[bytes]:
        """Return no further replies."""
        return []

    async def pause(self) -> None:
        """Wait until the test releases the call."""
        await self.calls.go.wait()

    def handed_over(self) -> None:
        """Count the notification."""
        self.calls.heard["handed over"] += 1

    def lost(self) -> None:
        """Count the notification."""
        self.calls.heard["lost"] += 1

    def end(self) -> None:
        """Count the notification."""
        self.calls.heard["ended"] += 1
        if self.method == "fails-at-its-end":
            raise ZeroDivisionError


DIRECT = ("direct", "paused", "over", "pours-directly", "fails-directly", "fails-at-its-end")


class Call:
    """The client's state of one call."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.closed: int | None = None
        """Error code of the stream's end."""
        self.data = 0
        """Received bytes."""
        self._deframer = Deframer(2**30)

    def feed(self, data: bytes) -> None:
        """Receive bytes of the response."""
        self.data += len(data)
        self.messages += self._deframer.feed(data)

    @property
    def status(self) -> int | None:
        """The gRPC status, if received."""
        found = self.headers.get(b"grpc-status")
        return None if found is None else int(found)


class H2Peer:
    """A server's connection and its client; an async context manager.

    Args:
        limit: Maximum size of a message, bytes.
        settings: HTTP/2 settings of the client.
        reads: Whether the client sends window updates.
        of: A peer whose server it connects to; it must be left after this one.
    """

    def __init__(
        self,
        limit: int = LIMIT,
        settings: dict[int, int] | None = None,
        *,
        reads: bool = True,
        of: H2Peer | None = None,
    ) -> None:
        self._shared = of is not None
        if of is not None:
            self.calls, self.server = of.calls, of.server
        else:
            self.calls, self.server = Calls(), Http2Server(limit)
            self.server.add_generic_rpc_handlers((self.calls.handler(),))
            for name in DIRECT:
                self.server.direct[f"/test.T/{name}"] = partial(Direct, self.calls, name)
        self.pipe = Pipe()
        self.client = ngh2.Connection(
            ngh2.Role.CLIENT, ngh2.Configuration(auto_window_update=reads)
        )
        self.client.initiate_connection(settings or {})
        self.found: dict[int, Call] = {}
        self.gone = False
        """Whether the server sent GOAWAY."""

    async def __aenter__(self) -> Self:
        self.connection = Http2Connection(self.server)
        self.connection.connection_made(self.pipe)
        await self.turn()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = self.tasks()
        self.pipe.closing = True
        self.connection.connection_lost(None)
        await settle()
        assert all(task.done() for task in tasks)
        if self._shared:
            return
        assert self.calls.heard["ended"] == self.calls.heard["begun"]
        assert not self.connection.streams
        assert not self.server.connections
        assert not self.server.held.bytes

    def tasks(self) -> list[Any]:
        """Return the tasks of open streams."""
        return [stream.task for stream in self.connection.streams.values() if stream.task]

    def beside(self) -> H2Peer:
        """Return another peer of this peer's server."""
        return H2Peer(of=self)

    def open(
        self,
        method: str,
        *messages: bytes,
        end: bool = False,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> int:
        """Start a call with messages; return its stream id."""
        path = (b":path", b"/test.T/" + method.encode())
        number = self.client.send_request((path, *HEADERS, *headers))
        self.found[number] = Call()
        for message in messages:
            self.client.send_data(number, framed(message))
        if end:
            self.client.end_stream(number)
        return number

    def rapid_resets(self, count: int) -> bytes:
        """Return the bytes of so many calls, each of which is reset at once."""
        out = bytearray()
        for _ in range(count):
            number = self.open("direct", b"x")
            out += self.client.data_to_send()
            self.client.reset_stream(number, ngh2.ErrorCode.CANCEL)
            out += self.client.data_to_send()
        return bytes(out)

    async def turn(self, cut: int | None = None) -> None:
        """Transfer bytes in both directions until none are left, in pieces of ``cut`` bytes."""
        for _ in range(100):
            out = self.client.data_to_send()
            for at in range(0, len(out), cut or len(out) or 1):
                if not self.pipe.closing:
                    self.connection.data_received(out[at : at + (cut or len(out))])
                    if cut:
                        await asyncio.sleep(0)
            await settle()
            for _ in range(200):  # what waits for its turn
                if self.pipe.reading or self.pipe.closing:
                    break
                await asyncio.sleep(0)
            back, self.pipe.written = bytes(self.pipe.written), bytearray()
            if back:
                self.client.receive_data(back)
                self.take()
            if not out and not back:
                return
        raise AssertionError("the peers never stop sending")

    def take(self) -> None:
        """Transfer the server's bytes to the client."""
        for event in self.client.events():
            match event:
                case ngh2.DataReceived(number, data, _):
                    self.found[number].feed(data)
                case ngh2.ResponseReceived(number, headers, _) | ngh2.TrailersReceived(
                    number, headers
                ):
                    self.found[number].headers.update(headers)
                case ngh2.StreamClosed(number, code, _):
                    self.found[number].closed = code
                case ngh2.GoAwayReceived():
                    self.gone = True
                case _:
                    pass


async def settle() -> None:
    """Let all ready tasks run."""
    for _ in range(8):
        await asyncio.sleep(0)
