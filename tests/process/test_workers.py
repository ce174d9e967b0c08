"""Two workers behind one Envoy act as one picker and tolerate the loss of a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from functools import partial

import aiohttp
import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc

from support.replicas import Replica, stack_over
from support.traffic import (
    COUNTER,
    GENERATE,
    GENERATE_STREAM,
    Traffic,
    counter_body,
    counter_inputs,
    eventually,
    fresh_prompt,
    metric,
)
from support.workers import states, worker_pids
from tidegate.stack.local import PICKER, LocalStack
from tidegate_api.names import SERVED_BY_HEADER

PICKS = "tidegate_picker_picks_total"
DRAWS = 40
"""So many requests one after another reach both workers: Envoy draws, and misses one in 2e-12."""
LONG = 4000
"""Tokens of an answer that lasts longer than all are counted, on a busy machine too."""


@pytest.fixture(scope="module")
async def crew(new_module_stack) -> LocalStack:
    """Run one stack with two workers; a test that kills one waits until it is back.

    A prompt goes where it is cached, however slow a busy machine makes that replica.
    """
    change = {"pools": {"llm": {"routing": {"policy": "prefix-affinity"}}}}
    return await new_module_stack(workers=2, fleet=change)


async def picks(http, stack) -> list[float]:
    """Return the number of picks of each worker."""
    return [await metric(http, page, PICKS) for page in stack.picker_pages]


async def all_have_picked(http, stack, before: list[float]) -> bool:
    """Return whether each worker has picked since ``before``."""
    now = await picks(http, stack)
    return all(after > then for after, then in zip(now, before, strict=True))


async def index_blocks(http, stack) -> list[int]:
    """Return the number of blocks in the prefix index of each worker."""
    return [one["router"]["counters"]["index_blocks"] for one in await states(http, stack)]


async def counts(http, stack) -> list[tuple[int, int]]:
    """Return each worker's open tickets: its own, and those of its peer."""
    counters = [one["router"]["counters"] for one in await states(http, stack)]
    return [(one["open_tickets"], one["open_tickets_of_siblings"]) for one in counters]


async def together(http, stack, total: int) -> bool:
    """Wait until each worker counts ``total`` requests in flight, including its peer's."""

    async def look() -> bool:
        (own, foreign), (own_2, foreign_2) = await counts(http, stack)
        return own + foreign == own_2 + foreign_2 == own + own_2 == total

    return await eventually(look)


async def test_all_know_what_each_has_sent(http, crew):
    """Each worker counts the requests in flight of both, and none after their end."""
    before = await picks(http, crew)

    async def ask(path: str, tokens: int):
        body = {"text_input": fresh_prompt(), "max_tokens": tokens, "stream": tokens == LONG}
        patience = aiohttp.ClientTimeout(total=120)
        answer = await http.post(crew.http_url + path, json=body, timeout=patience)
        assert answer.status == 200
        return answer

    # Not waiting for their first tokens: a replica has blocks for four of them at a time.
    streams = [asyncio.create_task(ask(GENERATE_STREAM, LONG)) for _ in range(12)]
    assert await together(http, crew, 12)
    made = [after - one for after, one in zip(await picks(http, crew), before, strict=True)]
    assert sum(made) == 12
    assert min(made) >= 1  # Envoy draws
    for stream in streams:
        (await stream).close()
    assert await together(http, crew, 0)
    for answer in await asyncio.gather(*(ask(GENERATE, 2) for _ in range(12))):
        await answer.read()
    assert await together(http, crew, 0)


async def test_a_prompt_is_found_where_another_worker_sent_it(http, crew):
    """Turns of a conversation stay on their replica, independent of the deciding worker."""
    text, used = fresh_prompt(4000), set()
    before = await picks(http, crew)

    async def told() -> bool:
        one, two = await index_blocks(http, crew)
        return one == two

    for turn in range(DRAWS):
        if turn >= 12 and await all_have_picked(http, crew, before):
            break
        text += fresh_prompt(300)
        body = {"text_input": text, "max_tokens": 2}
        async with http.post(crew.http_url + GENERATE, json=body) as answer:
            assert answer.status == 200, (turn, await answer.text())
            used.add(answer.headers[SERVED_BY_HEADER])
        assert await eventually(told)
    assert len(used) == 1
    assert await all_have_picked(http, crew, before)


async def test_sequences_stay_where_they_live(http, crew):
    """Interleaved sequences over both workers: each total counts all of its steps."""
    before = await picks(http, crew)
    async with triton_grpc.InferenceServerClient(crew.grpc_address) as client:

        async def run(sequence: int) -> int:
            total = 0
            for step in range(6):
                result = await client.infer(
                    "counter",
                    counter_inputs(1),
                    sequence_id=sequence,
                    sequence_start=step == 0,
                    sequence_end=step == 5,
                )
                total = int(result.as_numpy("total")[0])
            return total

        assert await asyncio.gather(*(run(n) for n in range(9001, 9031))) == [6] * 30
    assert all(now > then + 30 for now, then in zip(await picks(http, crew), before, strict=True))

    async def forgotten() -> bool:
        return [one["router"]["counters"]["leases"] for one in await states(http, crew)] == [0, 0]

    assert await eventually(forgotten)


