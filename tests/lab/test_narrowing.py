"""Device constraints and preferences of models, through a real Envoy."""

from __future__ import annotations

import asyncio

from support.traffic import VISION, eventually, metric, vision_body
from tidegate_api.names import SERVED_BY_HEADER


def needing(device: str, *, required: bool):
    """Return a change of the fleet: r1 is an a100, and the vision model wants ``device``."""

    def change(fleet):
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["device"] = "a100" if endpoint["id"] == "r1" else "t4"
            if pool["name"] == "vision":
                pool["model_needs"] = [
                    {"model": "vision", "device": device, "device_required": required}
                ]

    return change


async def served(http, stack, count: int) -> set[str]:
    """Send requests concurrently; return the serving replicas."""

    async def one() -> str:
        async with http.post(stack.http_url + VISION, json=vision_body()) as answer:
            assert answer.status == 200
            return answer.headers[SERVED_BY_HEADER]

    return set(await asyncio.gather(*[one() for _ in range(count)]))


async def test_a_device_is_required_then_preferred(http, lend_once):
    """A required device serves alone at any load; a preferred one serves first, with overflow."""
    stack = await lend_once(fleet=needing("a100", required=True))
    first = next(replica for replica in stack.replicas if replica.name == "r1")
    assert await served(http, stack, 24) == {first.http}
    fleet = stack.read_fleet()
    needing("a100", required=False)(fleet)
    stack.write_fleet(fleet)

    async def spilled() -> bool:
        return len(await served(http, stack, 24)) > 1

    assert await eventually(spilled)

    async def idle() -> bool:
        return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 0

    assert await eventually(idle)
    assert await served(http, stack, 1) == {first.http}
