"""Measures whether a real Triton stops work whose client has left.

``PYTHONPATH=tests:. python -m support.abandoned_work`` starts one replica, abandons requests in
each way that a proxy does (it closes the connection, or resets the gRPC stream) and writes what
went on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request

from support.mistakes.request import GENERATE, STREAM
from tidegate.stack.tritons.fleet import Tritons

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GRPC: Final = "/inference.GRPCInferenceService/"
VISION: Final = "/v2/models/vision/infer"
DONE: Final = {"toy-llm": "iteration_counter", "vision": "nv_inference_count"}
"""Series that count work, by model: iterations, of one token per request, and executions."""
LEAVE_S: Final = 0.5
"""When the client leaves, seconds after it sent the request."""
BATCH_MS: Final = 2000
"""Duration of one execution of the classifier, which takes one request at a time here."""
TOKENS: Final = 400
"""Tokens of a generation; each takes about 30 ms here."""


def generation(*, stream: bool = False) -> bytes:
    body = {"text_input": "tide " * 8, "max_tokens": TOKENS, "stream": stream}
    return json.dumps(body).encode()


async def post(address: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Send a request over HTTP and close the connection after ``LEAVE_S``."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    lines = [f"POST {path} HTTP/1.1", f"host: {address}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join((*lines, "", "")).encode() + body)
    await writer.drain()
    await asyncio.sleep(LEAVE_S)
    writer.close()
    await writer.wait_closed()


def image() -> Any:
    tensor = grpcclient.InferInput("image", [8, 3, 32, 32], "FP32")
    tensor.set_data_from_numpy(np.zeros((8, 3, 32, 32), np.float32))
    return _get_inference_request("vision", [tensor], "", "", None, 0, False, False, 0, None, None)


def image_body() -> tuple[bytes, dict[str, str]]:
    data = bytes(8 * 3 * 32 * 32 * 4)
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": [8, 3, 32, 32],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


async def call(address: str) -> None:
    """Send a unary gRPC request and cancel it after ``LEAVE_S``."""
    async with grpc.aio.insecure_channel(address) as channel:
        sent = channel.unary_unary(GRPC + "ModelInfer")(image().SerializeToString())
        await asyncio.sleep(LEAVE_S)
        sent.cancel()
        await asyncio.sleep(0)


async def stream(address: str) -> None:
    """Send a generation on a gRPC stream and cancel the stream after ``LEAVE_S``."""
    message = service_pb2.ModelInferRequest(model_name="toy-llm")
    for name, kind, raw in (
        ("text_input", "BYTES", b"\x04\0\0\0tide"),
        ("max_tokens", "INT32", TOKENS.to_bytes(4, "little")),
        ("stream", "BOOL", b"\1"),
    ):
        message.inputs.add(name=name, datatype=kind, shape=[1])
        message.raw_input_contents.append(raw)
    async with grpc.aio.insecure_channel(address) as channel:
        sent = channel.stream_stream(GRPC + "ModelStreamInfer")()
        await sent.write(message.SerializeToString())
        await asyncio.sleep(LEAVE_S)
        sent.cancel()
        await asyncio.sleep(0)


async def page(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with http.get(url) as answer:
        lines = (await answer.text()).splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"
    }


async def idle(http: aiohttp.ClientSession, url: str, model: str) -> float:
    """Return the seconds until the model does no more work."""
    begun = changed = time.monotonic()
    last = -1.0
    while time.monotonic() - changed < BATCH_MS / 1000 + 0.5:
        now = work(await page(http, url), model)
        if now != last:
            last, changed = now, time.monotonic()
        await asyncio.sleep(0.05)
    return changed - begun


def work(found: dict[str, float], model: str) -> float:
    """Return a counter of what the model has done: tokens, or executions."""
    return sum(
        value for name, value in found.items() if DONE[model] in name and f'"{model}"' in name
    )


async def measure() -> None:
    """Write a line for each way to leave."""
    env = {"TOY_LLM_TIME_SCALE": "6", "VISION_BATCH_MS": str(BATCH_MS)}
    async with Tritons(1, env=env) as tritons, aiohttp.ClientSession() as http:
        replica = tritons.replica("r1")
        url, vision = replica.metrics_url, image_body()
        cases: list[tuple[str, str, Callable[[], Awaitable[None]], int]] = [
            ("generate", "toy-llm", lambda: post(replica.http, GENERATE, generation()), 1),
            (
                "generate_stream",
                "toy-llm",
                lambda: post(replica.http, STREAM, generation(stream=True)),
                1,
            ),
            ("ModelStreamInfer", "toy-llm", lambda: stream(replica.grpc), 1),
            ("infer", "vision", lambda: post(replica.http, VISION, *vision), 3),
            ("ModelInfer", "vision", lambda: call(replica.grpc), 3),
        ]
        for name, model, send, count in cases:
            before = await page(http, url)
            await asyncio.gather(*(send() for _ in range(count)))
            lasted = await idle(http, url, model)
            done = work(await page(http, url), model) - work(before, model)
            sys.stdout.write(
                f"{name}: {count} left after {LEAVE_S} s; the model worked for {lasted:.1f} s more;"
                f" {DONE[model]} rose by {done:g}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(measure())
