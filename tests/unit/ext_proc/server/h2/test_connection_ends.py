"""What ends a connection: errors, goodbyes, floods and limits."""

from __future__ import annotations

import asyncio

import ngh2
import pytest

from ext_proc.server.h2 import connection as h2
from ext_proc.server.h2 import limits
from ext_proc.server.h2.frames import framed
from support.h2peer import HEADERS, H2Peer, Pipe, settle


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + b"x" * 50],
)
async def test_bytes_that_are_no_http2(garbage):
    """The connection ends, and so do the handlers of its streams."""
    async with H2Peer() as peer:
        peer.open("held", b"x")
        await peer.turn()
        tasks = peer.tasks()
        peer.connection.data_received(garbage)
        await settle()
        assert peer.pipe.closing
        assert [task.done() for task in tasks] == [True]
        peer.connection.data_received(b"more of it")


async def test_a_lost_connection():
    """Its handlers are cancelled, and their further output is dropped."""
    async with H2Peer(reads=False) as peer:
        peer.open("held", b"x")
        peer.open("pours", b"x")
        await peer.turn()
        tasks = peer.tasks()
        assert not any(task.done() for task in tasks)
        peer.pipe.closing = True
        peer.connection.connection_lost(ConnectionResetError())
        await settle()
        assert all(task.done() for task in tasks)
        assert peer.calls.cancelled == 2


async def test_goodbye():
    """Open streams continue, new ones are refused, and the connection closes after the last."""
    async with H2Peer() as peer:
        number = peer.open("echo", b"1")
        await peer.turn()
        peer.connection.announce_end()
        peer.connection.leave()
        await peer.turn()
        assert peer.gone
        assert not peer.pipe.closing
        peer.client.send_data(number, framed(b"2"), end_stream=True)
        await peer.turn()
        assert peer.found[number].messages == [b"1", b"2"]
        assert peer.pipe.closing


async def test_a_peers_goodbye():
    """Streams that it has opened are served to their end."""
    async with H2Peer() as peer:
        number = peer.open("echo", b"1")
        await peer.turn()
        peer.client.send_goaway()
        peer.client.send_data(number, framed(b"2"), end_stream=True)
        await peer.turn()
        assert peer.found[number].messages == [b"1", b"2"]


async def test_streams_above_the_limit(monkeypatch):
    """They are refused before a handler runs, even if the peer does not know the limit yet."""
    monkeypatch.setitem(limits.SETTINGS, ngh2.Setting.MAX_CONCURRENT_STREAMS, 3)
    async with H2Peer() as peer:
        hasty, pipe = ngh2.Connection(ngh2.Role.CLIENT), Pipe()
        hasty.initiate_connection()
        path = (b":path", b"/test.T/held")
        numbers = [hasty.send_request((path, *HEADERS)) for _ in range(5)]
        connection = h2.Http2Connection(peer.server)
        connection.connection_made(pipe)
        connection.data_received(hasty.data_to_send())
        await settle()
        assert list(connection.streams) == numbers[:3]
        hasty.receive_data(bytes(pipe.written))
        refused = [event for event in hasty.events() if isinstance(event, ngh2.StreamReset)]
        assert [event.stream_id for event in refused] == numbers[3:]
        assert {event.error_code for event in refused} == {ngh2.ErrorCode.REFUSED_STREAM}
        connection.connection_lost(None)


async def test_a_flood_of_resets(monkeypatch):
    """Resets beyond Envoy's rate end the connection."""
    few = ngh2.Configuration(auto_window_update=False, stream_reset_rate_limit=(50, 1))
    monkeypatch.setattr(h2, "CONFIG", few)
    async with H2Peer() as peer:
        while not peer.gone:
            number = peer.open("held", b"x")
            await peer.turn()
            peer.client.reset_stream(number)
            await peer.turn()
        assert peer.pipe.closing
        assert peer.calls.cancelled <= 60


async def test_who_says_nothing_is_cut(monkeypatch):
    """A connection that does not start HTTP/2 is closed after a while."""
    monkeypatch.setattr(h2, "GREETING_S", 0.0)
    async with H2Peer() as peer:
        silent, pipe = h2.Http2Connection(peer.server), Pipe()
        silent.connection_made(pipe)
        for _ in range(50):
            await asyncio.sleep(0)
        assert pipe.closing
        assert not peer.pipe.closing
        silent.connection_lost(None)


async def test_too_many_connections(monkeypatch, logged):
    """Where each has streams, a further one is closed at once, and this is logged once."""
    monkeypatch.setattr("ext_proc.server.h2.host.MAX_CONNECTIONS", 1)
    async with H2Peer() as peer:
        peer.open("held")
        await peer.turn()
        for _ in range(3):
            other, pipe = h2.Http2Connection(peer.server), Pipe()
            other.connection_made(pipe)
            assert pipe.closing
            assert not pipe.written
            other.connection_lost(None)
        assert [entry["event"] for entry in logged] == ["too_many_connections"]
        assert list(peer.server.connections) == [peer.connection]


async def test_a_full_table_drops_the_oldest_idle_connection(monkeypatch):
    """A peer that only connects does not keep out an Envoy; one that is served stays."""
    monkeypatch.setattr("ext_proc.server.h2.host.MAX_CONNECTIONS", 3)
    async with H2Peer() as peer:
        peer.open("held")
        await peer.turn()
        others = [(h2.Http2Connection(peer.server), Pipe()) for _ in range(3)]
        for connection, pipe in others:
            connection.connection_made(pipe)
        assert [pipe.closing for _, pipe in others] == [True, False, False]
        assert list(peer.server.connections) == [peer.connection, others[1][0], others[2][0]]
        for connection, _ in others:
            connection.connection_lost(None)
