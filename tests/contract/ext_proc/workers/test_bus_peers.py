"""Workers that end, begin late, are silent, or are none."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from ext_proc.routing.values.ticket import Outcome
from ext_proc.workers import bus as module
from ext_proc.workers import links
from support.crew import POOL, decide, loads, pool
from support.worker_groups import Worker, worker_group


async def test_a_dead_worker_leaves_no_charges(tmp_path):
    """When its connection ends, the others drop its in-flight load at once."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        await group.settle()
        assert len(other.router.peers) == 1
        first.bus.close()
        other.bus.catch_up()
        assert len(other.router.peers) == 0
        assert set(loads(other.router).values()) == {(0, 0.0)}


async def test_the_end_of_a_peer_wakes_the_others(tmp_path):
    """Its messages do not wake the others, but its end does."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        first.bus.flush()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(other.router.peers) == 0
        first.bus.close()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not other.bus.state()["siblings"]["0"]["connected"]
        assert set(loads(other.router).values()) == {(0, 0.0)}


async def test_who_begins_later_learns_what_is_open(tmp_path):
    """Load, leases and the prefix index come with the first connection; nothing twice."""
    async with worker_group(tmp_path, 2) as group:
        first, _ = group.workers.values()
        made = decide(first.router, 100.0, (1, 2, 3))
        leased = decide(first.router, 100.0, sequence_id=7)
        await group.settle()
        group.workers[1].bus.close()
        again = group.start(1)
        await group.settle()
        assert loads(again.router) == loads(first.router)
        assert again.router.index.table.matched((1, 2, 3), made.ticket.endpoint) == 3
        assert decide(again.router, 101.0, sequence_id=7).addresses == leased.addresses[:1]
        first.router.settle(made.ticket, Outcome.DONE, 101.0)
        first.router.settle(leased.ticket, Outcome.DONE, 101.0)
        await group.settle()
        assert len(again.router.peers) == 0


async def test_no_worker_is_dialled_before_pools_are_known(tmp_path):
    """A worker dials its peers only once it has pools: before, it could keep no state."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        leased = decide(first.router, 100.0, sequence_id=7)
        other.bus.close()
        again = Worker(tmp_path, 1, 2, lambda: group.now)
        again.router.set_pools({}, 0.0)
        group.workers[1] = again
        again.bus.open()
        await group.settle()
        assert not again.bus.state()["siblings"]["0"]["connected"]
        again.router.set_pools({POOL: pool(4)}, 1.0)
        await again.bus.join()
        assert len(again.router.peers) == 2
        assert decide(again.router, 101.0, sequence_id=7).addresses == leased.addresses[:1]


async def test_a_silent_peer_is_given_up(tmp_path, monkeypatch):
    """A worker that hangs keeps its socket open; its charges are dropped nevertheless."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        await group.settle()
        monkeypatch.setattr(module, "SILENT_S", -1.0)
        other.bus.tick()
        assert len(other.router.peers) == 0
        monkeypatch.undo()
        await group.settle()
        assert len(other.router.peers) == 1


async def test_a_reader_that_does_not_read_is_dropped(tmp_path, monkeypatch):
    """Its buffer is bounded; the others continue."""
    monkeypatch.setattr(links, "MAX_BACKLOG", 1000)
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        with socket.socket(socket.AF_UNIX) as idle:
            idle.connect(str(links.path_of(tmp_path, 0)))
            idle.send(links.HELLO + links.EVENTS_ONLY)
            await group.settle()
            assert first.bus.state()["readers"] == 2
            for number in range(400):
                decide(first.router, 100.0, tuple(range(number * 1000, number * 1000 + 500)))
                first.bus.flush()
                other.bus.catch_up()
            assert first.bus.state()["readers"] == 1
        assert len(other.router.peers) == 400


@pytest.mark.parametrize("greeting", [b"", b"GET / HTTP/1.1\r\n\r\n", b"tidegate 9 *" * 3])
async def test_strangers_are_not_served(tmp_path, greeting):
    """A connection without this version's greeting is closed."""
    async with worker_group(tmp_path, 1) as group:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(links.path_of(tmp_path, 0)))
            stranger.send(greeting)
            if not greeting:
                stranger.shutdown(socket.SHUT_WR)
            stranger.setblocking(False)
            await group.settle()
            with suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
        assert group.workers[0].bus.state()["readers"] == 0


async def test_nonsense_ends_a_connection_only(tmp_path):
    """A peer worker that sends garbage is dialled again; its charges are dropped meanwhile."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        await group.settle()
        first.bus._outlet.send(b"\x01\x00\x00\x00\x63")
        other.bus.catch_up()
        assert len(other.router.peers) == 0
        await group.settle()
        assert len(other.router.peers) == 1
        assert other.bus.state()["siblings"]["0"]["connections_failed"] == 1
