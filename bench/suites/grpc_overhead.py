"""The gRPC part of ``overhead``: unary calls in a closed loop, with and without a picker.

``ServerMetadata`` bypasses the picker and is the reference; ``ModelInfer`` uses it. Both have the
same size, and the instant upstreams answer any call immediately with a status, which counts as the
response. The client is ``grpc.aio`` in the process of the bench, so requests/s are limited by the
client rather than by Envoy; CPU per request of Envoy and picker and added latency are not.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from tritonclient.grpc import service_pb2

from bench.overhead import cpu_seconds
from bench.suites.summary import distribution
from tidegate.stack.local import ENVOY, PICKER

if TYPE_CHECKING:
    from tidegate.stack.local import LocalStack

SERVICE: Final = "inference.GRPCInferenceService"
CALLS: Final = {"envoy alone": "ServerMetadata", "none": "vision", "peek": "toy-llm"}
_ANSWER: Final = grpc.StatusCode.UNKNOWN
"""gRPC status of Envoy's direct response."""


def infer_bytes(model: str, size: int) -> bytes:
    """Return a ``ModelInferRequest`` with a prompt, of about ``size`` bytes."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text = "".join(f"word{n} " for n in range(size // 5)).encode()[: max(1, size - 80)]
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    data: bytes = request.SerializeToString()
    return data


async def grpc_rows(
    stack: LocalStack, size: int, concurrency: int, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Measure the calls alternately over several rounds."""
    rows = []
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(stack.grpc_address, options=options) as channel:
        for turn in range(rounds):
            for name, call in CALLS.items():
                model = call if name != "envoy alone" else "vision"
                method = "ModelInfer" if name != "envoy alone" else call
                invoke: Any = channel.unary_unary(f"/{SERVICE}/{method}")
                request = infer_bytes(model, size)
                await _loop(invoke, request, 1, 0.2)
                pids = {each: stack.pid(each) for each in (ENVOY, PICKER)}
                before = {each: cpu_seconds(pid) for each, pid in pids.items()}
                begin = time.perf_counter()
                latencies = await _loop(invoke, request, concurrency, seconds)
                took = time.perf_counter() - begin
                rows.append(
                    {
                        "target": name,
                        "bytes": size,
                        "round": turn,
                        "requests": len(latencies),
                        "per_s": len(latencies) / took,
                        "ms": distribution(latencies, 1000),
                        "cpu_us": {
                            each: (cpu_seconds(pid) - before[each]) / len(latencies) * 1e6
                            for each, pid in pids.items()
                        },
                    }
                )
    return rows


async def _loop(invoke: Any, request: bytes, concurrency: int, seconds: float) -> list[float]:
    until = time.perf_counter() + seconds
    latencies: list[float] = []

    async def client() -> None:
        while (start := time.perf_counter()) < until:
            try:
                await invoke(request, timeout=10.0)
            except grpc.aio.AioRpcError as error:
                if error.code() != _ANSWER:
                    raise
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return latencies