async def test_the_leader_alone_reads_pages_and_all_know_them(http, crew):
    """Both workers have fresh readings of all replicas; only the leader scrapes."""
    first, second = await states(http, crew)
    assert (first["workers"]["leading"], second["workers"]["leading"]) == (True, False)
    assert len(first["telemetry"]["pages"]) == 3
    assert second["telemetry"]["pages"] == {}

    async def fresh() -> bool:
        ages = [one["telemetry"]["ages_s"] for one in await states(http, crew)]
        return all(len(known) == 3 for known in ages) and all(
            one["page"] < 3.0 for known in ages for one in known.values()
        )

    assert await eventually(fresh)


async def test_a_killed_worker_costs_no_request(http, crew):
    """A killed worker fails no request; its peer leads, and the new worker catches up.

    The new worker gets its index from its peer.
    """

    def body() -> dict:  # below a block: however many there are, they evict nothing
        return {"text_input": fresh_prompt(32), "max_tokens": 8}

    text = fresh_prompt(6000)
    indexed = await index_blocks(http, crew)
    async with http.post(crew.http_url + GENERATE, json={"text_input": text, "max_tokens": 1}) as a:
        assert a.status == 200
        home = a.headers[SERVED_BY_HEADER]

    async def both_know() -> bool:  # its answer confirms it, a moment after the client has it
        now = await index_blocks(http, crew)
        return all(after >= one + 6000 // 256 for after, one in zip(now, indexed, strict=True))

    assert await eventually(both_know)
    killed = worker_pids(crew)[0]
    async with Traffic(http, crew.http_url + GENERATE, body) as traffic:
        os.kill(killed, signal.SIGKILL)
        page = crew.picker_pages[1]

        async def leads() -> bool:
            async with http.get(f"http://{page}/debug/state") as answer:
                workers = orjson.loads(await answer.read())["workers"]
            return workers["leading"] or workers["siblings"]["0"]["connected"]

        assert await eventually(leads)
        await traffic.more(100)
        assert await eventually(partial(back, http, crew, 0, killed))
        await traffic.more(100)
    assert traffic.failures == []
    assert worker_pids(crew)[0] != killed
    assert await together(http, crew, 0)

    async def as_it_was() -> bool:
        first, second = await states(http, crew)
        blocks = [one["router"]["counters"]["index_blocks"] for one in (first, second)]
        told = blocks[0] >= blocks[1]
        return told and first["workers"]["leading"] and not second["workers"]["leading"]

    assert await eventually(as_it_was)
    before = await picks(http, crew)
    used = set()
    for turn in range(DRAWS):
        if turn >= 6 and await all_have_picked(http, crew, before):
            break
        text += fresh_prompt(300)
        body_ = {"text_input": text, "max_tokens": 1}
        async with http.post(crew.http_url + GENERATE, json=body_) as answer:
            used.add(answer.headers[SERVED_BY_HEADER])
    assert used == {home}
    assert await all_have_picked(http, crew, before)


async def back(http, stack, number: int, killed: int) -> bool:
    """Return whether a new worker replaced a killed one: it serves, and its peer follows it."""
    if worker_pids(stack).get(number, killed) == killed:
        return False
    try:
        both = await states(http, stack)
    except OSError:
        return False
    heard = all(
        peer_worker["connected"]
        for one in both
        for peer_worker in one["workers"]["siblings"].values()
    )
    return heard and await stack._picker_healthy() is None and all(one["ready"] for one in both)


async def test_a_sequence_survives_the_loss_of_its_worker(http, crew):
    """The lease of a sequence is known to the peer and to the replacement worker."""

    async def step(sequence: str, **flags: bool) -> str:
        body = counter_body(1, sequence, **flags)
        async with http.post(crew.http_url + COUNTER, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return answer.headers[SERVED_BY_HEADER]

    names = [uuid.uuid4().hex for _ in range(8)]
    homes = {name: await step(name, sequence_start=True) for name in names}
    killed = worker_pids(crew)[1]
    os.kill(killed, signal.SIGKILL)
    assert await eventually(partial(back, http, crew, 1, killed))
    # In about half of these, the new worker sees the sequence for the first time.
    assert {name: await step(name, sequence_end=True) for name in homes} == homes


@pytest.mark.usefixtures("demo_extra")
@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_a_stop_lets_requests_end(http, transport):
    """After SIGTERM, open requests finish, all workers exit with 0, and later ones are served."""
    replicas = [Replica(f"r{number}", gaps_s=(0.0,)) for number in (1, 2)]
    async with stack_over(*replicas, workers=2, transport=transport) as stack:
        assert [state["transport"] for state in await states(http, stack)] == [transport] * 2
        end = asyncio.Event()
        for replica in replicas:
            replica.ends = end
        body = {"text_input": fresh_prompt(), "max_tokens": 1, "stream": True}
        url = stack.http_url + GENERATE_STREAM
        answers = await asyncio.gather(*(http.post(url, json=body) for _ in range(4)))
        assert await together(http, stack, 4)
        stopping = asyncio.create_task(stack._supervisor.kill(PICKER, signal.SIGTERM))

        async def withdrawn() -> bool:
            try:
                return not any(one["ready"] for one in await states(http, stack))
            except OSError:  # a worker without a request has ended already
                return True

        assert await eventually(withdrawn)
        end.set()
        assert {(each.status, await each.text()) for each in answers} == {(200, "first more last")}
        await stopping
        said = (stack.run.logs / f"{PICKER}.log").read_text()
        assert "code=0" in said.rpartition("workers_stopped")[2]
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            assert answer.status == 200
