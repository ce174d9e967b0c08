"""A connection, driven in memory by another HTTP/2 implementation's client side."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.server.h2 import limits
from ext_proc.server.h2.frames import framed
from ext_proc.server.h2.held import STREAM_BYTES
from ext_proc.server.h2.stream import HIGH
from support.h2peer import DIRECT, HEADERS, LIMIT, Call, H2Peer, settle

CODE = grpc.StatusCode


def full(peer):
    """Return whether all of the peer's windows have been returned."""
    return peer.connection._h2.local_window_size > limits.CONNECTION_WINDOW // 2


async def owes_nothing(peer):
    """Check that no received byte is still owed to the peer, by the connection or a stream."""
    await peer.turn()
    assert full(peer)
    assert all(not stream._owed for stream in peer.connection.streams.values())


async def test_a_duplex_call():
    """Messages are answered one by one, and the end with the status."""
    async with H2Peer() as peer:
        call = peer.found[number := peer.open("echo", b"one")]
        await peer.turn()
        assert call.messages == [b"one"]
        assert call.status is None
        peer.client.send_data(number, framed(b"two"), end_stream=True)
        await peer.turn()
        assert (call.messages, call.status, call.closed) == ([b"one", b"two"], 0, 0)
        await owes_nothing(peer)


@pytest.mark.parametrize("cut", [1, 2, 7, 100])
async def test_bytes_cut_anywhere(cut):
    """Frames, headers and messages may arrive in pieces."""
    async with H2Peer() as peer:
        numbers = [peer.open("echo", b"a" * 50, b"", b"b" * 300, end=True) for _ in range(3)]
        await peer.turn(cut)
        for number in numbers:
            assert peer.found[number].messages == [b"a" * 50, b"", b"b" * 300]
            assert peer.found[number].status == 0


async def test_the_four_kinds_of_call():
    """Streams and single messages work in both directions."""
    async with H2Peer() as peer:
        once = peer.found[peer.open("once", b"abc", end=True)]
        collect = peer.found[peer.open("collect", b"", b"1234", b"12", end=True)]
        none = peer.found[peer.open("once", end=True)]
        await peer.turn()
        assert (once.messages, once.status) == ([b"cba"], 0)
        assert (collect.messages, collect.status) == ([b"0,4,2"], 0)
        assert none.status == CODE.UNIMPLEMENTED.value[0]


async def test_many_streams_at_once():
    """They are independent, and none remains."""
    async with H2Peer() as peer:
        peer.client.receive_data(b"")
        numbers = [peer.open("echo", str(each).encode()) for each in range(2000)]
        await peer.turn()
        assert len(peer.connection.streams) == 2000
        assert all(
            peer.found[number].messages == [str(n).encode()] for n, number in enumerate(numbers)
        )
        for number in numbers:
            peer.client.end_stream(number)
        await peer.turn()
        assert not peer.connection.streams
        assert {call.status for call in peer.found.values()} == {0}


@pytest.mark.parametrize(
    ("method", "before"), [("echo", True), ("echo", False), ("nothing", False)]
)
async def test_a_reset_that_comes_with_bad_bytes(method, before):
    """The answer to them has no stream left and is dropped."""
    async with H2Peer() as peer:
        number = peer.open(method, *([b"x"] if before else []))
        if before:
            await peer.turn()
        peer.client.send_data(number, b"\1\0\0\0\1x")
        out = peer.client.data_to_send()
        peer.client.reset_stream(number)
        peer.connection.data_received(out + peer.client.data_to_send())
        await peer.turn()
        assert not peer.connection.streams
        assert not peer.connection._early
        assert not peer.pipe.closing
        await owes_nothing(peer)


async def test_a_reset_in_the_middle_of_a_message():
    """The handler is cancelled, and the received bytes are returned."""
    async with H2Peer() as peer:
        for _ in range(400):
            number = peer.open("held", b"x" * 30_000)
            peer.client.send_data(number, framed(b"y" * 40_000)[:-1])
            await peer.turn()
            assert peer.server.held.bytes > STREAM_BYTES
            peer.client.reset_stream(number)
            await peer.turn()
            assert not peer.server.held.bytes
        assert peer.calls.cancelled == 400
        await owes_nothing(peer)


async def test_an_unread_stream_holds_its_peer():
    """No more than its window is accepted; reading reopens it, and nothing is lost."""
    async with H2Peer() as peer:
        messages = [bytes([n]) * 100_000 for n in range(10)]
        call = peer.found[peer.open("held", *messages, end=True)]
        await peer.turn()
        (stream,) = peer.connection.streams.values()
        assert len(stream._unread) in {2, 3}
        assert stream._owed <= limits.STREAM_WINDOW
        assert 0 < stream._beyond < 100_005
        assert peer.server.held.bytes == stream._beyond + stream._owed + STREAM_BYTES
        peer.calls.go.set()
        await peer.turn()
        assert call.messages == messages
        await owes_nothing(peer)


