"""What operators are told of a stack of two workers, real Envoy and replicas that fall sick."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

import grpc
import pytest

from ext_proc.control.reports import DETAILS_S
from support.replicas import Replica, stack_over
from support.traffic import (
    GENERATE,
    Traffic,
    eventually,
    fresh_prompt,
    metric,
)
from support.workers import states, worker_pids
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc

PICKS = "tidegate_picker_picks_total"
HUNG = "tidegate_picker_hung_requests_total"
OUTLIER = {"base_ejection": "20s", "interval": "2s", "frozen_after": "1500ms"}
STAYS_S = 7.0
"""Longer than the reports of all workers take to replace each other."""
TOLD_S = 10.0
"""Within this time of its detection a sick replica is named."""


def body():
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


@pytest.fixture(scope="module")
async def replicas():
    """Run four replicas; two of them fall sick and stay so."""
    return [Replica(f"r{number}") for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
async def stack(demo_extra, replicas):  # noqa: ARG001 - skips first
    """Run one stack of two workers over the replicas."""
    more = {"outlier": {**OUTLIER, "max_ejection_percent": 50}}
    async with stack_over(*replicas, more=more, workers=2) as running:
        yield running


async def cli(stack, *arguments):
    """Run the command line; return its exit code and its JSON."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", *arguments),
        *("--server", stack.admin_address, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return process.returncode, json.loads(out or b"[]")


async def ask(stack, name, request):
    """Call the admin API."""
    async with grpc.aio.insecure_channel(stack.admin_address) as channel:
        return await getattr(admin_pb2_grpc.AdminStub(channel), name)(request, timeout=5.0)


async def counted(stack):
    """Return the requests of the last hour, as the control server counts them."""
    answer = await ask(stack, "GetTraffic", admin_pb2.GetTrafficRequest())
    return sum(each.requests for each in answer.minutes)


async def picked(http, stack):
    """Return the requests that all workers picked for: one that moved was picked for twice."""
    picks = [await metric(http, page, PICKS) for page in stack.picker_pages]
    moved = [await metric(http, page, HUNG, end="moved") for page in stack.picker_pages]
    return sum(picks) - sum(moved)


async def reported(http, stack):
    """Wait until all picks have been reported; return the requests of the last hour."""

    async def all_are() -> bool:
        return await counted(stack) == await picked(http, stack)

    assert await eventually(all_are)
    return await counted(stack)


async def settled(stack):
    """Return the requests of the last hour once no worker's next report changes their number."""
    before, now = -1, await counted(stack)
    while now != before:
        await asyncio.sleep(DETAILS_S + 1.0)
        before, now = now, await counted(stack)
    return now


async def test_all_is_well_and_each_request_is_counted_once(http, stack):
    """Two workers report; the sum is what the client sent, whichever of them decided."""
    start = await reported(http, stack)
    async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01) as load:
        await load.more(200)
    assert not load.failures
    assert await reported(http, stack) == start + load.count
    assert await settled(stack) == start + load.count
    code, status = await cli(stack, "status", "--check")
    assert (code, status["verdict"]) == (0, "OK"), status["reasons"]
    stable = status["pools"][0]["variants"][0]
    assert (stable["usable"], stable["replicas"], stable["errors"]) == (4, 4, 0)
    assert 0 < stable["duration_p50"] < 30
    assert len(status["reports"]) == 2
    rows = (await cli(stack, "get", "endpoints"))[1]
    assert {row["state"] for row in rows} == {"in use"}


async def test_a_slow_replica_is_named(http, stack, replicas):
    """By status and by the list of endpoints, while it goes on serving."""
    slow = replicas[3]
    slow.hold_s = 0.5
    said = f"replica {slow.name} of pool llm is slow for "

    async def named() -> bool:
        status = await ask(stack, "GetStatus", admin_pb2.GetStatusRequest())
        return any(each.startswith(said) for each in status.reasons)

    async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01) as load:
        assert await eventually(named, 90.0)
        rows = (await cli(stack, "get", "endpoints"))[1]
        slow.hold_s = 0.0
        await load.more(100)
    (row,) = (each for each in rows if each["endpoint"] == slow.name)
    assert row["state"].startswith("slow for ")
    assert row["usable"]


