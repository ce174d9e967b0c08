"""A connection between workers, over a real socket."""

from __future__ import annotations

import asyncio
import socket

from ext_proc.workers.encode import Encoder
from ext_proc.workers.links import Inlet
from ext_proc.workers.news import SnapshotEnd
from ext_proc.workers.records import HELLO, framed


async def test_what_a_peer_sent_before_it_went_is_processed():
    """Also where a question shows that it is gone: what it sent may be a lease."""
    near, far = socket.socketpair()
    near.setblocking(False)
    got, ended = [], asyncio.Event()
    inlet = Inlet("peer", got.extend, ended.set)
    assert inlet.adopt(near, with_index=False)
    far.recv(len(HELLO) + 1)
    part = bytearray()
    Encoder().put(SnapshotEnd(), part)
    far.send(framed(part))
    far.close()
    assert not inlet.ask(b"a question")
    await ended.wait()
    assert got == [SnapshotEnd()]
