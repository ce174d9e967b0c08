"""Traffic through a real Envoy, and checks of its effects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import grpc
import numpy as np
import orjson
import tritonclient.grpc.aio as triton_grpc

from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_api.names import SERVED_BY_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tidegate.stack.local import LocalStack

GENERATE = "/v2/models/toy-llm/generate"
GENERATE_STREAM = "/v2/models/toy-llm/generate_stream"
VISION = "/v2/models/vision/infer"
COUNTER = "/v2/models/counter/infer"
STREAM_TOKENS = int(os.environ.get("TIDEGATE_STREAM_TOKENS", "1200"))
"""Tokens of streams that tests wait for; 200,000 of them take minutes."""


def fresh_prompt(characters: int = 400) -> str:
    """Return a prompt that is in no cache."""
    return (uuid.uuid4().hex * (characters // 32 + 1))[:characters]


def vision_body() -> dict[str, Any]:
    """Return an HTTP infer body of the vision model."""
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [0.5] * 3072}
    return {"inputs": [image]}


def vision_inputs() -> list[Any]:
    """Return gRPC inputs of the vision model."""
    image = triton_grpc.InferInput("image", [1, 3, 32, 32], "FP32")
    image.set_data_from_numpy(np.full((1, 3, 32, 32), 0.5, dtype=np.float32))
    return [image]


def counter_inputs(value: int) -> list[Any]:
    """Return gRPC inputs of the counter model."""
    tensor = triton_grpc.InferInput("value", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
    return [tensor]


def counter_body(value: int, sequence: int | str, **flags: bool) -> dict[str, Any]:
    """Return an HTTP infer body of the counter model."""
    return {
        "parameters": {"sequence_id": sequence, **flags},
        "inputs": [{"name": "value", "datatype": "INT32", "shape": [1], "data": [value]}],
    }


def llm_inputs(text: str, max_tokens: int, *, stream: bool = True) -> list[Any]:
    """Return gRPC inputs of the language model."""
    prompt = triton_grpc.InferInput("text_input", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    tokens = triton_grpc.InferInput("max_tokens", [1], "INT32")
    tokens.set_data_from_numpy(np.array([max_tokens], dtype=np.int32))
    streamed = triton_grpc.InferInput("stream", [1], "BOOL")
    streamed.set_data_from_numpy(np.array([stream]))
    return [prompt, tokens, streamed]


@contextlib.asynccontextmanager
async def admin(stack: LocalStack) -> AsyncIterator[Any]:
    """Connect to the control server's admin API."""
    async with grpc.aio.insecure_channel(stack.admin_address) as channel:
        yield admin_pb2_grpc.AdminStub(channel)


async def in_force(stack: LocalStack, result: Any) -> None:
    """Wait until all clients have a change; one that did not run for a second is only late."""
    assert all(each.state == "STALLED" for each in result.problems), result.problems
    if result.problems or result.acked < result.clients:
        await stack.wait_synced()


async def picker_state(http: aiohttp.ClientSession, stack: LocalStack) -> dict[str, Any]:
    """Return the picker's ``/debug/state``."""
    async with http.get(f"http://{stack.picker_metrics}/debug/state") as answer:
        return orjson.loads(await answer.read())


async def metric(http: aiohttp.ClientSession, address: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's series with these labels."""
    async with http.get(f"http://{address}/metrics") as answer:
        page = await answer.text()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.partition("{")[0].partition(" ")[0] == name and all(w in line for w in wanted)
    )


SLOWEST_LOOK_S = 0.1
"""Pause between two looks of a long wait, seconds: a page takes milliseconds of two processes."""
PATIENCE_S = 60.0
"""Time limit of a wait, seconds; generous, because only a failing test uses all of it."""


async def eventually(look: Callable[[], Awaitable[bool]], within_s: float = PATIENCE_S) -> bool:
    """Poll ``look`` until it returns true; return false at the time limit.

    Give ``within_s`` only if a later success would be wrong.
    """
    deadline, pause_s = asyncio.get_running_loop().time() + within_s, 0.01
    while not await look():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, SLOWEST_LOOK_S)
    return True


@dataclass
class Traffic:
    """Background requests in a closed loop over a few workers.

    Every status other than 200 and every error is a failure, except an answer that ``dies`` has
    begun and does not end: it may not be repeated.
    """

    http: aiohttp.ClientSession
    url: str
    body: Callable[[], dict[str, Any]]
    workers: int = 8
    pause_s: float = 0.04
    """Time between an answer and the next request of a worker, seconds: clients that never wait
    take the time of what they test."""
    dies: str = ""
    """Address of a replica that is killed meanwhile."""
    cut: int = 0
    """Number of answers that it has begun and not ended."""
    served: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _finished: Counter[int] = field(default_factory=Counter)
    """Requests that each worker has finished."""
    _stop: bool = False
    _ended: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __aenter__(self) -> Self:
        """Start and wait for the first responses."""
        self._tasks = [asyncio.create_task(self._work(each)) for each in range(self.workers)]
        await self.more(2 * self.workers)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop and wait for requests in flight."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    @property
    def count(self) -> int:
        """Number of finished requests, successful, cut or failed."""
        return self.served.total() + self.cut + len(self.failures)

    async def more(self, requests: int) -> None:
        """Wait until ``requests`` more requests have finished."""
        goal = self.count + requests
        async with self._ended:
            await self._ended.wait_for(lambda: self.count >= goal)

    async def drained(self) -> None:
        """Wait until all that was sent before this call has finished."""
        goals = {each: self._finished[each] + 1 for each in range(self.workers)}
        async with self._ended:
            await self._ended.wait_for(
                lambda: all(self._finished[each] >= goal for each, goal in goals.items())
            )

    async def _work(self, worker: int) -> None:
        while not self._stop:
            server = None
            try:
                async with self.http.post(self.url, json=self.body()) as answer:
                    server = answer.headers.get(SERVED_BY_HEADER, "?")
                    text = await answer.text()
                    if answer.status == 200:
                        self.served[server] += 1
                    else:
                        self.failures.append(f"{answer.status} {text[:200]}")
            except (aiohttp.ClientError, TimeoutError) as error:
                if isinstance(error, aiohttp.ClientPayloadError) and server == self.dies:
                    self.cut += 1
                else:
                    self.failures.append(f"{error!r} from {server}")
            self._finished[worker] += 1
            async with self._ended:
                self._ended.notify_all()
            await asyncio.sleep(self.pause_s)
