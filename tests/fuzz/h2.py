"""Bytes of a peer into a connection of the server over libnghttp2.

The first byte says how the rest is cut, and whether a proper greeting and calls come before it.
Whatever comes: nothing is raised, no handler outlives the connection, and every byte that counts
against a window is given back or held by an open stream. What is incomplete at the end is late
some time after it. Where the bound on all that is held is small, it is kept too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import ngh2
from structlog.testing import capture_logs

from ext_proc.server.h2.frames import timeout_s
from ext_proc.server.h2.held import REFUSE, STREAM_BYTES
from ext_proc.server.h2.late import FIRST_S, MESSAGE_S
from ext_proc.server.h2.limits import CONNECTION_WINDOW, STREAM_WINDOW
from support.h2peer import H2Peer, settle

FEW: Final = 32
"""The bit for a small bound on what is held."""
FEW_BYTES: Final = 8192

CUTS: Final = (0, 1, 7, 100)


def one_connection(data: bytes) -> None:
    """Feed the bytes to a new connection; end it after them."""
    deadline_s = timeout_s(data[:10])
    assert deadline_s is None or deadline_s >= 0
    if data:
        with capture_logs():
            asyncio.run(_connection(data[0], data[1:]))


async def _connection(how: int, data: bytes) -> None:
    async with H2Peer() as peer:  # its end looks for handlers that are left
        held = peer.server.held
        if how & FEW:
            held.limit, held.refuse_at = FEW_BYTES, int(FEW_BYTES * REFUSE)
        for bit, method in ((4, "echo"), (8, "direct"), (16, "paused")):
            if how & bit:
                peer.open(method, b"before")
                await peer.turn()
        cut = CUTS[how % 4] or len(data) or 1
        for at in range(0, len(data), cut):
            peer.connection.data_received(data[at : at + cut])
            await settle()
        peer.calls.go.set()
        await settle()
        for second in (0.0, MESSAGE_S, FIRST_S, FIRST_S + MESSAGE_S):
            peer.server.look(second)
        await settle()
        assert all(stream.incomplete is None for stream in peer.connection.streams.values())
        streams = peer.connection.streams.values()
        assert all(0 <= stream._owed <= STREAM_WINDOW for stream in streams)
        assert sum(stream._owed for stream in streams) <= CONNECTION_WINDOW
        unsent = peer.connection._unsent
        assert held.bytes == sum(stream.held + STREAM_BYTES for stream in streams) + unsent
        if held.bytes > held.limit:  # by answers since the last bytes came
            peer.server.relieve()
            await settle()
        assert held.bytes <= held.limit
        with suppress(ngh2.NGH2Error):  # what the client makes of it is not at stake
            peer.client.receive_data(bytes(peer.pipe.written))
