"""KServe gRPC of an emulated replica: ``ModelInfer``, ``ModelStreamInfer`` and readiness.

The prompt is the BYTES input ``text_input``, the answer the BYTES output ``text_output``. A stream
has one message per piece and a last, empty message that is marked final, like Triton's decoupled
models.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bench.emulator.dialects import MODEL, WORD, output_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.emulator.replica import EmulatedReplica

INPUT: Final = "text_input"
OUTPUT: Final = "text_output"
FINAL: Final = "triton_final_response"
_LENGTH: Final = 4
"""Size of the length prefix of each element of a raw BYTES tensor."""


class _Queue:
    """A listener that writes events to a queue: True = a piece, False = done, None = lost."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[bool | None] = asyncio.Queue()

    def first(self) -> None:
        self.events.put_nowait(True)

    def more(self) -> None:
        self.events.put_nowait(True)

    def done(self, tokens: int) -> None:  # noqa: ARG002 - responses do not contain it
        self.events.put_nowait(False)

    def lost(self) -> None:
        self.events.put_nowait(None)


def prompt_of(request: Any) -> bytes:
    """Return the prompt of a ``ModelInferRequest``.

    Raises:
        ValueError: The request has no prompt.
    """
    for number, tensor in enumerate(request.inputs):
        if tensor.name != INPUT:
            continue
        if tensor.contents.bytes_contents:
            return bytes(tensor.contents.bytes_contents[0])
        if number < len(request.raw_input_contents):
            raw = request.raw_input_contents[number]
            size = int.from_bytes(raw[:_LENGTH], "little")
            if size <= len(raw) - _LENGTH:
                return bytes(raw[_LENGTH : _LENGTH + size])
    raise ValueError(f"the input {INPUT} is missing or cut")


def response(request_id: str, text: str, *, final: bool) -> Any:
    """Return a ``ModelInferResponse``."""
    made = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1", id=request_id)
    if text:
        made.outputs.add(name=OUTPUT, datatype="BYTES", shape=[1])
        data = text.encode()
        made.raw_output_contents.append(len(data).to_bytes(_LENGTH, "little") + data)
    made.parameters[FINAL].bool_param = final
    return made


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # untyped
    """The KServe service."""

    def __init__(self, replica: EmulatedReplica) -> None:
        self._replica = replica

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC's
        """Report readiness."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC's
        """Report readiness."""
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - gRPC's
        """Report readiness."""
        return service_pb2.ModelReadyResponse(ready=True)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's
        """Respond when all tokens are generated."""
        async for _ in self._pieces(request, context):
            pass
        return response(request.id, WORD, final=True)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802 - gRPC's
        """Stream the pieces of each request."""
        async for request in requests:
            async for _ in self._pieces(request, context):
                made = response(request.id, WORD, final=False)
                yield service_pb2.ModelStreamInferResponse(infer_response=made)
            made = response(request.id, "", final=True)
            yield service_pb2.ModelStreamInferResponse(infer_response=made)

    async def _pieces(self, request: Any, context: Any) -> AsyncIterator[None]:
        listener = _Queue()
        number = None
        try:
            prompt = prompt_of(request)
            most = request.parameters["max_tokens"].int64_param or None
            number = self._replica.submit(prompt, output_tokens(prompt, most), listener)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            while (event := await listener.events.get()) is not False:
                if event is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the replica was reset")
                yield
        finally:
            if number is not None:
                self._replica.forget(number)


async def serve(replica: EmulatedReplica, address: str) -> grpc.aio.Server:
    """Start the service."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 * 2**20)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(replica), server)
    server.add_insecure_port(address)
    await server.start()
    return server
