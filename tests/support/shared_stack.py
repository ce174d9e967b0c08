"""The stack that all tests of a worker share, and what none of them may leave behind in it."""

from __future__ import annotations

import copy
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc
import orjson

from support.replicas import PATIENT, over
from support.traffic import eventually, in_force
from tidegate.stack.fleet import apply_change, build_fleet
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.replica import MODELS
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    import aiohttp

    from support.replicas import Replica
    from tidegate.stack.fleet import FleetChange

READ_S = 5.0
"""Time after which an edit of the fleet file is read for sure, seconds: it is polled."""
OPTIONS = admin_pb2.ChangeOptions(author="lab", wait=True, timeout_seconds=60, force=True)


def patient(fleet: dict[str, Any], change: FleetChange | None) -> dict[str, Any]:
    """Return a fleet with generous timeouts for a busy machine, and a test's changes."""
    fleet["pickers"]["timeout"] = PATIENT
    for pool in fleet["pools"]:
        pool["health"]["timeout"] = PATIENT
    return apply_change(fleet, change)


class LentStack(LocalStack):
    """A stack whose fleet is another one while it is lent.

    The file that its control server watches is left alone: it would be read some time after the
    loan began, and undo what a test had changed by then. A test may edit it.
    """

    lent: dict[str, Any] | None = None
    """The fleet of the loan, with what a test wrote; ``None`` = that of the file."""

    def read_fleet(self) -> dict[str, Any]:
        """Return the fleet that the holder of the stack may change."""
        return super().read_fleet() if self.lent is None else copy.deepcopy(self.lent)

    def write_fleet(self, fleet: Mapping[str, Any]) -> Path:
        """Write the file that the control server watches."""
        if self.lent is not None:
            self.lent = copy.deepcopy(dict(fleet))
        return super().write_fleet(fleet)


class SharedStack:
    """A long-lived stack over a worker's Tritons, and how it was found.

    Args:
        stack: The stack.
        http: HTTP client.
    """

    @classmethod
    @asynccontextmanager
    async def without_replicas(cls, http: aiohttp.ClientSession) -> AsyncIterator[Self]:
        """Start one whose own pool is empty, for the pools of replicas in the test's process."""

        def idle(fleet: dict[str, Any]) -> None:
            (pool,) = fleet["pools"]
            pool |= {"name": "idle", "match": {"models": ["idle"]}}

        async with LentStack(
            replicas=(), models=("toy-llm",), fleet=idle, transport="nghttp2"
        ) as stack:
            made = cls(stack, http)
            await made.remember()
            yield made

    @asynccontextmanager
    async def over(
        self, *replicas: Replica, more: dict[str, Any] | None = None
    ) -> AsyncIterator[LocalStack]:
        """Put a fleet of one pool in force, ``llm``, over replicas, as ``stack_over`` does.

        Args:
            replicas: The replicas; those that are not started serve for as long.
            more: Further fields of the pool.
        """
        async with AsyncExitStack() as exit_:
            for replica in replicas:
                if not replica.address:
                    await exit_.enter_async_context(replica.serve())
            change = over(*replicas, more=more)
            yield await exit_.enter_async_context(
                self.having(change, models=("toy-llm",), gateway=False)
            )

    def __init__(self, stack: LentStack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self._http = http
        self._fleet: Any = None
        self._models: Any = None
        self._lent = 0

    async def remember(self) -> None:
        """Take the present fleet and models for what each test is to leave."""
        self._fleet = await self._fleet_in_force()
        self._models = await self._models_ready()

    @asynccontextmanager
    async def having(
        self,
        fleet: FleetChange | None = None,
        *,
        models: Sequence[str] = MODELS,
        body: str = "peek",
        gateway: bool = True,
    ) -> AsyncIterator[LocalStack]:
        """Put another fleet in force for a while, of pools of one's own or of changed ones.

        Args:
            fleet: Change of the fleet.
            models: Models that have a pool.
            body: Body mode of the pools.
            gateway: Whether Envoy asks the gateway.
        """
        stack, before = self.stack, await self._fleet_in_force()
        outer, file = stack.lent, stack.fleet_file.read_text("utf-8")
        addresses = stack.addresses
        made = build_fleet(
            stack.replicas,
            listener=addresses.listener,
            pickers=addresses.pickers,
            models=models,
            body=body,
            gateway=addresses.gateway if gateway else None,
            change=partial(patient, change=fleet),
        )
        await self._apply(made)
        stack.lent = made
        # A fleet may be lent whose pages cannot be read: that bars no replica, and does not end.
        await self.usable(but=frozenset({"silent"}))
        self._lent += 1
        try:
            yield stack
        finally:
            self._lent -= 1
            stack.lent = outer
            if stack.fleet_file.read_text("utf-8") != file:
                await self._write_back(file)
            await self._apply(before)

            async def back() -> bool:  # what a test wrote last may be applied after this
                return await self._fleet_in_force() == before

            assert await eventually(back), "the fleet of before is not in force again"
            await self.remember()

    async def _write_back(self, file: str) -> None:
        """Write the fleet file as it was, and wait until the control server has read it."""
        edited = await self._fleet_in_force()
        self.stack.run.write(self.stack.fleet_file.name, file)

        async def read() -> bool:
            return await self._fleet_in_force() != edited

        await eventually(read, READ_S)  # nothing changes if what a test wrote last was not read

    async def usable(self, *, but: frozenset[str] = frozenset()) -> None:
        """Wait until no replica is held unfit for what happened to it before; remember the rest.

        Args:
            but: Conditions that do not count.
        """

        async def look() -> bool:
            pools = (await self._state())["router"]["pools"].values()
            endpoints = [each for pool in pools for each in pool["endpoints"].values()]
            return not any(set(each["conditions"]) - but for each in endpoints)

        assert await eventually(look), "replicas of the shared stack have conditions"
        await self.remember()

    async def left(self) -> list[str]:
        """Return what a test has left behind, one sentence each; a changed fleet is put back.

        A fleet that was lent to a file is the file's to change; it is taken back with the loan.
        """
        wrong = []

        async def as_before() -> bool:
            return await self._fleet_in_force() == self._fleet

        # An edit of the file is read a bit later.
        if not self._lent and not await eventually(as_before):
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
        await in_force(self.stack, result)

    async def _models_ready(self) -> dict[str, list[str]]:
        found = {}
        for replica in self.stack.replicas:
            url = f"{replica.http_url}/v2/repository/index"
            async with self._http.post(url, json={"ready": True}) as answer:
                found[replica.name] = sorted(
                    f"{each['name']} {each['version']}" for each in await answer.json()
                )
        return found
