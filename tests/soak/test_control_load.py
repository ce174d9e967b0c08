"""The control server answers while it validates a large fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from support.control_process import logged, piped
from support.fleets import fleet
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import CLUSTER_TYPE
from tidegate_common.children import module_command

pytestmark = pytest.mark.timeout(120)

ANSWER_S = 0.05
"""Longest time of an answer, of 99 in 100, above that of an idle server."""
IDLE_S = 0.5
TRIES = 5
"""Attempts: on a busy machine other processes delay answers too."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """Run a control server in a process of its own; return the addresses that it logs."""
    path = tmp_path / "fleet.json"
    path.write_text(fleet().model_dump_json())
    free = [word for name in ("ads", "admin", "metrics") for word in (f"--{name}", "127.0.0.1:0")]
    words = ("--fleet", str(path), "--log-format", "json", *free)
    process, lines = await piped(module_command("xds_server", *words))
    ready = await logged(lines, "control_server_ready")
    reading = asyncio.create_task(lines.read())
    yield ready
    os.kill(process.pid, signal.SIGTERM)
    await process.wait()
    await reading


def replicas(number: int) -> str:
    """Return a valid fleet with many replicas."""
    made = [{"http": f"10.0.{i >> 8}.{i & 255}:8000"} for i in range(number)]
    return json.dumps({"pools": [{"name": "p", "match": {"models": ["m"]}, "endpoints": made}]})


def pins(number: int) -> str:
    """Return pools with many pinned variants each; a refused fleet, for two have one name."""
    variants = [
        {"name": f"v{i}", "weight": int(not i), "match": {"headers": {"a": "1", "b": f"{i}"}}}
        for i in range(250)
    ]
    pools = [
        {
            "name": f"p{i // 2}",
            "match": {"models": [f"m{i}"]},
            "variants": variants,
            "endpoints": [{"http": f"10.0.0.{i}:8000"}],
        }
        for i in range(number)
    ]
    return json.dumps({"pools": pools})


async def answers(call: Callable[[], Awaitable[object]], done: asyncio.Event) -> list[float]:
    """Return how long each of the calls until ``done`` took, in seconds."""
    took = []
    while not done.is_set():
        begin = time.perf_counter()
        await call()
        took.append(time.perf_counter() - begin)
        await asyncio.sleep(0.005)
    return sorted(took)


@pytest.mark.parametrize("text", [replicas(7000), pins(12)], ids=["replicas", "pins"])
async def test_clients_are_answered_while_a_fleet_is_validated(server, text: str) -> None:
    """A fleet of 200 KB does not delay the Envoys or other operators."""
    assert len(text) >= 200_000
    async with (
        grpc.aio.insecure_channel(server["admin"]) as admin,
        grpc.aio.insecure_channel(server["ads"]) as ads,
    ):
        operator = admin_pb2_grpc.AdminStub(admin)

        async def status() -> None:
            await operator.GetStatus(admin_pb2.GetStatusRequest(), wait_for_ready=True)

        async def clusters() -> None:
            call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(ads).StreamAggregatedResources()
            node = {"id": "gw-1", "cluster": "gateway"}
            await call.write(discovery_pb2.DiscoveryRequest(node=node, type_url=CLUSTER_TYPE))
            assert (await call.read()).resources
            call.cancel()

        await asyncio.gather(status(), clusters())

        async def slowest(during: Awaitable[object]) -> float:
            done = asyncio.Event()
            others = [asyncio.create_task(answers(call, done)) for call in (status, clusters)]
            with contextlib.suppress(grpc.aio.AioRpcError):  # one of the fleets is refused
                await during
            done.set()
            return max(took[int(0.99 * len(took))] for took in await asyncio.gather(*others))

        options = admin_pb2.ChangeOptions(dry_run=True)
        found: list[tuple[float, float]] = []
        for _ in range(TRIES):
            idle_s = await slowest(asyncio.sleep(IDLE_S))
            apply = operator.Apply(admin_pb2.ApplyRequest(fleet=text, options=options))
            found.append((idle_s, await slowest(apply)))
            if found[-1][1] <= idle_s + ANSWER_S:
                return
        raise AssertionError(f"slowest answers, idle and during the change: {found} s")
