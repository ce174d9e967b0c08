"""Workers in one loop, over real sockets: events of one reach the others."""

from __future__ import annotations

import asyncio

from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Outcome
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate
from ext_proc.workers import bus as module
from ext_proc.workers.news import Looked, LookWanted, Probed
from support.crew import POOL, decide, key, loads
from support.worker_groups import WorkerGroup, worker_group


async def test_charges_and_settles_reach_the_others(tmp_path):
    """A request in flight at one worker counts at all of them, and at none once it has ended."""
    async with worker_group(tmp_path, 3) as group:
        first, *others = group.workers.values()
        made = decide(first.router, 100.0, (1, 2, 3))
        await group.settle()
        for other in others:
            assert loads(other.router) == loads(first.router)
            assert sum(other.router.registry.in_flight().values()) == 0
            assert other.router.index.table.matched((1, 2, 3), made.ticket.endpoint) == 3
        first.router.settle(made.ticket, Outcome.DONE, 101.0)
        await group.settle()
        for other in others:
            assert set(loads(other.router).values()) == {(0, 0.0)}


async def test_events_go_out_by_themselves(tmp_path):
    """No explicit flush is needed: a charge is known within a few milliseconds."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        async with asyncio.timeout(60):
            while not len(other.router.peers):
                await asyncio.sleep(0)
                other.bus.refresh()


async def test_what_peers_send_is_read_when_asked_for(tmp_path, monkeypatch):
    """It wakes no peer; on refresh it is read if the last read is old enough."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        for _ in range(20):
            await asyncio.sleep(0)
        first.bus.flush()
        await asyncio.sleep(0)
        assert len(other.router.peers) == 0
        monkeypatch.setattr(module, "READ_AGAIN_S", 60.0)
        other.bus.refresh()
        assert len(other.router.peers) == 0
        monkeypatch.setattr(module, "READ_AGAIN_S", 0.0)
        other.bus.refresh()
        assert len(other.router.peers) == 1


async def test_charges_go_out_at_once_and_then_together(tmp_path, monkeypatch):
    """The first after a pause is sent in its own iteration of the loop; later ones are batched."""
    async with worker_group(tmp_path, 2) as group:
        first, _ = group.workers.values()
        sent = []
        monkeypatch.setattr(first.bus._outlet, "send", sent.append)
        monkeypatch.setattr(module, "LATER_S", 60.0)
        monkeypatch.setattr(module, "SOON_S", 0.0)
        decide(first.router, 100.0, (1, 2, 3))
        assert not sent
        await asyncio.sleep(0)
        assert len(sent) == 1
        monkeypatch.setattr(module, "SOON_S", 60.0)
        for _ in range(3):
            decide(first.router, 100.0)
            await asyncio.sleep(0)
        assert len(sent) == 1
        first.bus._timer.cancel()
        first.bus._late()
        assert len(sent) == 2


async def test_an_index_of_many_parts_arrives_whole(tmp_path, monkeypatch):
    """Its parts follow one another while new events are sent in between."""
    monkeypatch.setattr(module, "PART_BYTES", 256)
    async with worker_group(tmp_path, 2) as group:
        first, _ = group.workers.values()
        for number in range(60):
            made = decide(first.router, 100.0, tuple(range(number * 100, number * 100 + 20)))
            first.router.settle(made.ticket, Outcome.DONE, 100.0)
        await group.settle()
        group.workers[1].bus.close()
        again = group.start(1)
        async with asyncio.timeout(60):
            while again.router.index.blocks < 1200:
                decide(first.router, 100.0, (1, 2, 3))
                await asyncio.sleep(0.001)
                again.bus.refresh()
        await group.settle()
        assert again.router.index.blocks == first.router.index.blocks


async def test_verdicts_on_prompts_reach_the_others(tmp_path):
    """Both indexes hold the prompt that was answered, and not the one that was refused."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        good = decide(first.router, 100.0, (1, 2, 3)).ticket
        bad = decide(first.router, 100.0, (7, 8)).ticket
        await group.settle()
        assert other.router.index.blocks == 5
        first.router.confirmed(good.id, good.endpoint)
        first.router.rejected(bad.id)
        await group.settle()
        for index in (first.router.index, other.router.index):
            assert index.match_all((1, 2, 3)) == {good.endpoint: 3}
            assert (index.blocks, index.provisional.count(good.endpoint)) == (3, 0)


async def test_a_lease_is_known_before_the_next_request(tmp_path):
    """Without a loop iteration in between, the other worker keeps the sequence's replica."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        for sequence in range(1, 30):
            began = decide(first.router, 100.0, sequence_id=sequence, sequence_start=True)
            went_on = decide(other.router, 100.0, sequence_id=sequence)
            assert went_on.addresses == began.addresses[:1]
            ended = decide(first.router, 100.0, sequence_id=sequence, sequence_end=True)
            assert ended.addresses == began.addresses[:1]
        other.bus.catch_up()
        assert len(first.router.leases) == len(other.router.leases) == 0


