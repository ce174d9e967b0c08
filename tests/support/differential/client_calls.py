"""Calls of tritonclient over HTTP and gRPC, blocking and with asyncio."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from support.differential.answers import Answer, Call, Target
from support.differential.rpc import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PIXELS: Final = np.full((1, 3, 32, 32), 0.5, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the four clients."""

    name: str
    module: Any
    """Makes inputs and outputs."""
    client: Any
    """Class of the client."""
    http: bool
    waits: bool
    """Whether its methods are coroutines."""


KINDS: Final = (
    Kind(
        "tritonclient http", http_client, http_client.InferenceServerClient, http=True, waits=False
    ),
    Kind(
        "tritonclient http.aio", http_client, http_aio.InferenceServerClient, http=True, waits=True
    ),
    Kind(
        "tritonclient grpc", grpc_client, grpc_client.InferenceServerClient, http=False, waits=False
    ),
    Kind(
        "tritonclient grpc.aio", grpc_client, grpc_aio.InferenceServerClient, http=False, waits=True
    ),
)


def tensor(kind: Kind, name: str, array: Any, datatype: str, **more: Any) -> Any:
    """Return an input."""
    made = kind.module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, **more)
    return made


def plain(result: Any) -> Any:
    """Return what a client's method returned, as JSON."""
    if not hasattr(result, "as_numpy"):
        return value(result)
    response = result.get_response()
    said = response if isinstance(response, dict) else value(response)
    names = [one["name"] for one in said["outputs"]]
    return [said, {name: np.asarray(result.as_numpy(name)).tolist() for name in names}]


def without_counts(result: Any) -> Any:
    """Return which models and versions statistics are of."""
    pages = value(result)["model_stats"]
    return [(one["name"], one["version"]) for one in pages]


async def _asked(kind: Kind, target: Target, method: Callable[[Kind, Any], Any]) -> Answer:
    address = target.http if kind.http else target.grpc
    try:
        if kind.waits:
            async with kind.client(address) as client:
                result = method(kind, client)
                return {"result": plain(await result if inspect.isawaitable(result) else result)}
        return {"result": await asyncio.to_thread(_blocking, kind, address, method)}
    except InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


def _blocking(kind: Kind, address: str, method: Callable[[Kind, Any], Any]) -> Any:
    with kind.client(address) as client:
        return plain(method(kind, client))


def _infer(kind: Kind, client: Any, **options: Any) -> Any:
    inputs = [tensor(kind, "image", PIXELS, "FP32")]
    return client.infer(options.pop("model", "vision"), inputs, **options)


def _count(kind: Kind, client: Any, sequence: int | str) -> Any:
    inputs = [tensor(kind, "value", np.array([3], dtype=np.int32), "INT32")]
    return client.infer(
        "counter", inputs, sequence_id=sequence, sequence_start=True, sequence_end=True
    )


def _outputs(kind: Kind, **options: Any) -> list[Any]:
    return [kind.module.InferRequestedOutput("scores", **options)]


_METHODS: Final[dict[str, Callable[[Kind, Any], Any]]] = {
    "is_server_live": lambda _, client: client.is_server_live(),
    "is_server_ready": lambda _, client: client.is_server_ready(),
    "is_model_ready": lambda _, client: client.is_model_ready("vision"),
    "is_model_ready of a version": lambda _, client: client.is_model_ready("vision", "1"),
    "is_model_ready of an unknown one": lambda _, client: client.is_model_ready("missing"),
    "is_model_ready of version 9": lambda _, client: client.is_model_ready("vision", "9"),
    "get_server_metadata": lambda _, client: client.get_server_metadata(),
    "get_model_metadata": lambda _, client: client.get_model_metadata("toy-llm"),
    "get_model_metadata of a version": lambda _, client: client.get_model_metadata("vision", "1"),
    "get_model_config": lambda _, client: client.get_model_config("counter"),
    "get_model_config of a version": lambda _, client: client.get_model_config("vision", "1"),
    "get_model_config of an unknown one": lambda _, client: client.get_model_config("missing"),
    "infer": _infer,
    "infer with a version": lambda kind, client: _infer(kind, client, model_version="1"),
    "infer with an id": lambda kind, client: _infer(kind, client, request_id="mine"),
    "infer with a priority": lambda kind, client: _infer(kind, client, priority=1),
    "infer with a timeout": lambda kind, client: _infer(kind, client, timeout=5_000_000),
    "infer with parameters": lambda kind, client: _infer(kind, client, parameters={"a": "b"}),
    "infer with headers": lambda kind, client: _infer(kind, client, headers={"x-session-id": "s"}),
    "infer with outputs": lambda kind, client: _infer(kind, client, outputs=_outputs(kind)),
    "infer with classes": lambda kind, client: _infer(
        kind, client, outputs=_outputs(kind, class_count=2)
    ),
    "infer of a sequence": lambda kind, client: _count(kind, client, 930),
    "infer of a text sequence": lambda kind, client: _count(kind, client, "c"),
    "infer of an unknown model": lambda kind, client: _infer(kind, client, model="missing"),
    "infer of an unknown version": lambda kind, client: _infer(kind, client, model_version="9"),
    "get_model_repository_index": lambda _, client: client.get_model_repository_index(),
    "get_trace_settings": lambda _, client: client.get_trace_settings(),
    "get_trace_settings of a model": lambda _, client: client.get_trace_settings("vision"),
    "get_log_settings": lambda _, client: client.get_log_settings(),
    "get_system_shared_memory_status": lambda _, client: client.get_system_shared_memory_status(),
    "get_system_shared_memory_status of a region": lambda _, client: (
        client.get_system_shared_memory_status("a")
    ),
    "get_cuda_shared_memory_status": lambda _, client: client.get_cuda_shared_memory_status(),
}
_OVER_HTTP: Final[dict[str, Callable[[Kind, Any], Any]]] = {
    "infer in JSON": lambda kind, client: client.infer(
        "vision",
        [tensor(kind, "image", PIXELS, "FP32", binary_data=False)],
        outputs=_outputs(kind, binary_data=False),
    ),
    "infer gzip": lambda kind, client: _infer(kind, client, request_compression_algorithm="gzip"),
    "infer deflate": lambda kind, client: _infer(
        kind, client, request_compression_algorithm="deflate"
    ),
    "infer answered in gzip": lambda kind, client: _infer(
        kind, client, response_compression_algorithm="gzip"
    ),
    "infer answered in deflate": lambda kind, client: _infer(
        kind, client, response_compression_algorithm="deflate"
    ),
}
_OVER_GRPC: Final[dict[str, Callable[[Kind, Any], Any]]] = {
    "infer gzip": lambda kind, client: _infer(kind, client, compression_algorithm="gzip"),
    "infer deflate": lambda kind, client: _infer(kind, client, compression_algorithm="deflate"),
    "infer with a client's timeout": lambda kind, client: _infer(kind, client, client_timeout=5.0),
}


