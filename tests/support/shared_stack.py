"""The stack that all tests of a worker share, and what none of them may leave behind in it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import orjson

from support.traffic import eventually
from tidegate.stack.fleet import apply_change
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

    from tidegate.stack.fleet import FleetChange
    from tidegate.stack.local import LocalStack

OPTIONS = admin_pb2.ChangeOptions(author="lab", wait=True, timeout_seconds=60, force=True)


class SharedStack:
    """A long-lived stack over a worker's Tritons, and how it was found.

    Args:
        stack: The stack.
        http: HTTP client.
    """

    def __init__(self, stack: LocalStack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self._http = http
        self._fleet: Any = None
        self._models: Any = None

    async def remember(self) -> None:
        """Take the present fleet and models for what each test is to leave."""
        self._fleet = await self._fleet_in_force()
        self._models = await self._models_ready()

    @asynccontextmanager
    async def having(self, change: FleetChange) -> AsyncIterator[LocalStack]:
        """Change the fleet by the admin API, such as by pools of one's own, for a while."""
        before = await self._fleet_in_force()
        await self._apply(apply_change(self.stack.read_fleet(), change))
        await self.usable()
        try:
            yield self.stack
        finally:
            await self._apply(before)
            await self.remember()

    async def usable(self) -> None:
        """Wait until no replica is held unfit for what happened to it before; remember the rest."""

        async def look() -> bool:
            pools = (await self._state())["router"]["pools"].values()
            endpoints = [each for pool in pools for each in pool["endpoints"].values()]
            return not any(each["conditions"] for each in endpoints)

        assert await eventually(look), "replicas of the shared stack have conditions"
        await self.remember()

    async def left(self) -> list[str]:
        """Return what a test has left behind, one sentence each; a changed fleet is put back."""
        wrong = []
        if await self._fleet_in_force() != self._fleet:
            wrong.append("another fleet is in force")
            await self._apply(self._fleet)

        async def ended() -> bool:
            return (await self._state())["router"]["counters"]["open_tickets"] == 0

        if not await eventually(ended):
            wrong.append("requests are in flight")
        if (models := await self._models_ready()) != self._models:
            wrong.append(f"models are ready: {models}, not {self._models}")
        return wrong

    async def _state(self) -> Any:
        async with self._http.get(f"http://{self.stack.picker_metrics}/debug/state") as answer:
            return orjson.loads(await answer.read())

    async def _fleet_in_force(self) -> Any:
        async with grpc.aio.insecure_channel(self.stack.admin_address) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            return orjson.loads((await stub.GetFleet(admin_pb2.GetFleetRequest())).fleet_json)

    async def _apply(self, fleet: Any) -> None:
        async with grpc.aio.insecure_channel(self.stack.admin_address) as channel:
            request = admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
            result = await admin_pb2_grpc.AdminStub(channel).Apply(request)
        assert not result.problems, result.problems

    async def _models_ready(self) -> dict[str, list[str]]:
        found = {}
        for replica in self.stack.replicas:
            url = f"{replica.http_url}/v2/repository/index"
            async with self._http.post(url, json={"ready": True}) as answer:
                found[replica.name] = sorted(
                    f"{each['name']} {each['version']}" for each in await answer.json()
                )
        return found
