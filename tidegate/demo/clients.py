"""Clients of the demo: ``tritonclient`` for KServe, ``aiohttp`` for Triton's generate endpoints."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http

from tidegate_api.names import MODEL_HEADER, SESSION_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

LLM: Final = "toy-llm"
VISION: Final = "vision"
COUNTER: Final = "counter"
IMAGE_SHAPE: Final = (1, 3, 32, 32)
TIMEOUT_S: Final = 30.0
"""Time limit of one request, seconds."""
MAX_LINE_BYTES: Final = 2**20
MAX_ERROR_CHARS: Final = 160


class AnswerError(Exception):
    """A response that is not the expected one."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion of the toy model."""

    replica: str
    version: str
    text: str
    cached_tokens: int
    input_tokens: int
    ttft_s: float
    """Time to first token, seconds (unary: time to the response)."""


class Clients:
    """Connections through Envoy; an async context manager."""

    def __init__(self, http_url: str, grpc_address: str) -> None:
        self._url = http_url.rstrip("/")
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=MAX_LINE_BYTES,
        )
        # Envoy's routes match path and header; no request names a replica.
        self._grpc = triton_grpc.InferenceServerClient(grpc_address)
        self._kserve = triton_http.InferenceServerClient(
            self._url.removeprefix("http://"), conn_timeout=TIMEOUT_S
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self._grpc.close()
        await self._kserve.close()

    async def generate(self, prompt: str, max_tokens: int = 1) -> Generated:
        """Request one completion of the toy model (HTTP ``generate``).

        Raises:
            AnswerError: The status is not 200.
        """
        start = time.perf_counter()
        body = {"text_input": prompt, "max_tokens": max_tokens}
        async with self._http.post(f"{self._url}/v2/models/{LLM}/generate", json=body) as response:
            text = await response.text()
            if response.status != 200:  # noqa: PLR2004 - HTTP
                raise AnswerError(f"HTTP {response.status}: {text[:MAX_ERROR_CHARS]}")
        return _generated([json.loads(text)], time.perf_counter() - start)

    async def generate_stream(
        self, prompt: str, max_tokens: int, session: str | None = None
    ) -> Generated:
        """Request a token stream of the toy model (HTTP ``generate_stream``, server-sent events).

        Raises:
            AnswerError: The status is not 200, an event is an error, or tokens are missing.
        """
        start = time.perf_counter()
        ttft = None
        events: list[dict[str, Any]] = []
        async with self._http.post(
            f"{self._url}/v2/models/{LLM}/generate_stream",
            json={"text_input": prompt, "max_tokens": max_tokens, "stream": True},
            headers={SESSION_HEADER: session} if session else {},
        ) as response:
            if response.status != 200:  # noqa: PLR2004 - HTTP
                raise AnswerError(
                    f"HTTP {response.status}: {(await response.text())[:MAX_ERROR_CHARS]}"
                )
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                if ttft is None:
                    ttft = time.perf_counter() - start
                event = json.loads(line[len(b"data:") :])
                if "error" in event:
                    raise AnswerError(str(event["error"])[:MAX_ERROR_CHARS])
                events.append(event)
        if ttft is None or len(events) != max_tokens:
            raise AnswerError(f"{len(events)} tokens of {max_tokens} arrived")
        return _generated(events, ttft)

    async def infer_grpc(self) -> str:
        """Classify an image with gRPC ``ModelInfer``; return the replica's name."""
        image = triton_grpc.InferInput("image", list(IMAGE_SHAPE), "FP32")
        image.set_data_from_numpy(np.zeros(IMAGE_SHAPE, np.float32))
        return _replica(await self._grpc.infer(VISION, [image], client_timeout=TIMEOUT_S))

    async def infer_http(self) -> str:
        """Classify an image with HTTP ``infer`` and binary tensors; return the replica's name."""
        image = triton_http.InferInput("image", list(IMAGE_SHAPE), "FP32")
        image.set_data_from_numpy(np.zeros(IMAGE_SHAPE, np.float32))
        return _replica(await self._kserve.infer(VISION, [image]))

    async def stream_grpc(self, prompt: str, max_tokens: int) -> Generated:
        """Request a token stream of the toy model (gRPC ``ModelStreamInfer``).

        Raises:
            AnswerError: A message is an error, or tokens are missing.
        """
        inputs = [
            _tensor("text_input", "BYTES", np.array([prompt.encode()], dtype=np.object_)),
            _tensor("max_tokens", "INT32", np.array([max_tokens], dtype=np.int32)),
            _tensor("stream", "BOOL", np.array([True])),
        ]

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": LLM, "inputs": inputs}

        start = time.perf_counter()
        ttft = None
        events: list[dict[str, Any]] = []
        # The picker does not read the body of a stream, so a header names the model.
        stream = self._grpc.stream_infer(
            requests(), stream_timeout=TIMEOUT_S, headers={MODEL_HEADER: LLM}
        )
        async for result, error in stream:
            if error is not None:
                raise AnswerError(str(error)[:MAX_ERROR_CHARS])
            if ttft is None:
                ttft = time.perf_counter() - start
            answer = result.get_response()
            if answer.outputs:
                events.append(
                    {
                        "text_output": result.as_numpy("text_output")[0].decode(),
                        "replica": _replica(result),
                        "model_version": answer.model_version,
                        "cached_tokens": int(result.as_numpy("cached_tokens")[0]),
                        "input_tokens": int(result.as_numpy("input_tokens")[0]),
                    }
                )
        if ttft is None or len(events) != max_tokens:
            raise AnswerError(f"{len(events)} tokens of {max_tokens} arrived")
        return _generated(events, ttft)

    async def count_sequence(self, sequence_id: int, values: Sequence[int]) -> tuple[int, set[str]]:
        """Send a sequence to the counter over gRPC; return the last total and the replicas seen."""
        total, replicas = 0, set()
        for position, value in enumerate(values):
            result = await self._grpc.infer(
                COUNTER,
                [_tensor("value", "INT32", np.array([value], dtype=np.int32))],
                sequence_id=sequence_id,
                sequence_start=position == 0,
                sequence_end=position == len(values) - 1,
                client_timeout=TIMEOUT_S,
            )
            total = int(result.as_numpy("total")[0])
            replicas.add(_replica(result))
        return total, replicas


async def fetch_text(session: aiohttp.ClientSession, url: str) -> str:
    """GET a page.

    Raises:
        AnswerError: The status is not 200.
        aiohttp.ClientError: The request failed.
    """
    async with session.get(url) as response:
        text = await response.text()
        if response.status != 200:  # noqa: PLR2004 - HTTP
            raise AnswerError(f"{url} answered HTTP {response.status}")
        return text


async def fetch_all(session: aiohttp.ClientSession, urls: Sequence[str]) -> list[str]:
    """GET several pages concurrently; the result has the order of ``urls``."""
    return list(await asyncio.gather(*(fetch_text(session, url) for url in urls)))


def _tensor(name: str, datatype: str, value: np.ndarray[Any, Any]) -> Any:
    tensor = triton_grpc.InferInput(name, list(value.shape), datatype)
    tensor.set_data_from_numpy(value)
    return tensor


def _replica(result: Any) -> str:
    return str(result.as_numpy("replica").flat[0].decode())


def _generated(events: list[dict[str, Any]], ttft_s: float) -> Generated:
    last = events[-1]
    return Generated(
        replica=str(last["replica"]),
        version=str(last["model_version"]),
        text="".join(str(event["text_output"]) for event in events),
        cached_tokens=int(last["cached_tokens"]),
        input_tokens=int(last["input_tokens"]),
        ttft_s=ttft_s,
    )
