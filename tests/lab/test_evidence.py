"""What clients do to the picture that a picker has of replicas, on real Tritons and a real Envoy.

Short forms have a small `outlier.frozen_after`. With ``TIDEGATE_EVIDENCE_DEFAULTS=1`` and
``TIDEGATE_STREAM_TOKENS=80000`` the fleet has the defaults, and everything takes minutes. Figures
are properties of the tests (``--junitxml x.xml -o junit_family=xunit1``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time

import aiohttp
import pytest

from support.replicas import Replica
from support.sockets import head
from support.traffic import GENERATE, STREAM_TOKENS, Traffic, eventually, fresh_prompt, picker_state

DEFAULTS = bool(os.environ.get("TIDEGATE_EVIDENCE_DEFAULTS"))
FROZEN_S = 30.0 if DEFAULTS else 1.0
OUTLIER = {} if DEFAULTS else {"frozen_after": f"{FROZEN_S:g}s"}
HONEST, ATTACKER = "127.0.0.1", "127.0.0.9"
"""Addresses of clients."""
TOKENS = STREAM_TOKENS if DEFAULTS else 4_000
TOKEN_S = 0.00055
"""Least time of a token, seconds: the model sleeps so long."""
RATE = 20.0
"""Requests per second of the attacker."""

pytestmark = pytest.mark.timeout(600 if DEFAULTS else 180)


def honest() -> dict[str, object]:
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


PROMPT = fresh_prompt(400)


def cached() -> dict[str, object]:
    """Return a short request whose prompt one replica has cached, so that the others are quiet."""
    return {"text_input": PROMPT, "max_tokens": 2}


async def conditions(http, stack) -> dict[str, list[str]]:
    """Return the conditions of each replica."""
    endpoints = (await picker_state(http, stack))["router"]["pools"]["llm"]["endpoints"]
    return {name: each["conditions"] for name, each in endpoints.items()}


async def send(address: str, data: bytes, source: str) -> int:
    """Send one request from an address of one's own; return the status of its answer."""
    reader, writer = await opened(address, source)
    try:
        writer.write(data)
        top = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    finally:
        writer.close()
    return int(top.split(b" ", 2)[1])


