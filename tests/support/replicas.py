"""Test replicas over HTTP or HTTPS in the test's process, with configurable responses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from support.sites import end
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.names import LOAD_HEADER

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable


_NOWHERE = "127.0.0.1:1"
PATIENT = "20s"
"""Envoy's timeout for the picker and for health checks. Tests check decisions, not speed: on a busy
machine, a healthy process may be suspended for seconds."""


@dataclass
class Replica:
    """A replica: the requests that it received, and the settings of its responses."""

    name: str
    variant: str = "stable"
    address: str = ""
    """``ip:port``."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """Headers of each inference request."""
    at_once: int = 0
    most_at_once: int = 0
    hold_s: float = 0.0
    """Duration of an inference, seconds."""
    gate: asyncio.Event | None = None
    """If given, responses to inferences wait for this event."""
    status: int = 200
    """Status of responses to inferences."""
    closes: bool = False
    """Whether to close the connection instead of responding to an inference."""
    fails_on: bytes = b""
    """If given, inferences whose bodies contain this are answered with 500."""
    refuses: bytes = b""
    """If given, inferences whose bodies contain this are answered with 400, first of all."""
    breaks_on: bytes = b""
    """If given, inferences whose bodies contain this make it close the connection."""
    ready: bool = True
    index: tuple[dict[str, str], ...] = ()
    """Entries of its repository index."""
    loads: str = ""
    """If given, the load report in the response headers."""
    gaps_s: tuple[float, ...] = ()
    """If given, responses are streamed with these pauses between chunks, seconds."""

    ends: asyncio.Event | None = None
    """If given, streamed responses end only after this event."""

    events: tuple[bytes, ...] = ()
    """If given, responses to inferences are streams of these server-sent events."""
    early_headers: bool = False
    """Whether the headers of streamed responses are sent at once, before ``hold_s``."""
    host: str = "127.0.0.1"
    """Address on which it serves."""

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Replica]:
        """Serve on a free port."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v2", self._server),
                web.get("/{path:.*}", self._ready),
                web.post("/v2/repository/index", self._index),
                web.post("/{path:.*}", self._infer),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, 0, ssl_context=tls).start()
            host, port = runner.addresses[0][:2]
            self.address = f"{host}:{port}"
            yield self
        finally:
            await end(runner)

    def endpoint(self, **more: Any) -> dict[str, Any]:
        """Return the replica as an endpoint of a fleet file."""
        return {"id": self.name, "http": self.address, "variant": self.variant, **more}

    async def _ready(self, request: web.Request) -> web.Response:
        asked = request.path.endswith(("/ready", "/live"))
        return web.Response(status=200 if self.ready and asked else 400)

    async def _server(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "replica", "version": "1", "extensions": []})

    async def _index(self, _: web.Request) -> web.Response:
        return web.json_response(list(self.index))

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        sent = await request.read()
        self.asked.append(dict(request.headers))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        stream = web.StreamResponse() if self.gaps_s or self.events else None
        try:
            if stream is not None and self.early_headers:
                await stream.prepare(request)
            if self.refuses and self.refuses in sent:
                return web.json_response({"error": "unexpected input"}, status=400)
            await asyncio.sleep(self.hold_s)
            if self.gate is not None:
                await self.gate.wait()
            breaks = self.closes or (self.breaks_on and self.breaks_on in sent)
            if breaks and request.transport is not None:
                request.transport.abort()
            if self.fails_on and self.fails_on in sent:
                return web.json_response({"error": "cannot do that"}, status=500)
            if not sent.startswith(b"{"):  # Triton returns 500 for malformed JSON
                return web.json_response({"error": "failed to parse the request"}, status=500)
            if stream is None:
                headers = {LOAD_HEADER: self.loads} if self.loads else {}
                answer = {"text_output": self.name}
                return web.json_response(answer, status=self.status, headers=headers)
            await self._write(request, stream)
            return stream
        finally:
            self.at_once -= 1

    async def _write(self, request: web.Request, stream: web.StreamResponse) -> None:
        """Stream an answer."""
        if self.events:
            stream.content_type = "text/event-stream"
        if not stream.prepared:
            await stream.prepare(request)
        for event in self.events:
            await stream.write(b"data: " + event + b"\n\n")
        if self.events:
            return
        await stream.write(b"first ")
        for gap in self.gaps_s:
            await asyncio.sleep(gap)
            await stream.write(b"more ")
        if self.ends is not None:
            await self.ends.wait()
        await stream.write_eof(b"last")


def over(
    *replicas: Replica, more: dict[str, Any] | None = None, patience: str = PATIENT
) -> Callable[[dict[str, Any]], None]:
    """Return the change by which a fleet's only pool is one of these replicas.

    Args:
        replicas: The replicas, which serve.
        more: Further fields of the pool.
        patience: Envoy's timeout for the picker.
    """

    def change(fleet: dict[str, Any]) -> None:
        (pool,) = fleet["pools"]
        pool["endpoints"] = [replica.endpoint() for replica in replicas]
        pool["slow_start"] = {"window": 0}
        pool["health"] = {"interval": "300ms", "timeout": PATIENT, "unhealthy_after": 1}
        pool.update(more or {})
        fleet["pickers"]["timeout"] = patience

    return change


@asynccontextmanager
async def stack_over(
    *replicas: Replica,
    more: dict[str, Any] | None = None,
    patience: str = PATIENT,
    kind: type[LocalStack] = LocalStack,
    **options: Any,
) -> AsyncIterator[LocalStack]:
    """Start a stack with one pool, ``llm``, over replicas that serve only HTTP.

    Args:
        replicas: The replicas; those that are not started serve as long as the stack runs.
        more: Further fields of the pool.
        patience: Envoy's timeout for the picker.
        kind: Class of the stack.
        options: Options of ``LocalStack``.
    """
    # Stacks over Triton replicas use the transport `grpc` by default; these cover `nghttp2`.
    options.setdefault("transport", "nghttp2")
    async with AsyncExitStack() as exit_:
        for replica in replicas:
            if not replica.address:
                await exit_.enter_async_context(replica.serve())

        known = [
            TritonReplica(
                name=one.name,
                http=one.address,
                grpc=_NOWHERE,
                metrics=_NOWHERE,
                variant=one.variant,
                models={"toy-llm": ("1",)},
            )
            for one in replicas
        ]
        yield await exit_.enter_async_context(
            kind(
                replicas=known,
                models=("toy-llm",),
                fleet=over(*replicas, more=more, patience=patience),
                **options,
            )
        )