async def test_a_message_larger_than_the_windows():
    """It arrives complete, because it cannot be read before its end."""
    async with H2Peer() as peer:
        message = bytes(range(256)) * (LIMIT // 256)
        call = peer.found[peer.open("echo", message, end=True)]
        await peer.turn()
        assert call.messages == [message]
        await owes_nothing(peer)


async def test_messages_that_cannot_be_taken():
    """Messages that are too large or compressed end their call with a status; others continue."""
    async with H2Peer() as peer:
        large = peer.found[peer.open("echo", b"fine", b"x" * (LIMIT + 1))]
        number = peer.open("echo")
        peer.client.send_data(number, b"\1\0\0\0\1x", end_stream=True)
        other = peer.found[peer.open("echo", b"other", end=True)]
        await peer.turn()
        assert large.status == CODE.RESOURCE_EXHAUSTED.value[0]
        assert b"exceeds the limit" in large.headers[b"grpc-message"]
        assert peer.found[number].status == CODE.UNIMPLEMENTED.value[0]
        assert other.messages == [b"other"]
        assert not peer.connection.streams
        await owes_nothing(peer)


async def test_unfinished_messages_are_bounded_in_all():
    """Messages that are allowed one by one exceed the bound together; refused ones do not count."""
    async with H2Peer() as peer:
        peer.server.held.limit = 4 * LIMIT
        part = framed(b"x" * LIMIT)[: LIMIT - 10_000]
        for _ in range(6):
            peer.client.send_data(peer.open("echo"), part)
        await peer.turn()
        refused = [call for call in peer.found.values() if call.status is not None]
        assert {call.status for call in refused} == {CODE.RESOURCE_EXHAUSTED.value[0]}
        assert 0 < len(refused) < 4
        assert 0 < peer.server.held.bytes <= peer.server.held.limit
        await owes_nothing(peer)


async def test_statuses_and_their_texts(logged):
    """Text that is not plain ASCII is percent-encoded, and an exception is UNKNOWN."""
    async with H2Peer() as peer:
        aborts = peer.found[peer.open("aborts", end=True)]
        fails = peer.found[peer.open("fails", b"x")]
        unknown = peer.found[peer.open("nothing", end=True)]
        await peer.turn()
        assert aborts.status == CODE.NOT_FOUND.value[0]
        assert aborts.headers[b"grpc-message"] == b"50 %25 %C3%A4lter: %E6%BD%AE%0A"
        assert fails.status == CODE.UNKNOWN.value[0]
        assert unknown.status == CODE.UNIMPLEMENTED.value[0]
        assert [entry["event"] for entry in logged] == ["handler_failed"]
        assert not peer.connection.streams


async def test_an_early_answer_ends_the_stream():
    """Further input on the stream is not counted and not kept."""
    async with H2Peer() as peer:
        number = peer.open("early", b"q")
        await peer.turn()
        call = peer.found[number]
        assert (call.messages, call.status, call.closed) == ([b"answer to q"], 0, 0)
        assert not peer.connection.streams
        assert not peer.connection._early


async def test_what_is_no_grpc():
    """It gets a 415 answer, and no handler runs."""
    async with H2Peer() as peer:
        headers = [pair for pair in HEADERS if pair[0] != b"content-type"]
        for kind, end in ((b"text/plain", True), (b"application/grpc-web", False)):
            line = ((b":path", b"/test.T/echo"), *headers, (b"content-type", kind))
            number = peer.client.send_request(line, end_stream=end)
            call = peer.found[number] = Call()
            await peer.turn()
            assert call.headers[b":status"] == b"415"
            assert call.closed == 0
        assert not peer.connection.streams


async def test_a_peer_that_opens_no_window_is_not_written_for():
    """Small messages wait too, and so does the handler; a reset releases it."""
    async with H2Peer(reads=False) as peer:
        number = peer.open("pours", b"x")
        await peer.turn()
        await settle()
        queued = peer.connection._h2.queued_body_size(number)
        assert HIGH < queued <= HIGH + 1100
        written = len(peer.calls.read)
        await settle()
        assert len(peer.calls.read) == written
        peer.client.acknowledge_received_data(peer.found[number].data, number)
        await peer.turn()
        assert len(peer.calls.read) > written
        peer.client.reset_stream(number)
        await peer.turn()
        assert peer.calls.cancelled == 1


async def test_a_full_socket_holds_the_writers():
    """Nothing is written to a full transport, and everything once it has room again."""
    async with H2Peer() as peer:
        call = peer.found[peer.open("echo", b"1", b"2", b"3", end=True)]
        peer.connection.pause_writing()
        await peer.turn()
        assert peer.calls.read == [b"1"]
        assert not call.messages
        peer.connection.resume_writing()
        await peer.turn()
        assert call.messages == [b"1", b"2", b"3"]


CALM = [name for name in DIRECT if name != "pours-directly"]  # that one takes too many turns
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["echo", "held", "early", "fails", "aborts", "nothing", "go", *CALM]),
        st.lists(st.integers(0, 60_000), max_size=4),
        st.sampled_from(["end", "reset", "cut", "stay", "compressed"]),
    ),
    max_size=12,
)


@given(ACTS, st.sampled_from([None, None, 3000]))
@settings(deadline=None, max_examples=150)
def test_windows_are_exact(acts, cut):
    """Whatever calls do, each byte is returned once: after the last call none is owed."""

    async def run():
        async with H2Peer() as peer:
            for method, sizes, way in acts:
                if method == "go":
                    peer.calls.go.set()
                    continue
                number = peer.open(method, *(bytes(size) for size in sizes))
                await asyncio.sleep(0)
                if way == "end":
                    peer.client.end_stream(number)
                elif way == "cut":
                    peer.client.send_data(number, framed(b"x" * 100)[:50], end_stream=True)
                elif way == "compressed":
                    peer.client.send_data(number, b"\1\0\0\0\1x")
                await peer.turn(cut)
                if way == "reset" and peer.found[number].closed is None:
                    peer.client.reset_stream(number)
                    await peer.turn(cut)
                owed = sum(stream._owed for stream in peer.connection.streams.values())
                assert owed <= limits.STREAM_WINDOW * len(peer.connection.streams)
            peer.calls.go.set()
            for number, call in peer.found.items():
                if call.closed is None:
                    peer.client.reset_stream(number)
            await peer.turn()
            assert not peer.connection.streams
            await owes_nothing(peer)

    asyncio.run(run())