async def opened(address: str, source: str):
    """Open a connection from an address."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(source, 0))


def request(body: bytes, *, length: int | None = None, path: str = GENERATE) -> bytes:
    """Return a request whose headers may announce more than it has."""
    size = len(body) if length is None else length
    return head(path, f"content-length: {size}", "connection: close") + body


UNKNOWN = request(json.dumps({"text_input": "x", "max_tokens": 1, "unknown": {"a": 1}}).encode())
INFER = "/v2/models/vision/infer"
WRONG = (request(b"{}", path=INFER), request(b'{"inputs": [], "x": ', path=INFER), UNKNOWN)
"""What Triton answers with 400: no inputs, malformed JSON, an unknown name."""


@contextlib.asynccontextmanager
async def attacked(address: str, statuses: list[int], wrong: tuple[bytes, ...] = WRONG):
    """Send such requests at a constant rate until the block ends."""
    ended = asyncio.Event()

    async def attack() -> None:
        tasks = set()
        while not ended.is_set():
            task = asyncio.create_task(send(address, wrong[len(tasks) % len(wrong)], ATTACKER))
            tasks.add(task)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0 / RATE)
        statuses.extend(await asyncio.gather(*tasks))

    task = asyncio.create_task(attack())
    try:
        yield
    finally:
        ended.set()
        await task


@pytest.fixture(scope="module")
async def stack(lend):
    """Lend the shared stack, whose picker reads no metrics pages."""

    def change(fleet) -> None:
        for pool in fleet["pools"]:
            pool["outlier"] = OUTLIER
            for endpoint in pool["endpoints"]:  # moving gauges would show that the Tritons live
                del endpoint["metrics"]

    return await lend(fleet=change)


async def test_two_half_uploads_eject_no_replica(http, stack, record_property):
    """Four on a quiet fleet: they wait for their client, and affinity stays as it is."""
    url = stack.http_url + GENERATE
    writers = []

    async def in_flight() -> list[int]:
        endpoints = (await picker_state(http, stack))["router"]["pools"]["llm"]["endpoints"]
        return sorted(each["in_flight"] for each in endpoints.values())

    async def idle() -> bool:
        return await in_flight() == [0, 0, 0]

    async def four() -> bool:
        return sum(await in_flight()) == 4

    assert await eventually(idle)
    try:
        for cut in (500_000, 1_000_000) * 2:
            # Each has a prompt of its own: one that all share would bring all to one replica.
            body = json.dumps({"text_input": fresh_prompt(2_000_000)}).encode()
            _, writer = await opened(stack.http_address, ATTACKER)
            writer.write(request(body[:cut], length=len(body)))
            writers.append(writer)
        assert await eventually(four)
        found: set[str] = set()
        begun = time.monotonic()
        async with Traffic(http, url, cached, workers=1, pause_s=0.02) as traffic:
            while time.monotonic() - begun < 2.0 * FROZEN_S + 2.0:
                await traffic.more(10)
                found |= {name for name, each in (await conditions(http, stack)).items() if each}
        kept = await affinity(http, url)
    finally:
        for writer in writers:
            writer.close()
    record_property("ejected", sorted(found))
    record_property("affinity", f"{kept} of 20")
    assert not found
    assert kept == 20
    assert not traffic.failures


async def affinity(http, url: str) -> int:
    """Return how many of 20 requests with one prompt go where the first one went.

    What the replica holds of the prompt must be worth more than the request before it, which the
    picker counts there until Envoy has told it of its end: a request in flight costs 64 tokens.
    """
    body, served = {"text_input": fresh_prompt(4000), "max_tokens": 1}, []
    for _ in range(21):
        async with http.post(url, json=body) as answer:
            assert answer.status == 200, await answer.text()
            served.append(answer.headers["x-tidegate-served-by"])
    return served[1:].count(served[0])


async def test_an_honest_long_request_ejects_no_replica(http, stack, record_property):
    """It is all that its Triton has; others are answered elsewhere meanwhile."""
    assert TOKENS * TOKEN_S > FROZEN_S
    url = stack.http_url + GENERATE
    found: set[str] = set()

    async def long() -> None:
        body = {"text_input": fresh_prompt(64), "max_tokens": TOKENS}
        async with http.post(url, json=body, timeout=aiohttp.ClientTimeout(300)) as answer:
            await answer.read()
            assert answer.status == 200

    async with Traffic(http, url, cached, workers=1, pause_s=0.02) as traffic:
        task = asyncio.create_task(long())
        while not task.done():
            await traffic.more(10)
            found |= {name for name, each in (await conditions(http, stack)).items() if each}
    record_property("ejected", sorted(found))
    await task
    assert not found
    assert not traffic.failures


async def test_400s_eject_no_triton(http, stack, record_property):
    """Twenty a second, beside honest requests; each is answered by a Triton."""
    statuses: list[int] = []
    url = stack.http_url + GENERATE
    async with (
        Traffic(http, url, honest, workers=2, pause_s=0.02) as traffic,
        attacked(stack.http_address, statuses),
    ):
        await traffic.more(1000 if DEFAULTS else 200)
        found = {name for name, each in (await conditions(http, stack)).items() if each}
    record_property("ejected", sorted(found))
    record_property("answers", {status: statuses.count(status) for status in set(statuses)})
    assert not found
    assert not traffic.failures


@pytest.mark.parametrize("attack", [False, True], ids=["alone", "beside-400s"])
async def test_a_replica_that_fails_each_valid_request_is_ejected(
    http, empty_stack, record_property, attack
):
    """It answers the attacker's 400s at once, as Triton's front does, and everybody else 500."""
    replicas = [Replica(f"r{number}", refuses=b"unknown") for number in (1, 2, 3)]
    failed = []
    async with empty_stack.over(*replicas, more={"outlier": {"base_ejection": "1s"}}) as running:
        url = running.http_url + GENERATE
        for turn, sick in enumerate(replicas):

            async def reported(name: str = sick.name) -> bool:
                return "ejected" in (await conditions(http, running))[name]

            async def well() -> bool:
                return not any((await conditions(http, running)).values())

            statuses: list[int] = []
            guard = (
                attacked(running.http_address, statuses, (UNKNOWN,))
                if attack
                else contextlib.nullcontext()
            )
            async with guard, Traffic(http, url, honest, workers=2, pause_s=0.02) as traffic:
                await traffic.more(40)
                sick.status, before = 500, len(traffic.failures)
                assert await eventually(reported), turn
                failed.append(len(traffic.failures) - before)
                sick.status = 200
                assert await eventually(well)
            assert not attack or statuses.count(400) > 0
    record_property("failed", failed)
    assert sorted(failed)[len(failed) // 2] <= 12
