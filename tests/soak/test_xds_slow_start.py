"""Envoy's slow start, as configured in the fleet, without a picker."""

from __future__ import annotations

import asyncio
import time

from support.in_process_stack import GENERATE, PICKER, InProcessStack

WINDOW_S = 6.0


async def served(stack: InProcessStack) -> dict[str, int]:
    """Return the number of served requests by address, from Envoy's counters."""
    page = await stack.envoy_page("clusters?format=json")
    counts = {}
    for cluster in page["cluster_statuses"]:
        if cluster["name"] == "llm/stable/http":
            for host in cluster["host_statuses"]:
                address = host["address"]["socket_address"]
                stats = {one["name"]: int(one.get("value", 0)) for one in host["stats"]}
                counts[f"{address['address']}:{address['port_value']}"] = stats["rq_total"]
    return counts


async def share_of(stack: InProcessStack, address: str, within_s: float = 60.0) -> float:
    """Send up to 400 requests within the time; return the fraction that a replica served."""
    before, ends = await served(stack), time.monotonic() + within_s

    async def ask(count: int) -> None:
        for _ in range(count):
            if time.monotonic() > ends:
                return
            url = f"http://{stack.listener}{GENERATE}"
            async with stack.http.post(url, json={"text_input": "x"}) as answer:
                assert answer.status == 200

    await asyncio.gather(*(ask(50) for _ in range(8)))
    after = await served(stack)
    return (after[address] - before.get(address, 0)) / (sum(after.values()) - sum(before.values()))


async def test_a_new_replica_ramps_up() -> None:
    """A replica that joins a warm pool gets a small share first and its full share later."""
    async with InProcessStack("delta") as stack:
        fleet = stack.first_fleet()
        pool = fleet["pools"][0]
        pool["variants"] = [{"name": "stable"}]
        pool["endpoints"] = [stack.endpoint(0, "stable"), stack.endpoint(1, "stable")]
        pool["slow_start"] = {"window": f"{WINDOW_S}s", "min_weight_percent": 10}
        await stack.apply(fleet)
        await stack.supervisor.kill(PICKER)
        await asyncio.sleep(WINDOW_S + 1)  # the first two replicas are warm from now on
        newcomer = stack.upstreams[2]
        pool["endpoints"].append(stack.endpoint(2, "stable"))
        await stack.apply(fleet)
        young = await share_of(stack, newcomer, WINDOW_S / 4)
        await asyncio.sleep(WINDOW_S + 1)
        warm = await share_of(stack, newcomer)
    assert young < 0.22
    assert 0.22 < warm < 0.45
