"""Takes models out of use before they are unloaded: asks the control server.

Rules:

1. A model is held out of use on replicas as long as a stream to the control server is open; there
   pickers learn of it, and it waits for what runs.
2. Where that does not succeed, nothing is unloaded, and the caller is told why: pickers might send
   requests to where the model is no more.
3. A stream that is lost while the model is being unloaded changes nothing of that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.lost import why_lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

TIMEOUT_S: Final = 60.0
"""Longest wait for the control server, whose own bounds are shorter together."""


_log = structlog.stdlib.get_logger("gateway.drains")


class UndrainedError(RuntimeError):
    """A model was not taken out of use; the message says why."""


class ModelDrains:
    """Holds models out of use.

    Args:
        channel: Channel to the control server; ``None`` = there is none, nothing is held.
    """

    def __init__(self, channel: grpc.aio.Channel | None) -> None:
        self._stub = None if channel is None else report_pb2_grpc.ModelDrainsStub(channel)

    @contextlib.asynccontextmanager
    async def held(self, model: str, endpoints: Iterable[str]) -> AsyncIterator[None]:
        """Hold a model out of use on replicas for the time of a context.

        Raises:
            UndrainedError: It is not out of use.
        """
        ids = sorted(endpoints)
        if self._stub is None or not ids:
            yield
            return
        call = self._stub.Hold(timeout=None, wait_for_ready=False)
        try:
            await self._begin(call, model, ids)
            yield
        finally:
            call.cancel()

    async def _begin(self, call: Any, model: str, ids: list[str]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await call.write(report_pb2.HeldModel(model=model, endpoints=ids))
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise UndrainedError(why_lost((await call.code()).name, await call.details()))
        except TimeoutError:
            raise UndrainedError(f"no answer of the control server in {TIMEOUT_S:.0f} s") from None
        except grpc.aio.AioRpcError as error:
            raise UndrainedError(why_lost(error.code().name, error.details())) from None
        except asyncio.InvalidStateError:
            raise UndrainedError("the control server ended the stream") from None
        if answer.notes:
            _log.warning("model_runs_on", model=model, notes=list(answer.notes))
