"""Portions of input, and turns of what is costly: whoever floods delays itself."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import ngh2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.server.h2.turns import OPENING, PORTION, PREFACE_BYTES, Portions
from support.h2peer import H2Peer

RESETS = 600
OPENED = PORTION // (OPENING + 1)
"""Streams that are opened and reset in one portion."""


def frame(kind: int, size: int = 0) -> bytes:
    """Return a frame without sense."""
    return size.to_bytes(3, "big") + bytes([kind]) + bytes(5 + size)


FRAMES = st.lists(st.builds(frame, st.sampled_from((0, 1, 3, 6)), st.integers(0, 40)), max_size=9)


@given(FRAMES, st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(8, 20))
def test_portions_end_between_frames_however_the_input_is_cut(frames, cuts, most):
    """Every byte is taken once, in order, and no portion has more than its share of frames."""
    data = bytes(PREFACE_BYTES) + b"".join(frames)
    edges = {PREFACE_BYTES}
    for each in frames:
        edges.add(max(edges) + len(each))
    pieces, at = [], 0
    for index in range(len(data)):
        if at < len(data):
            pieces.append(data[at : at + cuts[index % len(cuts)]])
            at += len(pieces[-1])
    taken, position = [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ext_proc.server.h2.turns.PORTION", most)
        portions = Portions()
        for piece in pieces:
            rest = piece
            while rest:
                end = portions.end(rest)
                taken.append(rest[:end])
                position += end
                begun = any(edge < position < edge + 9 for edge in edges)
                assert end == len(rest) or position in edges or begun
                rest = rest[end:]
    assert b"".join(taken) == data


def test_a_portion_counts_opened_streams_eightfold():
    """A frame that opens a stream is work, a frame of data hardly any."""
    opened = bytes(PREFACE_BYTES) + frame(1) * PORTION
    assert Portions().end(opened) == PREFACE_BYTES + len(frame(1)) * (PORTION // OPENING)
    data = bytes(PREFACE_BYTES) + frame(0) * PORTION
    assert Portions().end(data) == len(data)
    assert Portions().end(data + frame(0)) == len(data)


async def test_rapid_resets_wait_for_others():
    """Of 600 streams that are opened and reset at once few come before another peer's call."""
    async with H2Peer() as flood, flood.beside() as other:
        begun = flood.calls.heard
        flood.connection.data_received(flood.rapid_resets(RESETS))
        assert begun["begun"] <= OPENED + 1
        assert not flood.pipe.reading
        other.open("direct", b"hello")
        other.connection.data_received(other.client.data_to_send())
        assert flood.calls.read[-1] == b"hello"
        assert begun["begun"] <= OPENED + 2
        while not flood.pipe.reading:
            before = begun["begun"]
            await asyncio.sleep(0)
            assert begun["begun"] - before <= OPENED + 1
        assert begun["begun"] == RESETS + 1


async def test_a_connection_that_ends_leaves_its_turn():
    """What it has sent is dropped, and others go on."""
    async with H2Peer() as other:
        async with other.beside() as flood:
            flood.connection.data_received(flood.rapid_resets(RESETS))
        assert other.calls.heard["begun"] <= OPENED + 1
        call = other.found[other.open("direct", b"hello")]
        await other.turn()
        assert call.messages == [b"hello"]


async def test_resets_beyond_the_rate_end_their_connection(monkeypatch):
    """It is told so (GOAWAY), and another connection goes on."""
    limited = ngh2.Configuration(auto_window_update=False, stream_reset_rate_limit=(100, 1))
    monkeypatch.setattr("ext_proc.server.h2.connection.CONFIG", limited)
    async with H2Peer() as flood, flood.beside() as other:
        flood.connection.data_received(flood.rapid_resets(200))
        await flood.turn()
        assert flood.gone
        call = other.found[other.open("direct", b"hello")]
        await other.turn()
        assert (call.messages, other.gone) == ([b"hello"], False)


async def test_one_costly_message_is_read_in_one_iteration():
    """The first at once, the next one later, and what is not costly in between."""
    async with H2Peer() as peer, peer.beside() as other:
        for name in (b"costly 1", b"costly 2", b"costly 3"):
            peer.open("direct", name)
        peer.connection.data_received(peer.client.data_to_send())
        assert peer.calls.read == [b"costly 1"]
        other.open("direct", b"short")
        other.connection.data_received(other.client.data_to_send())
        assert peer.calls.read == [b"costly 1", b"short"]
        for expected in (b"costly 2", b"costly 3"):
            await asyncio.sleep(0)
            assert peer.calls.read[-1] == expected
        await peer.turn()
        assert [each.messages for each in peer.found.values()] == [
            [b"costly 1"],
            [b"costly 2"],
            [b"costly 3"],
        ]


async def test_costly_messages_of_clients_alternate():
    """One client's many do not delay another's one, on the same connection as well."""
    async with H2Peer() as peer:
        for client in (b"a", b"a", b"a", b"a", b"b", b"b"):
            peer.open("direct", b"costly " + client, headers=((b"traceparent", client),))
        await peer.turn()
        order = [each[-1:] for each in peer.calls.read]
        assert order[0] == b"a"
        assert sorted(order) == sorted(b"aaaabb".decode()) or order.index(b"b") <= 2
        assert all(pair != (b"a", b"a") for pair in pairwise(order[1:5]))


async def test_a_call_that_ends_leaves_its_turn():
    """Its message is not read, and the next one is."""
    async with H2Peer() as peer:
        peer.open("direct", b"costly 1")
        number = peer.open("direct", b"costly 2")
        peer.open("direct", b"costly 3")
        peer.connection.data_received(peer.client.data_to_send())
        peer.client.reset_stream(number, ngh2.ErrorCode.CANCEL)
        peer.connection.data_received(peer.client.data_to_send())
        await peer.turn()
        assert peer.calls.read == [b"costly 1", b"costly 3"]


async def test_messages_behind_a_costly_one_stay_in_order():
    """They are read after it, whatever they cost."""
    async with H2Peer() as peer:
        peer.open("direct", b"costly 1")
        call = peer.found[peer.open("direct", b"costly 2", b"short", b"costly 3")]
        await peer.turn()
        assert call.messages == [b"costly 2", b"short", b"costly 3"]
