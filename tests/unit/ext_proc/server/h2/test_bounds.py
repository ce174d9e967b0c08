"""What peers may make the server hold, and for how long they may leave something incomplete."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import grpc
import ngh2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.server.h2.held import MIN_LIMIT, RELIEVED, STREAM_BYTES, Held
from ext_proc.server.h2.late import FIRST_S, MESSAGE_S, MIN_RATE
from support.h2peer import LIMIT, H2Peer, framed
from support.time import Clock

CODE = grpc.StatusCode
BIDI = ("echo", "direct")


def beginning(size: int, of: int = LIMIT) -> bytes:
    """Return the first bytes of a message."""
    return b"\0" + of.to_bytes(4, "big") + bytes(size)


def test_there_is_room_for_two_of_the_largest_messages() -> None:
    """A pool with large bodies is served; the usual bound applies to all others."""
    held = Held(1)
    assert held.limit == MIN_LIMIT
    held.admit(MIN_LIMIT)
    assert held.limit == 2 * MIN_LIMIT


async def test_the_largest_stream_is_reset_first() -> None:
    """What is small, and therefore probably a request, is served on."""
    async with H2Peer() as peer:
        small, large, last = (peer.open("direct") for _ in range(3))
        peer.server.held.limit = 700_000
        peer.client.send_data(small, beginning(1_000))
        peer.client.send_data(large, beginning(500_000))
        await peer.turn()
        peer.client.send_data(last, beginning(300_000))
        await peer.turn()
        assert peer.found[large].status == CODE.RESOURCE_EXHAUSTED.value[0]
        assert b"all calls together" in peer.found[large].headers[b"grpc-message"]
        assert (peer.found[small].status, peer.found[last].status) == (None, None)
        assert peer.server.held.bytes <= peer.server.held.limit


async def test_streams_of_other_connections_are_reset_too() -> None:
    """The bound is one for all connections: many peers may send a little less than it each."""
    async with H2Peer() as peer, peer.beside() as other:
        peer.server.held.limit = 700_000
        first, second = peer.open("direct"), other.open("direct")
        peer.client.send_data(first, beginning(500_000))
        await peer.turn()
        other.client.send_data(second, beginning(300_000))
        await other.turn()
        await peer.turn()
        assert peer.found[first].status == CODE.RESOURCE_EXHAUSTED.value[0]
        assert other.found[second].status is None


async def test_new_streams_are_refused_before_that(logged) -> None:
    """They are safe to retry elsewhere; this is logged once, and ends with the shortage."""
    async with H2Peer() as peer:
        held = peer.server.held
        held.limit, held.refuse_at = 200_000, 11 * STREAM_BYTES
        calls = [peer.found[peer.open("direct", b"x")] for _ in range(13)]
        await peer.turn()
        codes = [call.closed for call in calls]
        assert codes == [None] * 11 + [ngh2.ErrorCode.REFUSED_STREAM] * 2
        assert [entry["event"] for entry in logged] == ["too_much_held"]
        peer.client.reset_stream(1)
        await peer.turn()
        served = peer.found[peer.open("direct", b"x")]
        await peer.turn()
        assert served.messages == [b"x"]


async def test_who_nearly_holds_all_makes_room_for_others() -> None:
    """A peer that stays below the limit would otherwise keep out all others."""
    async with H2Peer() as peer:
        held = peer.server.held
        held.limit, held.refuse_at = 120_000, 100_000
        large = peer.found[number := peer.open("direct")]
        peer.client.send_data(number, beginning(100_000))
        await peer.turn()
        refused = peer.found[peer.open("direct", b"x")]
        await peer.turn()
        served = peer.found[peer.open("direct", b"x")]
        await peer.turn()
        assert refused.closed == ngh2.ErrorCode.REFUSED_STREAM
        assert large.status == CODE.RESOURCE_EXHAUSTED.value[0]
        assert served.messages == [b"x"]


async def test_open_streams_count() -> None:
    """Streams without a message hold memory too."""
    async with H2Peer() as peer:
        peer.server.held.refuse_at = 10 * STREAM_BYTES
        numbers = [peer.open("held") for _ in range(12)]
        await peer.turn()
        closed = [peer.found[number].closed is not None for number in numbers]
        assert closed == [False] * 10 + [True] * 2


async def test_what_a_peer_does_not_read_counts() -> None:
    """Replies wait in memory as messages do; the connection's streams are reset for them."""
    async with H2Peer(reads=False) as peer:
        peer.server.held.limit = 60_000
        call = peer.found[peer.open("pours")]
        for _ in range(10):
            await peer.turn()
        assert call.closed == ngh2.ErrorCode.ENHANCE_YOUR_CALM
        assert peer.server.held.bytes <= peer.server.held.limit


