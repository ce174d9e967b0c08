"""HTTP servers of an emulated replica: the data port for routers and the control port of the bench.

The data port serves generation in each dialect, health, model lists and the metrics page. The
status line of a stream is sent with the first token, as Triton does, so a request without a token
can be retried on another replica; or at once (``early_headers``), as vLLM and other servers on
uvicorn do. Only the bench knows the control port (``/stats``, ``/reset``, ``/speed/0.25``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import httptools
import orjson

from bench.emulator import dialects
from bench.emulator.dialects import MODEL, Asked, BadRequestError
from bench.emulator.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.emulator.replica import EmulatedReplica

MAX_BODY: Final = 64 * 2**20
CONFIGS: Final = ("", "instances", "decoupled")
"""What is told of the model as Triton does: nothing, an instance per slot, or decoupled."""
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "owned_by": "bench", "root": MODEL}],
}
_INFO: Final = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}
_PAGES: Final[dict[str, Any]] = {
    "/health": {},
    "/health_generate": {},
    "/ping": {},
    "/version": {"version": "0.0.0-bench"},
    "/v1/models": _MODELS,
    "/model_info": _INFO,
    "/get_model_info": _INFO,
    "/server_info": _INFO,
    "/get_server_info": _INFO,
    "/v2": {"name": "triton", "version": "bench"},
    "/v2/health/live": {},
    "/v2/health/ready": {},
    f"/v2/models/{MODEL}": {"name": MODEL, "versions": ["1"], "platform": "bench"},
    f"/v2/models/{MODEL}/ready": {},
    f"/v2/models/{MODEL}/versions/1/ready": {},
    "/v2/repository/index": [{"name": MODEL, "version": "1", "state": "READY"}],
}


_CONFIG: Final = f"/v2/models/{MODEL}/config"


def _config(replica: EmulatedReplica, config: str) -> dict[str, Any]:
    groups = [{"count": replica.engine.max_running, "kind": "KIND_CPU"}]
    policy = {"decoupled": config == "decoupled"}
    return {"name": MODEL, "instance_group": groups, "model_transaction_policy": policy}


def answer(status: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return an HTTP/1.1 response."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Answering:
    """Listener of one request: writes the response to its connection."""

    __slots__ = ("_asked", "_connection", "_head")

    def __init__(self, connection: _Connection, asked: Asked, *, early_headers: bool) -> None:
        self._connection = connection
        self._asked = asked
        self._head = b"" if early_headers else _STREAM_HEAD
        """Sent with the first token."""

    def first(self) -> None:
        if self._asked.stream:
            self._connection.write(self._head + _chunk(self._asked.dialect.piece))

    def more(self) -> None:
        if self._asked.stream:
            self._connection.write(_chunk(self._asked.dialect.piece))

    def done(self, tokens: int) -> None:  # noqa: ARG002 - responses do not contain it
        dialect = self._asked.dialect
        if not self._asked.stream:
            self._connection.write(answer("200 OK", dialect.whole))
        else:
            last = _chunk(dialect.last) if dialect.last else b""
            self._connection.write(last + b"0\r\n\r\n")
        self._connection.ended()

    def lost(self) -> None:
        self._connection.abort()


class _Connection(asyncio.Protocol):
    """One connection with sequential requests."""

    def __init__(self, handle: Callable[[_Connection, str, bytes], None]) -> None:
        self._handle = handle
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._path = ""
        self._parts: list[bytes] = []
        self._size = 0
        self.on_lost: Callable[[], None] | None = None

    # asyncio

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.write(answer("400 Bad Request", orjson.dumps({"error": str(error)})))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._transport = None
        if self.on_lost is not None:
            self.on_lost()

    # httptools

    def on_message_begin(self) -> None:
        self._parts.clear()
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._path = unquote(url.partition(b"?")[0].decode("latin-1"))

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY:
            raise httptools.HttpParserError("the body is too large")
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._handle(self, self._path, b"".join(self._parts))
        self._parts.clear()

    # answers

    def write(self, data: bytes) -> None:
        """Send data unless the peer has closed the connection."""
        if self._transport is not None:
            self._transport.write(data)

    def ended(self) -> None:
        """Handle the end of the current response."""
        self.on_lost = None

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()


class DataPort:
    """Server for routers.

    Args:
        replica: The engine.
        page: Kind of the metrics page, a key of ``PAGES``.
        early_headers: Whether streams begin with their headers at once, not with the first token.
        config: What is told of the model, one of ``CONFIGS``.
    """

    def __init__(
        self, replica: EmulatedReplica, page: str, *, early_headers: bool = False, config: str = ""
    ) -> None:
        self._replica = replica
        self._early_headers = early_headers
        self._page = PAGES[page]
        pages = _PAGES | ({_CONFIG: _config(replica, config)} if config else {})
        self._static = {path: answer("200 OK", orjson.dumps(body)) for path, body in pages.items()}

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(self._serve)

    def _serve(self, connection: _Connection, path: str, body: bytes) -> None:
        known = self._static.get(path)
        if known is not None:
            connection.write(known)
            return
        if path == "/metrics":
            page = self._page(self._replica).encode()
            connection.write(answer("200 OK", page, "text/plain; version=0.0.4"))
            return
        try:
            asked = dialects.read(path, body)
            if asked is None:
                # As FastAPI says it, on which most engines are built.
                connection.write(answer("404 Not Found", b'{"detail":"Not Found"}'))
                return
            answering = _Answering(connection, asked, early_headers=self._early_headers)
            number = self._replica.submit(asked.prompt, asked.output, answering)
        except (BadRequestError, ValueError) as error:
            connection.write(answer("400 Bad Request", orjson.dumps({"error": str(error)})))
            return
        stops = asked.dialect in {dialects.CHAT, dialects.COMPLETIONS}
        gone = self._replica.abort if stops else self._replica.forget
        connection.on_lost = lambda: gone(number)
        if asked.stream and self._early_headers:
            connection.write(_STREAM_HEAD)


class ControlPort:
    """Control server for the bench."""

    def __init__(self, replica: EmulatedReplica) -> None:
        self._replica = replica

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return _Connection(self._serve)

    def _serve(self, connection: _Connection, path: str, body: bytes) -> None:  # noqa: ARG002
        verb, _, value = path.strip("/").partition("/")
        if verb == "reset":
            self._replica.reset()
        elif verb == "speed":
            self._replica.set_speed(float(value))
        elif verb != "stats":
            connection.write(answer("404 Not Found", b"{}"))
            return
        connection.write(answer("200 OK", orjson.dumps(self._replica.stats())))