async def test_a_renewal_does_not_outlive_the_release(tmp_path):
    """Sent after another worker's release it would restore the sequence's lease."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0, sequence_id=1, sequence_start=True)
        decide(other.router, 100.0, sequence_id=1)
        decide(first.router, 100.0, sequence_id=1, sequence_end=True)
        for worker in (first, other):
            worker.bus.flush()
        for worker in (first, other):
            worker.bus.catch_up()
        assert len(first.router.leases) == len(other.router.leases) == 0


async def test_the_lowest_live_worker_leads(tmp_path):
    """One leads; when it dies the next one does at once, and yields when it is back."""
    async with worker_group(tmp_path, 3) as group:
        group.now += module.GRACE_S
        await group.settle()
        assert [w.bus.leading for w in group.workers.values()] == [True, False, False]
        group.workers[0].bus.close()
        for worker in group.workers.values():
            worker.bus.catch_up()
        assert [w.bus.leading for n, w in group.workers.items() if n] == [True, False]
        group.start(0)
        await group.settle()
        assert [w.bus.leading for w in group.workers.values()] == [True, False, False]
        assert group.workers[1].leads == [False, True, False]


async def test_a_worker_that_begins_waits_for_those_before_it(tmp_path):
    """When alone, the second one leads only after waiting for the first one."""
    group = WorkerGroup(tmp_path, 2)
    late = group.start(1)
    try:
        assert not late.bus.leading
        group.now += module.GRACE_S
        late.bus.tick()
        assert late.bus.leading
    finally:
        late.bus.close()


async def test_what_the_leader_finds_reaches_all(tmp_path):
    """Readings, probes and verdicts are the same for all workers."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        lora = {"adapters": frozenset({"b", "a"}), "adapters_waiting": frozenset[str]()}
        update = ReadingsUpdate("r0", "page", (Reading(at=99.0, queued=3.0, **lora),), 99.0)
        judged = Judged(POOL, key(0), Effect.AT_ONCE)
        first.bus.publish(update)
        first.bus.publish(judged)
        told = Looked(key(0), Listing(1.0, (Row("m", "1", PlacementState.LOADING, "x"),)))
        wanted, probed = LookWanted(key(0)), Probed(POOL, key(1), ready=False)
        for each in (told, wanted, probed):
            first.bus.publish(each)
        await group.settle()
        assert other.telemetry == [update]
        assert other.judged == [judged]
        assert other.found == [told, wanted, probed]


async def test_a_push_ends_with_the_worker_that_had_it(tmp_path):
    """The push is over for all workers when the only worker that received it dies."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        first.bus.publish(ReadingsUpdate("r0", "push", (), 99.0))
        await group.settle()
        first.bus.close()
        other.bus.catch_up()
        assert other.telemetry[-1] == PushEnded("r0")


async def test_names_begin_anew_before_they_run_out(tmp_path, monkeypatch):
    """A worker whose name table is full starts new connections with new names."""
    async with worker_group(tmp_path, 2) as group:
        first, other = group.workers.values()
        decide(first.router, 100.0)
        await group.settle()
        monkeypatch.setattr(type(first.bus._encoder), "full", property(lambda self: self._numbers))
        first.bus.tick()
        monkeypatch.undo()
        await group.settle()
        decide(first.router, 100.0)
        await group.settle()
        assert loads(other.router) == loads(first.router)


async def test_a_worker_that_joins_knows_which_models_are_where(tmp_path):
    """Else its first requests would reach replicas without their model, for ten seconds."""
    listing = Listing(1.0, (Row("m", "1", PlacementState.READY),))
    async with worker_group(tmp_path, 2) as group:
        group.workers[0].listings.append(Looked(key(1), listing))
        group.workers[1].bus.close()
        late = group.start(1)
        await group.settle()
        assert Looked(key(1), listing) in late.found