async def test_a_full_socket_counts() -> None:
    """A connection whose peer reads nothing at all is cut, as resets would wait with the rest."""
    async with H2Peer() as peer:
        peer.connection.pause_writing()
        peer.server.held.limit = 100_000
        peer.pipe.written += bytes(90_000)
        peer.open("direct", *[b"x" * 1_000] * 30)
        out = peer.client.data_to_send()
        peer.connection.data_received(out)
        for _ in range(20):
            await asyncio.sleep(0)
        assert peer.pipe.closing


@pytest.mark.parametrize("before", [(), (b"complete",)], ids=["first", "later"])
@pytest.mark.parametrize("method", BIDI)
async def test_a_message_that_comes_byte_by_byte_is_ended(method: str, before) -> None:
    """It holds a stream and memory, and its peer has all the time in the world."""
    async with H2Peer() as peer:
        number = peer.open(method, *before)
        peer.client.send_data(number, beginning(1))
        await peer.turn()
        peer.server.look(100.0)
        for second in range(1, int(MESSAGE_S)):
            peer.client.send_data(number, b"x")
            await peer.turn()
            peer.server.look(100.0 + second)
        await peer.turn()
        assert peer.found[number].status is None
        peer.server.look(101.0 + MESSAGE_S)
        await peer.turn()
        assert peer.found[number].status == CODE.DEADLINE_EXCEEDED.value[0]
        assert b"not complete" in peer.found[number].headers[b"grpc-message"]


@pytest.mark.parametrize("method", BIDI)
async def test_a_long_message_has_longer(method: str) -> None:
    """A large body over a slow network is no attack."""
    async with H2Peer(limit=2**22) as peer:
        number = peer.open(method, b"first")
        peer.client.send_data(number, beginning(2 * MIN_RATE, of=2**22))
        await peer.turn()
        peer.server.look(0.0)
        peer.server.look(MESSAGE_S + 1.9)
        await peer.turn()
        assert peer.found[number].status is None
        peer.server.look(MESSAGE_S + 2.1)
        await peer.turn()
        assert peer.found[number].status == CODE.DEADLINE_EXCEEDED.value[0]


async def test_messages_that_complete_are_never_late() -> None:
    """A stream may always be in the middle of one: each has its own time."""
    async with H2Peer() as peer:
        number = peer.open("direct")
        message = framed(b"x" * 99)
        peer.client.send_data(number, message[:50])
        for second in range(0, 100, 9):
            await peer.turn()
            peer.server.look(float(second))
            peer.client.send_data(number, message[50:] + message[:50])
        await peer.turn()
        assert peer.found[number].status is None


async def test_a_message_behind_unread_ones_is_not_late() -> None:
    """We do not read, so the peer cannot send the rest."""
    async with H2Peer() as peer:
        number = peer.open("held", b"unread")
        peer.client.send_data(number, beginning(1))
        await peer.turn()
        for second in (0.0, MESSAGE_S * 9):
            peer.server.look(second)
        await peer.turn()
        assert peer.found[number].status is None


async def test_an_open_stream_that_waits_for_answers_stays() -> None:
    """A request may take the model an hour; between messages nothing is due."""
    async with H2Peer() as peer:
        number = peer.open("direct", b"complete")
        await peer.turn()
        for second in (0.0, 3600.0):
            peer.server.look(second)
        await peer.turn()
        assert peer.found[number].status is None


@pytest.mark.parametrize("method", BIDI)
async def test_a_stream_needs_a_first_message(method: str) -> None:
    """A stream without one would keep its connection in a full table."""
    async with H2Peer() as peer:
        number = peer.open(method)
        await peer.turn()
        peer.server.look(0.0)
        peer.server.look(FIRST_S - 0.1)
        await peer.turn()
        assert peer.found[number].status is None
        peer.server.look(FIRST_S)
        await peer.turn()
        assert peer.found[number].status == CODE.DEADLINE_EXCEEDED.value[0]


async def test_a_first_message_that_begins_late_has_its_time() -> None:
    """The wait for it and its transfer are two things."""
    async with H2Peer() as peer:
        number = peer.open("direct")
        await peer.turn()
        peer.server.look(0.0)
        peer.client.send_data(number, beginning(1))
        await peer.turn()
        peer.server.look(FIRST_S - 1)
        peer.server.look(FIRST_S + MESSAGE_S - 2)
        await peer.turn()
        assert peer.found[number].status is None


async def test_a_frame_that_comes_byte_by_byte_ends_the_connection() -> None:
    """No stream exists yet that could be ended."""
    async with H2Peer() as peer:
        peer.open("echo")
        await peer.turn(cut=1)
        peer.open("echo")
        for at, byte in enumerate(peer.client.data_to_send()[:10]):
            peer.connection.data_received(bytes([byte]))
            peer.server.look(float(at))
            assert not peer.pipe.closing
        peer.server.look(MESSAGE_S)
        assert peer.pipe.closing