def _call(kind: Kind, name: str, method: Callable[[Kind, Any], Any]) -> Call:
    async def ask(target: Target) -> Answer:
        return await _asked(kind, target, method)

    return Call(f"{kind.name}: {name}", ask)


async def _async_infer(target: Target) -> Answer:
    def asked() -> Any:
        with http_client.InferenceServerClient(target.http) as client:
            inputs = [tensor(KINDS[0], "image", PIXELS, "FP32")]
            return [plain(client.async_infer("vision", inputs).get_result()) for _ in range(2)]

    return {"result": await asyncio.to_thread(asked)}


async def _streamed(target: Target) -> Answer:
    def asked() -> Any:
        got: list[Any] = []
        with grpc_client.InferenceServerClient(target.grpc) as client:
            client.start_stream(lambda result, error: got.append(result or error))
            client.async_stream_infer("toy-llm", _prompt(), request_id="mine")
            client.async_stream_infer("toy-llm", _prompt(), request_id="next")
            client.stop_stream()
        # Which of two requests is answered first is chance.
        return sorted((_shown(one, one) for one in got), key=repr)

    return {"result": await asyncio.to_thread(asked)}


async def _streamed_aio(target: Target) -> Answer:
    """Ask for a model, and in a stream of its own for one that is not there.

    In one stream the refusal ends Triton 2.51 now and then, also after the other's last answer
    (``ASSERTION FAILED: !byte_buffer->Valid()``).
    """

    async def request(model: str) -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": model, "inputs": _prompt(), "request_id": model}

    got: list[Any] = []
    async with grpc_aio.InferenceServerClient(target.grpc) as client:
        for model in ("toy-llm", "missing"):
            async for result, error in client.stream_infer(request(model)):
                got.append(_shown(result, error))
    return {"result": sorted(got, key=repr)}


def _shown(result: Any, error: Any) -> Any:
    return plain(result) if hasattr(result, "as_numpy") else str(error)


def _prompt() -> list[Any]:
    kind = KINDS[2]
    return [
        tensor(kind, "text_input", np.array([b"tides"], dtype=np.object_), "BYTES"),
        tensor(kind, "max_tokens", np.array([2], dtype=np.int32), "INT32"),
        tensor(kind, "stream", np.array([True]), "BOOL"),
    ]


def _statistics(*model: str) -> Callable[[Kind, Any], Any]:
    def ask(kind: Kind, client: Any) -> Any:
        if kind.waits:

            async def waited() -> Any:
                return without_counts(await client.get_inference_statistics(*model))

            return waited()
        return without_counts(client.get_inference_statistics(*model))

    return ask


CLIENTS: Final = (
    *(
        _call(kind, name, method)
        for kind in KINDS
        for name, method in (
            *_METHODS.items(),
            ("get_inference_statistics", _statistics("vision")),
            ("get_inference_statistics of a version", _statistics("vision", "1")),
            ("get_inference_statistics of an unknown one", _statistics("missing")),
            ("get_inference_statistics of all", _statistics()),
            *(_OVER_HTTP if kind.http else _OVER_GRPC).items(),
        )
    ),
    Call("tritonclient http: async_infer", _async_infer),
    Call("tritonclient grpc: stream", _streamed),
    Call("tritonclient grpc.aio: stream", _streamed_aio),
)
