"""A replica as a process: it answers with the id of the request, its pool's name and its own.

``python -m support.chaos.real.replica NAME ADDRESS RECEIPTS DARK``: each inference that it has read
is a line of the file RECEIPTS before its answer begins; while the file DARK exists, its page of
metrics hangs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import orjson
from aiohttp import web
from tritonclient.grpc import service_pb2

from support.chaos.real.schedule import group

TAKES_S = 0.03
EVENTS = 5


class Served:
    """The replica.

    Args:
        name: Its name.
        receipts: File of what it has read.
        dark: File that makes metrics hang.
    """

    def __init__(self, name: str, receipts: str, dark: Path) -> None:
        self._name, self._dark = name, dark
        self._receipts = os.open(receipts, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def serve(self, address: str) -> None:
        """Serve until killed."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/{path:.*}", self._ready),
                web.post("/v2/repository/index", self._index),
                web.post("/{path:.*}", self._infer),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, 8000).start()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Methods(self),))
        server.add_insecure_port(f"{address}:8001")
        await server.start()
        await asyncio.Event().wait()

    def note(self, request: str, sequence: object) -> None:
        """Keep that a request was read."""
        os.write(self._receipts, f"{self._name} {request} {sequence or ''}\n".encode())

    async def call(self, message: bytes, _: Any) -> bytes:
        """Answer a gRPC inference."""
        asked = service_pb2.ModelInferRequest.FromString(message)
        self.note(asked.id, asked.parameters["sequence_id"].int64_param)
        await asyncio.sleep(TAKES_S)
        answer = service_pb2.ModelInferResponse(model_name=asked.model_name, id=asked.id)
        answer.parameters["replica"].string_param = self._name
        return bytes(answer.SerializeToString())

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _index(self, _: web.Request) -> web.Response:
        model = {"llm": "toy-llm"}.get(group(self._name), group(self._name))
        return web.json_response([{"name": model, "version": "1", "state": "READY"}])

    async def _metrics(self, _: web.Request) -> web.Response:
        while self._dark.exists():  # noqa: ASYNC110 - another process makes and removes it
            await asyncio.sleep(0.1)
        return web.Response(text="nv_inference_count 0\n")

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        name = asked.get("id") or (asked.get("text_input") or asked["prompt"]).split(" ")[0]
        self.note(name, asked.get("parameters", {}).get("sequence_id"))
        answer = orjson.dumps({"id": name, "replica": self._name})
        if not request.path.endswith("_stream"):
            await asyncio.sleep(TAKES_S)
            return web.Response(body=answer, content_type="application/json")
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        for _ in range(EVENTS):
            await stream.write(b"data: " + answer + b"\n\n")
            await asyncio.sleep(0.2)
        return stream


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, replica: Served) -> None:
        self._replica = replica

    def service(self, details: Any) -> Any:
        """Return the handler of any method."""
        if details.method.endswith("/ModelInfer"):
            return grpc.unary_unary_rpc_method_handler(self._replica.call)
        return grpc.unary_unary_rpc_method_handler(self._healthy)

    async def _healthy(self, _: bytes, __: Any) -> bytes:
        return b"\x08\x01"  # SERVING


if __name__ == "__main__":
    name, address, receipts, dark = sys.argv[1:]
    asyncio.run(Served(name, receipts, Path(dark)).serve(address))
