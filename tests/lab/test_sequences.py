"""A sequence stays on the replica that holds its state."""

from __future__ import annotations

import asyncio
import uuid

import tritonclient.grpc.aio as triton_grpc

from support.traffic import COUNTER, admin, counter_body, counter_inputs
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import SERVED_BY_HEADER


async def run_sequence(client, sequence, steps: int) -> int:
    """Send 1 in each step and return the last total of the replica."""
    total = 0
    for step in range(steps):
        result = await client.infer(
            "counter",
            counter_inputs(1),
            sequence_id=sequence,
            sequence_start=step == 0,
            sequence_end=step == steps - 1,
        )
        total = int(result.as_numpy("total")[0])
    return total


async def test_grpc_sequences_stay_together(stack):
    """Thirty interleaved sequences, integer and string ids: each total counts all its steps."""
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        ids = [n if n % 2 else f"s{n}" for n in range(1, 31)]
        totals = await asyncio.gather(*(run_sequence(client, i, 5) for i in ids))
    assert totals == [5] * 30


async def test_http_sequences_stay_on_one_replica(http, stack):
    """Every request of a sequence is served by the replica of the first one."""
    used, sequences = set(), 0
    while sequences < 6 or len(used) < 2:
        assert sequences < 50, "chance alone would not choose one replica so often"
        sequences += 1
        sequence, served = uuid.uuid4().hex, set()
        for step in range(4):
            body = counter_body(1, sequence, sequence_start=step == 0, sequence_end=step == 3)
            async with http.post(stack.http_url + COUNTER, json=body) as answer:
                assert answer.status == 200, await answer.text()
                served.add(answer.headers[SERVED_BY_HEADER])
        assert len(served) == 1
        used |= served


async def test_a_sequence_keeps_its_variant(http, lend_once):
    """The picker's lease overrides Envoy's draw, which would split a sequence over variants."""

    def halves(fleet):
        pool = next(pool for pool in fleet["pools"] if pool["name"] == "counter")
        pool["variants"] = [{"name": "a", "weight": 50}, {"name": "b", "weight": 50}]
        for endpoint in pool["endpoints"]:
            endpoint["variant"] = "b" if endpoint["id"] == "r3" else "a"

    stack = await lend_once(fleet=halves)
    used, sequences = set(), 0
    while sequences < 8 or len(used) < 2:
        assert sequences < 50, "chance alone would not draw one variant so often"
        sequences += 1
        sequence, served = uuid.uuid4().hex, set()
        for step in range(6):
            body = counter_body(1, sequence, sequence_start=step == 0, sequence_end=step == 5)
            async with http.post(stack.http_url + COUNTER, json=body) as answer:
                assert answer.status == 200, await answer.text()
                served.add(answer.headers[SERVED_BY_HEADER])
        assert len(served) == 1
        used |= served


async def test_a_sequence_continues_during_a_drain(http, lend_once):
    """A draining replica finishes its sequences and gets no new ones."""
    stack = await lend_once()
    sequence = uuid.uuid4().hex

    async def step(**flags: bool) -> str:
        body = counter_body(1, sequence, **flags)
        async with http.post(stack.http_url + COUNTER, json=body) as answer:
            assert answer.status == 200, await answer.text()
            return answer.headers[SERVED_BY_HEADER]

    first = await step(sequence_start=True)
    name = next(r.name for r in stack.replicas if r.http == first)
    options = admin_pb2.ChangeOptions(wait=True, timeout_seconds=10)
    async with admin(stack) as operator:
        await operator.SetDraining(
            admin_pb2.SetDrainingRequest(endpoint=name, draining=True, options=options)
        )
        assert await step() == first
        assert await step(sequence_end=True) == first
        sequence = uuid.uuid4().hex
        assert await step(sequence_start=True, sequence_end=True) != first