async def test_a_peer_that_answers_is_not_cut() -> None:
    """Frames that leave no trace are told from incomplete ones by asking."""
    async with H2Peer() as peer:
        priority = b"\0\0\5\2\0\0\0\0\1\0\0\0\0\x10"  # a PRIORITY frame of a stream
        for second in range(0, 60, 6):
            peer.connection.data_received(priority)
            peer.server.look(float(second))
            await peer.turn()  # the client answers the PING
        assert not peer.pipe.closing


@pytest.mark.parametrize("method", BIDI)
async def test_a_callers_deadline_ends_the_call(method: str) -> None:
    """A caller that is gone may not have reset its stream."""
    async with H2Peer() as peer:
        call = peer.found[peer.open(method, b"x", headers=((b"grpc-timeout", b"1n"),))]
        Clock().advance(1)
        await peer.turn()
        assert call.status == CODE.DEADLINE_EXCEEDED.value[0]
        assert b"deadline" in call.headers[b"grpc-message"]


@pytest.mark.parametrize("method", BIDI)
async def test_a_malformed_deadline_is_refused(method: str) -> None:
    """Serving without the deadline that a caller wants would be a guess."""
    async with H2Peer() as peer:
        call = peer.found[peer.open(method, headers=((b"grpc-timeout", b"soon"),))]
        await peer.turn()
        assert call.status == CODE.INTERNAL.value[0]
        assert b"malformed grpc-timeout" in call.headers[b"grpc-message"]


async def test_a_deadline_ends_with_its_call() -> None:
    """Timers of calls that are over would pile up."""
    async with H2Peer() as peer:
        peer.open("early", b"x", headers=((b"grpc-timeout", b"99999999H"),))
        number = peer.open("echo", b"x", headers=((b"grpc-timeout", b"1H"),))
        await peer.turn()
        timer = peer.connection.streams[number].timer
        assert timer is not None
        peer.client.reset_stream(number)
        await peer.turn()
        assert timer.cancelled()


@pytest.mark.parametrize("method", ["early", "direct", "aborts", "nothing"])
async def test_only_plain_messages_are_announced(method: str) -> None:
    """A caller that could compress learns that it must not, with its first answer."""
    async with H2Peer() as peer:
        call = peer.found[peer.open(method, b"x")]
        await peer.turn()
        assert call.headers[b"grpc-accept-encoding"] == b"identity"


async def test_a_limit_follows_the_pools() -> None:
    """Streams that open afterwards have the new one."""
    async with H2Peer(limit=1000) as peer:
        old = peer.found[peer.open("direct", bytes(2000))]
        await peer.turn()
        peer.server.set_limit(3000)
        new = peer.found[peer.open("direct", bytes(2000))]
        await peer.turn()
        assert (old.status, new.messages) == (CODE.RESOURCE_EXHAUSTED.value[0], [bytes(2000)])


MOVES = st.lists(
    st.tuples(
        st.integers(0, 5), st.sampled_from(["send", "whole", "reset", "end", "open", "look"])
    ),
    max_size=60,
)


@given(MOVES, st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_the_count_is_exact_and_bounded(moves, room) -> None:
    """Whatever peers do, the count is the sum of what streams hold, and below the limit."""

    async def run() -> None:
        async with H2Peer() as peer:
            peer.server.held.limit = room * 20_000
            peer.server.held.refuse_at = room * 18_000
            streams: list[int] = []
            now = 0.0
            for which, move in moves:
                if move == "open" or not streams:
                    streams.append(peer.open(BIDI[which % 2]))
                number = streams[which % len(streams)]
                with suppress(ngh2.NGH2Error):  # the call is over
                    if move == "send":
                        peer.client.send_data(number, beginning(30_000, of=60_000))
                    elif move == "whole":
                        peer.client.send_data(number, framed(bytes(9_000)))
                    elif move == "reset":
                        peer.client.reset_stream(number)
                    elif move == "end":
                        peer.client.end_stream(number)
                if move == "look":
                    now += 7.0
                    peer.server.look(now)
                await peer.turn()
                found = peer.connection.streams.values()
                held = sum(stream.held + STREAM_BYTES for stream in found)
                assert peer.server.held.bytes == held + peer.connection._unsent
                assert peer.server.held.bytes <= peer.server.held.limit

    asyncio.run(run())


def test_relief_leaves_room() -> None:
    """Each relief frees an eighth at least, so small holders do not make it frequent."""
    held = Held(1)
    held.bytes = held.refuse_at
    assert held.excess == held.refuse_at - int(held.limit * RELIEVED) >= held.limit // 8
