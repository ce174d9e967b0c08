"""What the tests' own servers leave behind; see ``tests/conftest.py``."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from support.mortal import MortalReplica


async def test_a_connection_that_is_accepted_as_its_server_closes_is_closed() -> None:
    """Else a later test fails, in which it is collected as garbage."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    loop: Any = asyncio.get_running_loop()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    (listening,) = server.sockets
    with socket.create_connection(listening.getsockname()) as client:
        client.settimeout(30)
        made = asyncio.StreamReader
        loop._accept_connection(
            lambda: asyncio.StreamReaderProtocol(made(), serve),
            server._sockets[0],  # type: ignore[attr-defined]
            None,
            server,
            1,
        )
        server.close()
        assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()


@pytest.mark.parametrize("turns", range(12))
async def test_a_replica_that_comes_back_as_it_ends_leaves_no_port_open(turns: int) -> None:
    """Whichever turn of the loop the end comes in: in one of them no server knew of its port."""
    loop: Any = asyncio.get_running_loop()
    before = len(loop._selector.get_map())
    replica = MortalReplica("r1", "stable", down_s=0)
    async with replica.serve():
        replica.die()
        for _ in range(turns):
            await asyncio.sleep(0)
    assert len(loop._selector.get_map()) == before
