"""Replicas that answer every inference with their own name, over HTTP and gRPC, in the process."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from aiohttp import web
from tritonclient.grpc import service_pb2

from support.sites import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVED_BY = "x-replica"
"""Header of HTTP answers: the replica's name."""

_MAX_BODY = 64 * 2**20


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, replica: NamedReplica) -> None:
        self._replica = replica

    def service(self, details: Any) -> Any:
        """Return the handler of any method."""
        method = details.method.rpartition("/")[2]
        if method == "Check":
            return grpc.unary_unary_rpc_method_handler(self._healthy)
        self._replica.asked.append(method)
        self._replica.headers.append(dict(details.invocation_metadata))
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(self._unary)

    async def _healthy(self, _: bytes, __: Any) -> bytes:
        return b"\x08\x01"  # SERVING

    async def _unary(self, message: bytes, _: Any) -> bytes:
        answer = service_pb2.ModelInferResponse(model_name=self._replica.name, id=str(len(message)))
        return bytes(answer.SerializeToString())

    async def _stream(self, messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            answer = service_pb2.ModelStreamInferResponse()
            answer.infer_response.model_name = self._replica.name
            answer.infer_response.id = str(len(message))
            yield answer.SerializeToString()


@dataclass
class NamedReplica:
    """A replica that says who it is."""

    name: str
    http: str = ""
    """``ip:port``."""
    grpc: str = ""
    """``ip:port``."""
    asked: list[str] = field(default_factory=list)
    """Paths and methods of the inferences that it received."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Their headers."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[NamedReplica]:
        """Serve on free ports."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.add_routes(
            [
                web.get("/{path:.*}", self._ready),
                web.post("/v2/repository/index", self._ready),
                web.post("/{path:.*}", self._infer),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MAX_BODY)])
        server.add_generic_rpc_handlers((_Methods(self),))
        port = server.add_insecure_port("127.0.0.1:0")
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, http_port = runner.addresses[0][:2]
            self.http, self.grpc = f"{host}:{http_port}", f"127.0.0.1:{port}"
            await server.start()
            yield self
        finally:
            await server.stop(0)
            await end(runner)

    def endpoint(self) -> dict[str, Any]:
        """Return the replica as an endpoint of a fleet file."""
        return {"id": self.name, "http": self.http, "grpc": self.grpc}

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        answer = {"replica": self.name, "bytes": len(body)}
        return web.json_response(answer, headers={SERVED_BY: self.name})


@asynccontextmanager
async def named_replicas(*names: str) -> AsyncIterator[list[NamedReplica]]:
    """Run a replica of each name."""
    async with AsyncExitStack() as exit_:
        made = [NamedReplica(name) for name in names]
        for replica in made:
            await exit_.enter_async_context(replica.serve())
        yield made


def pools_of(
    replicas: list[NamedReplica],
    models: list[tuple[str, ...]],
    path: str,
    routing: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return one pool per replica, all on one path; the first is the default.

    Args:
        replicas: The replicas; each pool has its replica's name.
        models: Models of each pool.
        path: The path that the pools share.
        routing: Settings of each pool.
    """
    return [
        {
            "name": replica.name,
            "default": position == 0,
            "match": {"models": list(models[position]), "paths": [path]},
            "endpoints": [replica.endpoint()],
            "routing": routing[position],
            "slow_start": {"window": 0},
            "health": {"interval": "300ms", "timeout": "20s", "unhealthy_after": 1},
        }
        for position, replica in enumerate(replicas)
    ]
