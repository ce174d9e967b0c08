"""Direct calls: answered message by message, without a task; the windows are in test_connection."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from structlog.testing import capture_logs

from ext_proc.server.h2.connection import MAX_TRACE
from ext_proc.server.h2.frames import framed
from support.h2peer import LIMIT, H2Peer, settle
from support.time import Clock

CODE = grpc.StatusCode


@pytest.fixture(autouse=True)
def logged():
    """Keep what is logged: tracebacks take long to print."""
    with capture_logs() as entries:
        yield entries


async def test_messages_are_answered_where_they_come():
    """They are answered in the iteration in which they arrive, without a task, then the status."""
    async with H2Peer() as peer:
        call = peer.found[number := peer.open("direct", b"one", b"two")]
        peer.connection.data_received(peer.client.data_to_send())
        assert peer.calls.read == [b"one", b"two"]
        assert peer.pipe.written
        assert not peer.tasks()
        await peer.turn()
        assert (call.messages, call.status) == ([b"one", b"two"], None)
        peer.client.send_data(number, framed(b"three"), end_stream=True)
        await peer.turn()
        assert (call.messages[2:], call.status, call.closed) == ([b"three"], 0, 0)
        assert peer.calls.heard == {"begun": 1, "handed over": 3, "ended": 1}


async def test_a_call_is_told_its_trace():
    """Not more of it than a trace has, whatever is sent."""
    async with H2Peer() as peer:
        peer.open("direct", b"x")
        peer.open("direct", b"x", headers=((b"traceparent", b"00-1-2-01"),))
        peer.open("direct", b"x", headers=((b"traceparent", b"y" * 5_000),))
        await peer.turn()
        assert peer.calls.traces == ["", "00-1-2-01", "y" * MAX_TRACE]


async def test_a_call_without_messages():
    """It ends with OK."""
    async with H2Peer() as peer:
        call = peer.found[peer.open("direct", end=True)]
        await peer.turn()
        assert (call.messages, call.status) == ([], 0)


async def test_a_reset_in_the_same_piece():
    """Messages before the reset are not answered: the answer could not be sent."""
    async with H2Peer() as peer:
        number = peer.open("direct", b"one")
        piece = peer.client.data_to_send()
        peer.client.reset_stream(number)
        peer.connection.data_received(piece + peer.client.data_to_send())
        assert not peer.calls.read
        assert peer.calls.heard == {"begun": 1, "ended": 1}


async def test_a_reply_that_waits():
    """Later messages wait for it, in order."""
    async with H2Peer() as peer:
        call = peer.found[peer.open("paused", b"one", b"two", end=True)]
        await peer.turn()
        assert peer.calls.read == [b"one"]
        assert not call.messages
        peer.calls.go.set()
        await peer.turn()
        assert (call.messages, call.status) == ([b"one", b"two"], 0)
        assert peer.calls.heard["handed over"] == 2


async def test_a_peer_that_leaves_a_reply_that_waits():
    """The reply was not handed over."""
    async with H2Peer() as peer:
        number = peer.open("paused", b"one")
        await peer.turn()
        peer.client.reset_stream(number)
        await peer.turn()
        assert peer.calls.heard == {"begun": 1, "ended": 1}


async def test_a_peer_that_does_not_read():
    """Replies wait for its window, later messages wait for them, and all arrive in the end."""
    async with H2Peer(reads=False) as peer:
        number = peer.open("pours-directly", b"x" * 1000, b"y")
        call = peer.found[number]
        await peer.turn()
        assert peer.calls.read == [b"x" * 1000]
        assert len(call.messages) < 100
        for _ in range(1000):
            if len(call.messages) == 2000:
                break
            given, call.data = call.data, 0
            peer.client.acknowledge_received_data(given, number)
            await peer.turn()
        assert call.messages == [b"x" * 1000] * 1000 + [b"y"] * 1000
        assert peer.calls.heard["handed over"] == 2


@pytest.mark.parametrize(
    ("method", "status"), [("over", 0), ("fails-directly", 2), ("fails-at-its-end", 0)]
)
async def test_calls_that_are_over_early(method, status, logged):
    """Their status is sent at once, ``end`` is called once, and an exception is logged."""
    async with H2Peer() as peer:
        call = peer.found[peer.open(method, b"one", end=method == "fails-at-its-end")]
        await peer.turn()
        assert call.status == status
        assert peer.calls.heard["ended"] == 1
        assert len(logged) == (method != "over")


async def test_messages_that_cannot_be_taken():
    """Messages that are too large or compressed end the call with a status that says so."""
    async with H2Peer() as peer:
        large = peer.open("direct", bytes(LIMIT + 1))
        packed = peer.open("direct")
        peer.client.send_data(packed, b"\1\0\0\0\1x")
        await peer.turn()
        assert peer.found[large].status == CODE.RESOURCE_EXHAUSTED.value[0]
        assert peer.found[packed].status == CODE.UNIMPLEMENTED.value[0]
        assert peer.calls.heard == {"begun": 2, "ended": 2}


async def test_a_lost_connection():
    """``end`` is called for its calls, including waiting ones."""
    async with H2Peer() as peer:
        peer.open("direct", b"one")
        peer.open("paused", b"two")
        await peer.turn()
        peer.connection.connection_lost(None)
        assert peer.calls.heard["ended"] == 2


@pytest.mark.parametrize("method", ["direct", "paused"])
async def test_a_stop_that_cuts(method):
    """It waits for them until a second stop cancels them, and their peers get the status."""
    async with H2Peer() as peer:
        call = peer.found[peer.open(method, b"one")]
        await peer.turn()
        stopping = asyncio.create_task(peer.server.stop(3600))
        await settle()
        assert not stopping.done()
        await peer.server.stop(None)
        await stopping
        peer.client.receive_data(bytes(peer.pipe.written))
        peer.take()
        assert call.status == CODE.CANCELLED.value[0]
        assert peer.calls.heard["ended"] == 1


async def test_a_stop_waits_for_the_last():
    """It returns with the last call, and closes the connection."""
    async with H2Peer() as peer:
        number = peer.open("direct", b"one")
        await peer.turn()
        stopping = asyncio.create_task(peer.server.stop(3600))
        Clock().advance(1)  # its second word is later than its first
        await peer.turn()
        assert not stopping.done()
        peer.client.end_stream(number)
        await peer.turn()
        await stopping
        assert peer.pipe.closing
