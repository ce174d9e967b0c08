"""Deadly requests in disguise, through the gateway to real Tritons: none reaches one."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import grpc
import pytest

from support.disguises import LISTED, OTHERS, Disguise, grpc_disguises
from support.streams import GRPC_INFER
from support.traffic import COUNTER, counter_body
from tidegate_api.names import REASON_HEADER

SEQUENCES = 60
STEPS = 3


def pids(tritons) -> list[int]:
    return [tritons.supervisor.pid(replica.name) for replica in tritons.replicas]


async def sent(address: str, disguise: Disguise) -> tuple[int, str]:
    """Send a request as it is; return the status of the answer and the reason of a refusal."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        f"POST {COUNTER} HTTP/1.1",
        "host: tidegate",
        f"content-length: {len(disguise.body)}",
        *disguise.headers,
    ]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + disguise.body)
    try:
        async with asyncio.timeout(30):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    finally:
        writer.close()
    reasons = [line for line in head if line.startswith(REASON_HEADER)]
    return int(head[0].split()[1]), reasons[0].partition(": ")[2] if reasons else ""


@pytest.fixture
def unharmed(tritons):
    """Fail a test in which a replica, or the process of its model, ended."""
    before = pids(tritons)
    yield
    assert pids(tritons) == before
    assert all(tritons.supervisor.running(replica.name) for replica in tritons.replicas)


@pytest.mark.usefixtures("unharmed")
async def test_no_disguise_reaches_a_replica(stack):
    """Each killed two of three Tritons; now none, and each is the caller's mistake."""
    answers = {}
    for disguise in (*LISTED, *OTHERS):
        answers[disguise.name] = await sent(stack.http_address, disguise)
    invalid = {name for name in answers if "white space" in name}
    assert len(invalid) == 2
    invalid |= {"NaN with a fraction", "more than a double"}
    for name, answer in answers.items():
        reasons = {"bad-request"} if name in invalid else {"bad-shape", "too-deep"}
        assert answer in {(400, reason) for reason in reasons}, name


@pytest.mark.usefixtures("unharmed")
async def test_no_disguise_over_grpc_reaches_a_replica(http, stack, tritons):
    """Protobuf skips what a reader of its own stumbles over."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        for name, message in grpc_disguises().items():
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(GRPC_INFER)(
                        message, timeout=20, compression=compression
                    )
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
                reasons = dict(caught.value.trailing_metadata() or ())
                assert reasons.get(REASON_HEADER) in {"bad-shape", "too-complex"}, name
    for replica in tritons.replicas:
        async with http.get(f"{replica.http_url}/v2/models/counter/ready") as answer:
            assert answer.status == 200


async def test_sequences_with_nan_stay_on_one_replica(stack):
    """Python writes NaN, and Triton reads it: the sequence id beside it counts."""

    async def total(session: aiohttp.ClientSession, sequence: int) -> int:
        found = 0
        for step in range(STEPS):
            flags = {"sequence_start": step == 0, "sequence_end": step == STEPS - 1}
            body = counter_body(1, sequence, **flags)
            text = json.dumps({"note": float("nan"), **body})
            async with session.post(stack.http_url + COUNTER, data=text) as answer:
                assert answer.status == 200, await answer.text()
                (found,) = (await answer.json())["outputs"][0]["data"]
        return found

    async with aiohttp.ClientSession() as session:
        numbers = range(70_001, 70_001 + SEQUENCES)
        totals = await asyncio.gather(*(total(session, number) for number in numbers))
    assert totals == [STEPS] * SEQUENCES
