"""A listener for operators, added to a running stack that has a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts

if TYPE_CHECKING:
    from tidegate.stack.local import LocalStack

WITHIN_S = 60.0


async def operators_listener(stack: LocalStack, http: aiohttp.ClientSession) -> str:
    """Add it; return its address once it takes calls that change replicas."""
    gateway = stack.addresses.gateway
    assert gateway is not None
    with HeldPorts() as ports:
        address = ports.address()
        fleet = stack.read_fleet()
        fleet["listener"]["further"] = [
            {"name": "operators", "address": address, "operators": True}
        ]
        fleet["gateway"]["operators"] = {"http": [gateway.admin], "grpc": [gateway.admin_grpc]}
        stack.write_fleet(fleet)

        async def serves() -> bool:
            try:
                async with http.get(f"http://{address}/v2/logging") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        assert await eventually(serves, WITHIN_S)
    return address
