"""Two pools on separate replicas behind one gateway, and requests to them in every form."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton_grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from support.named_replicas import named_replicas, pools_of
from support.traffic import eventually
from tidegate.stack.local import LocalStack
from tidegate.stack.probes import picker_healthy
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.names import REASON_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

    from support.named_replicas import NamedReplica

CHAT = "/v1/chat/completions"
ENGINES = ("/v1/responses", "/v1/messages", "/v1/rerank")
"""Other forms whose body names the model."""
MORE = ("/v1/score", "/v1/completions", "/v1/embeddings", "/rerank", "/score")
"""Further paths: Envoy has a limit on patterns of many paths."""
MODELS = {"one": "toy-llm", "two": "other"}
"""Pool, which is also the name of its replica -> model."""

SMALL, LARGE, HUGE = 100, 2_000_000, 6_000_000
"""Bytes; more than `peek_bytes`, and more than `max_body`."""


class World:
    """A stack over two pools, and requests to it."""

    def __init__(self, stack: LocalStack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.http = http

    async def by_path(self, model: str, size: int, *, packed: bool) -> str:
        """Infer over HTTP by the path; return the pool that answered."""
        return (await self.post(f"/v2/models/{model}/infer", {"pad": "x" * size}, packed))[1]

    async def chat(self, model: str, size: int, *, packed: bool) -> str:
        """Complete a chat whose body names the model at its end."""
        said = [{"role": "user", "content": "x" * size}]
        return (await self.post(CHAT, {"messages": said, "model": model}, packed))[1]

    async def post(self, path: str, body: Any, packed: bool = False) -> tuple[int, str, Any]:
        """Post a body; return the status, the pool or the reason of a refusal, and the answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if packed:
            raw, headers["content-encoding"] = gzip.compress(raw), "gzip"
        url = self.stack.http_url + path
        async with self.http.post(url, data=io.BytesIO(raw), headers=headers) as answer:
            text = await answer.text()
            if answer.status == 200:
                return 200, json.loads(text)["replica"], answer
            reason = answer.headers.get(REASON_HEADER, "")
            told = json.loads(text) if answer.content_type == "application/json" else text
            return answer.status, reason, (told, dict(answer.headers))

    async def unary(self, model: str, size: int, *, packed: bool) -> str:
        """Infer over gRPC; return the pool that answered, or the status."""
        async with triton_grpc.InferenceServerClient(self.stack.grpc_address) as client:
            try:
                answer = await client.infer(
                    model, inputs(size), compression_algorithm="gzip" if packed else None
                )
            except InferenceServerException as error:
                return str(error.status())
            return str(answer.get_response().model_name)

    async def stream(self, model: str, size: int, *, packed: bool) -> str:
        """Stream two inferences over an unmodified client; return the pool that answered."""
        answered = asyncio.Event()

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": model, "inputs": inputs(size)}
            await answered.wait()
            yield {"model_name": model, "inputs": inputs(SMALL)}

        packing = "gzip" if packed else None
        async with triton_grpc.InferenceServerClient(self.stack.grpc_address) as client:
            names = set()
            try:
                async for answer, error in client.stream_infer(
                    requests(), compression_algorithm=packing
                ):
                    assert error is None
                    names.add(answer.get_response().model_name)
                    answered.set()
            except grpc.aio.AioRpcError as error:
                return str(error.code())
            (name,) = names
            return str(name)

    async def picker_gone(self) -> None:
        """Kill the picker and wait until Envoy knows."""
        await self.stack.kill_picker()

        async def noticed() -> bool:
            return await picker_healthy(self.http, self.stack.envoy_admin, 1) is not None

        assert await eventually(noticed)


def inputs(size: int) -> list[Any]:
    """Return gRPC inputs of about this many bytes."""
    tensor = triton_grpc.InferInput("data", [size], "INT8")
    tensor.set_data_from_numpy(np.zeros(size, dtype=np.int8))
    return [tensor]


async def started(
    exit_: AsyncExitStack,
    http: aiohttp.ClientSession,
    second: dict[str, Any] | None = None,
    **routing: Any,
) -> tuple[World, list[NamedReplica]]:
    """Start two replicas, a pool of each, and a stack over both."""
    replicas = await exit_.enter_async_context(named_replicas(*MODELS))
    models = [(model,) for model in MODELS.values()]

    def over(fleet: dict[str, Any]) -> None:
        fleet["pools"] = pools_of(
            replicas, models, CHAT, [routing, routing if second is None else second]
        )
        for pool in fleet["pools"]:
            pool["match"]["paths"] += (*ENGINES, *MORE)
        fleet["pickers"]["timeout"] = "20s"

    known = [
        TritonReplica(
            name=one.name,
            http=one.http,
            grpc=one.grpc,
            metrics="127.0.0.1:1",
            variant="stable",
            models={MODELS[one.name]: ("1",)},
        )
        for one in replicas
    ]
    stack = LocalStack(replicas=known, models=("toy-llm",), fleet=over)
    return World(await exit_.enter_async_context(stack), http), replicas


def message(model: str, raw: bytes = b"") -> bytes:
    """Return a serialized ModelInferRequest."""
    request = service_pb2.ModelInferRequest(model_name=model)
    if raw:
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())