@pytest.mark.parametrize(
    ("number", "condition", "state"),
    [(0, "frozen", "frozen"), (1, "dead-backend", "ejected")],
    ids=["frozen", "errors"],
)
async def test_a_sick_replica_is_named(
    http, stack, replicas, number, condition, state, record_property
):
    """By status, by the list of endpoints and by the log, soon after a picker has detected it."""
    sick, released = replicas[number], asyncio.Event()

    async def detected() -> bool:
        """Whether a worker has: another one that sends it nothing more may not."""
        found = [each["router"]["pools"]["llm"]["endpoints"] for each in await states(http, stack)]
        return any(condition in endpoints[sick.name]["conditions"] for endpoints in found)

    async def named() -> bool:
        status = await ask(stack, "GetStatus", admin_pb2.GetStatusRequest())
        found = await ask(stack, "GetReplicas", admin_pb2.GetReplicasRequest(pool="llm"))
        (row,) = (each for each in found.replicas if each.endpoint == sick.name)
        reasons = [each for each in status.reasons if f"{sick.name} of pool llm is {state}" in each]
        said = row.state.startswith(f"{state} ") and not row.usable
        return bool(reasons) and said and status.verdict == "DEGRADED"

    async def logged() -> bool:
        """Whether the leading worker has logged it: the other one may have detected it first."""
        logs = "".join(each.read_text() for each in stack.run.logs.iterdir())
        left = (each for each in logs.splitlines() if "replica_left_alone" in each)
        return any(f"replica={sick.name}" in each for each in left)

    # Each worker has to see several requests stand.
    workers = 48 if state == "frozen" else 8
    load = Traffic(http, stack.http_url + GENERATE, body, workers=workers, pause_s=0.02)
    async with load:
        await load.more(60)
        if state == "frozen":
            sick.gate = released
        else:
            sick.status = 500
        assert await eventually(detected), await states(http, stack)
        begun = time.monotonic()
        status = admin_pb2.GetStatusRequest()
        assert await eventually(named, TOLD_S), await ask(stack, "GetStatus", status)
        record_property("named_after", f"{time.monotonic() - begun:.1f} s")
        assert await eventually(logged)
        if state == "frozen":
            await stays_named(stack, sick.name, state)
        released.set()


async def stays_named(stack, name, state):
    """Hold that a replica which stays sick is never called well again, by any worker's report."""
    seen = []
    until = time.monotonic() + STAYS_S
    while time.monotonic() < until:
        found = await ask(stack, "GetReplicas", admin_pb2.GetReplicasRequest(pool="llm"))
        seen += [each.state for each in found.replicas if each.endpoint == name]
        await asyncio.sleep(0.2)
    assert all(each.startswith(state) for each in seen), seen


async def test_a_request_is_found(http, stack):
    """By its id or its trace, whichever worker decided; an unknown one is named as such."""
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"x-request-id": "found-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-00"}
    async with http.post(stack.http_url + GENERATE, json=body(), headers=headers) as answer:
        assert answer.status == 200
    found = []

    async def ended() -> bool:
        code, records = await cli(stack, "request", "found-1")
        found[:] = records
        return code == 0 and records[0]["end"] is not None

    assert await eventually(ended)
    (record,) = found
    assert (record["pool"], record["variant"], record["trace_id"]) == ("llm", "stable", trace)
    assert record["end"]["served"] in record["addresses"]
    assert record["end"]["status"] == 200
    assert [each["id"] for each in record["candidates"]]

    async def by_trace() -> bool:
        _, records = await cli(stack, "request", trace)
        return [each["ticket"] for each in records] == [record["ticket"]]

    assert await eventually(by_trace)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "request", "never-sent"),
        *("--server", stack.admin_address),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert (process.returncode, b"no picker remembers" in said) == (1, True)


async def test_a_worker_that_restarts_is_not_counted_twice(http, stack):
    """A killed worker loses at most what it had not reported, and its next life begins at 0.

    Requests that get no pick while Envoy still asks the killed worker are not counted.
    """

    async def picks() -> float:
        return await metric(http, stack.picker_pages[0], PICKS)

    start, before = await reported(http, stack), await picks()
    async with Traffic(http, stack.http_url + GENERATE, body, workers=4, pause_s=0.01) as load:
        await load.more(100)
        os.kill(worker_pids(stack)[1], signal.SIGKILL)
        await load.more(300)

    async def all_of_the_first() -> bool:
        return await counted(stack) - start >= await picks() - before

    assert await eventually(all_of_the_first)
    assert await settled(stack) - start <= load.count
