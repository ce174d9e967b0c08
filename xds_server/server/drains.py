"""Drains of models for gateways: held as long as a stream is open.

Rules:

1. The first message of a stream says which model leaves which replicas, at most ``MAX_REPLICAS``.
   The answer comes once they are drained (``xds_server.applications.loading.leaving``).
2. If clients have not been told in time, the stream ends with FAILED_PRECONDITION and their names.
3. However a stream ends, its hold ends with it.
4. At most ``MAX_STREAMS`` streams are open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence
    from typing import Protocol

    class Drained(Protocol):
        """How far models have left replicas."""

        @property
        def missing(self) -> Sequence[str]:
            """Clients that may still send requests there, in words."""

        @property
        def runs(self) -> Sequence[str]:
            """What still runs there, in words."""

    class Leaving(Protocol):
        """Takes models out of use on replicas."""

        async def hold(self, holder: Hashable, endpoints: Collection[str], model: str) -> Drained:
            """Take a model out of use on replicas, and wait until it has left."""

        async def release(self, holder: Hashable) -> None:
            """Let go of all that a holder holds."""


MAX_STREAMS: Final = 64
MAX_REPLICAS: Final = 256
MAX_NAME: Final = 256


class ModelDrainService(report_pb2_grpc.ModelDrainsServicer):
    """gRPC service ``ModelDrains``; see the module's rules."""

    def __init__(self) -> None:
        self.leaving: Leaving | None = None
        """Set once the fleet is known."""
        self._open = 0

    async def Hold(  # type: ignore[override]  # noqa: N802 - gRPC allows a handler that writes by itself
        self, request_iterator: Any, context: Any
    ) -> None:
        """Hold a model out of use on replicas until the stream ends (gRPC)."""
        leaving = self.leaving
        if leaving is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "there is no fleet yet; try again")
            return
        if self._open >= MAX_STREAMS:
            text = f"{MAX_STREAMS} models are being unloaded already; try again"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        request = await anext(aiter(request_iterator), None)
        if request is None or not request.model or not request.endpoints:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "a model and endpoints are needed"
            )
            return
        if len(request.endpoints) > MAX_REPLICAS or len(request.model) > MAX_NAME:
            text = f"at most {MAX_REPLICAS} endpoints, and {MAX_NAME} characters of a model's name"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        holder, self._open = object(), self._open + 1
        try:
            drained = await leaving.hold(holder, tuple(request.endpoints), request.model)
            if drained.missing:
                why = "; ".join(drained.missing)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
            await context.write(report_pb2.ModelHeld(notes=drained.runs))
            async for _ in request_iterator:
                pass
        finally:
            self._open -= 1
            await leaving.release(holder)
