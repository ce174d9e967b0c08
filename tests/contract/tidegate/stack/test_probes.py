"""Probes of a control server over real channels."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tidegate.stack import probes
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SickAdmin(admin_pb2_grpc.AdminServicer):
    """Answers as told."""

    def __init__(self, code: grpc.StatusCode | None) -> None:
        self._code = code

    async def GetStatus(  # noqa: N802 - the name of the call
        self, _: Any, context: Any
    ) -> admin_pb2.GetStatusResponse:
        """Return a status with an error, or a code."""
        if self._code is not None:
            await context.abort(self._code, "sick")
        return admin_pb2.GetStatusResponse(file_error="fleet.yaml:3: no pools")


@asynccontextmanager
async def served(code: grpc.StatusCode | None) -> AsyncIterator[str]:
    """Run an admin API that answers like this; yield its address."""
    server = grpc.aio.server()
    admin_pb2_grpc.add_AdminServicer_to_server(SickAdmin(code), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize("code", [None, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_a_sick_control_server_is_there(code: grpc.StatusCode | None) -> None:
    """With a fleet file that is not in force, or too busy to answer."""
    async with served(code) as address:
        assert await probes.server_answers(address)


async def test_nothing_listens() -> None:
    """The address is free."""
    assert not await probes.server_answers("127.0.0.1:1")
