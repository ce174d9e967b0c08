"""A bare picker: the minimum cost of an ext_proc picker on ``grpc.aio``, with prebuilt replies.

    python bench/cost/bare_picker.py --listen 127.0.0.1:50051 --upstreams 127.0.0.1:8000 ...

It reads the messages of a stream without parsing them and writes a prebuilt reply to each. The
replies are recorded from the real picker, so their number and size are equal. It is the reference
of ``bench/cost/exchange.py`` and of the suite ``overhead``: its cost is that of grpcio, and the
cost of the real picker above it is that of our code. As a program it serves an Envoy, with the
health and access-log services that Envoy expects at a picker's address. Start it with the
environment of ``ext_proc.server.transport``, like pickers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from grpc_health.v1 import health_pb2_grpc
from prometheus_client import CollectorRegistry

sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from ext_proc.observability.metrics import Metrics
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.server.growing import OPTIONS
from ext_proc.server.service import PickerServer
from ext_proc.server.wire import METHOD, SERVICE
from support.streams import MODE, Messages, llm, router
from tidegate_common.health import HealthService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.values.pool import Pool

Script = list[list[bytes]]
"""Replies to each message of a stream, in order."""

ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
SENDING = {
    "none": MODE.NONE,
    "peek": MODE.NONE,
    "buffered": MODE.BUFFERED,
    "duplex": MODE.FULL_DUPLEX_STREAMED,
}
"""Body mode of the benchmark -> body mode that Envoy announces."""
BODIES = {"none": "none", "peek": "peek", "buffered": "full", "duplex": "peek"}
"""Body mode of the benchmark -> body mode of the pool."""
HEADERS = {
    "content-type": "application/json",
    "content-length": "2048",
    "x-request-id": "3f0b8b1e-7d8c-4b52-a8d9-0a1f2c3d4e5f",
    "x-session-id": "user-4711",
}
"""Headers of a typical request that Tidegate's listener forwards, besides method and path."""
CLUSTERS = {b"vision/": "none", b"llm/": "peek", b"counter/": "buffered"}
"""Prefix of the cluster name -> body mode, for the pools of ``bench/overhead.py``."""


def messages(mode: str, text: str) -> list[bytes]:
    """Return Envoy's messages for a request with the prompt ``text``."""
    made = Messages(mode=SENDING[mode])
    made.head(headers=HEADERS)
    if mode != "none":
        made.body({"text_input": text})
    return made.bytes()


class Scripted:
    """A stream with given messages that records the replies to each."""

    def __init__(self, sent: Sequence[bytes]) -> None:
        self._messages = iter(sent)
        self.replies: Script = []

    def invocation_metadata(self) -> tuple[()]:
        """Return the call's metadata: none."""
        return ()

    async def read(self) -> bytes | Any:
        """Return the next message, or the end of the stream."""
        message = next(self._messages, grpc.aio.EOF)
        if message is not grpc.aio.EOF:
            self.replies.append([])
        return message

    async def write(self, reply: bytes) -> None:
        """Record a reply."""
        self.replies[-1].append(reply)


def script(mode: str, pool: Pool, text: str) -> Script:
    """Return the real picker's replies to such a request."""
    server = PickerServer(router(pool), picker="bench", metrics=Metrics(CollectorRegistry()))
    stream = Scripted(messages(mode, text))
    asyncio.run(server.process(None, stream))
    return stream.replies


class BarePicker:
    """A picker with prebuilt replies.

    Args:
        scripts: Substring of the request's head -> replies; ``b""`` matches every request.
    """

    def __init__(self, scripts: dict[bytes, Script]) -> None:
        self._scripts = list(scripts.items())
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> str:
        """Listen, and return the bound address."""
        server = grpc.aio.server(options=OPTIONS)
        picker: Any = grpc.stream_stream_rpc_method_handler(self._process)
        sink: Any = grpc.stream_unary_rpc_method_handler(self._drop)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {METHOD: picker}),
                grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": sink}),
            )
        )
        health = HealthService()
        for service in ("", "readiness", "liveness", SERVICE):
            health.set(service, serving=True)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port(address)
        await server.start()
        self._server = server
        return f"{address.rpartition(':')[0]}:{port}"

    async def stop(self) -> None:
        """End all streams."""
        if self._server is not None:
            await self._server.stop(0)

    async def _process(self, _: Any, context: Any) -> None:
        data = await context.read()
        if data is grpc.aio.EOF:
            return
        for replies in next(script for mark, script in self._scripts if mark in data):
            for reply in replies:
                await context.write(reply)
            if (data := await context.read()) is grpc.aio.EOF:
                return

    async def _drop(self, _: Any, context: Any) -> bytes:
        while await context.read() is not grpc.aio.EOF:
            pass
        return b""


def behind_envoy(upstreams: Sequence[str], text: str) -> dict[bytes, Script]:
    """Return the replies for the pools of ``bench/overhead.py`` with these replicas."""
    endpoints = tuple(
        Endpoint(EndpointKey(f"u{number}", 1), "stable", http=address, grpc=None)
        for number, address in enumerate(upstreams, 1)
    )
    return {
        mark: script(mode, llm(body=BODIES[mode], endpoints=endpoints), text)
        for mark, mode in CLUSTERS.items()
    }


async def _serve(address: str, scripts: dict[bytes, Script]) -> None:
    await BarePicker(scripts).start(address)
    await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", required=True, help="ip:port")
    parser.add_argument("--upstreams", required=True, nargs="+", help="ip:port of picked endpoints")
    args = parser.parse_args()
    uvloop.run(_serve(args.listen, behind_envoy(args.upstreams, "")))


if __name__ == "__main__":
    main()
