"""Operators who change the fleet of a crowd all the time, and how soon drains reach pickers."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import orjson

from support.ads_peers import AdsPeer
from support.crowd import Crowd
from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NEWEST_S = 1.0
"""Longest time to the newest state, in seconds, without what the machine took."""
DRAIN_S = 1.0
"""Longest time to each drain, in seconds, likewise; mostly 40 ms."""
LAST_S = 5.0
"""The same where another change has taken the other replica from pickers just before: then Envoys
have to know what takes its place, and slow ones are waited for."""


@dataclass
class Lag:
    """How long this process, which is one of many on the machine, was not run."""

    found: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = time.monotonic() + 0.02
            await asyncio.sleep(0.02)
            late = time.monotonic() - due
            if late > 0.02:
                self.found.append((due, late))

    def between(self, begin: float, end: float) -> float:
        """Return the lag between two moments, in seconds."""
        return sum(late for at, late in self.found if begin - late <= at <= end)


class Operators:
    """Makes seeded random changes through every verb and by edits of the file."""

    def __init__(self, crowd: Crowd, watches: list[AdsPeer], lag: Lag, rng: random.Random) -> None:
        self.made: Counter[str] = Counter()
        self.drains_s: list[tuple[float, float, float]] = []
        """Of each drain and watching picker: seconds until it held it, the machine's lag, and the
        bound."""
        self.checks: set[asyncio.Task[None]] = set()
        self.control_down = False
        self._crowd, self._watches, self._lag, self._rng = crowd, watches, lag, rng
        self._keep_until = 0.0
        self._names = 0
        self.verbs: dict[str, Callable[[], Awaitable[bool]]] = {
            "weight": self._weight,
            "drain": self._drain,
            "undrain": self._undrain,
            "breaker": self._breaker,
            "slow start": self._slow_start,
            "shed": self._shed,
            "rollback": self._rollback,
            "apply": self._apply,
            "file": self._file,
        }

    async def change(self) -> None:
        """Make one change; repeat it if the control server is killed meanwhile.

        Likewise if what it names is gone, because another change came between: the way back from
        one that was refused, or an edit of the file.
        """
        gone: tuple[int, str] | None = None
        while True:
            seldom = [1 / (1 + self.made[verb]) ** 2 for verb in self.verbs]
            (verb,) = self._rng.choices(list(self.verbs), seldom)
            try:
                if gone is not None:
                    await self._crowd.fleet()
                    assert self._crowd.revision != gone[0], gone[1]
                    gone = None
                if await self.verbs[verb]():
                    self.made[verb] += 1
                    return
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    gone = self._crowd.revision, str(error)
                elif error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)

    async def settle(self) -> None:
        """Wait for the checks of all drains so far."""
        while self.checks:
            await asyncio.gather(*self.checks)

    @property
    def _options(self) -> api.ChangeOptions:
        wait = self._rng.random() < 0.2
        return api.ChangeOptions(author="storm", wait=wait, timeout_seconds=2, force=True)

    async def _pool(self) -> dict[str, Any]:
        fleet = await self._crowd.fleet()
        pool: dict[str, Any] = fleet["pools"][self._rng.randrange(2)]
        return pool

    async def _weight(self) -> bool:
        pool = await self._pool()
        weights = {pool["variants"][1]["name"]: self._rng.choice([0, 1, 10, 50, 100])}
        request = api.SetWeightsRequest(pool=pool["name"], weights=weights, options=self._options)
        return bool((await self._crowd.operator.SetWeights(request)).changes)

    async def _drain(self) -> bool:
        pool = await self._pool()
        one = self._rng.choice(pool["endpoints"])
        if one["draining"] or not others(pool, one) or not self._spared(pool["name"], one["id"]):
            return False
        at = f"{pool['name']}/{one['id']}"
        began = time.monotonic()
        # Nothing takes the drain back before all have it.
        self._keep_until = began + NEWEST_S + 0.5
        found = [
            watch.once(lambda peer: peer.drains(pool["name"], one["id"]))
            for watch in self._watches
            if watch.kind == "picker"
        ]
        request = api.SetDrainingRequest(endpoint=at, draining=True, options=self._options)
        await self._crowd.operator.SetDraining(request)
        if not self.control_down:
            check = asyncio.create_task(self._check(pool["name"], one["id"], began, found))
            self.checks.add(check)
            check.add_done_callback(self.checks.discard)
        return True

    def _spared(self, pool: str, endpoint: str) -> bool:
        """Return whether pickers have another replica to use now: until then they keep this one."""
        return all(
            peer.spares(pool, endpoint)
            for peer in self._watches
            if peer.kind == "picker" and peer.pool(pool) is not None
        )

    async def _check(
        self, pool: str, endpoint: str, began: float, found: list[asyncio.Future[float]]
    ) -> None:
        await asyncio.sleep(0.1)  # what came just before the drain has arrived
        bound_s = DRAIN_S if self._spared(pool, endpoint) else LAST_S
        async with asyncio.timeout(30):
            for at in await asyncio.gather(*found):
                self.drains_s.append((at - began, self._lag.between(began, at), bound_s))

    async def _undrain(self) -> bool:
        pool = await self._pool()
        draining = [each for each in pool["endpoints"] if each["draining"]]
        if not draining or time.monotonic() < self._keep_until:
            return False
        at = f"{pool['name']}/{self._rng.choice(draining)['id']}"
        request = api.SetDrainingRequest(endpoint=at, draining=False, options=self._options)
        return bool((await self._crowd.operator.SetDraining(request)).changes)

    async def _breaker(self) -> bool:
        pool = await self._pool()
        request = api.SetBreakerRequest(
            pool=pool["name"], max_requests=self._rng.randint(200, 2000), options=self._options
        )
        return bool((await self._crowd.operator.SetBreaker(request)).changes)

    async def _slow_start(self) -> bool:
        pool = await self._pool()
        request = api.SetSlowStartRequest(
            pool=pool["name"], window=self._rng.choice([0, 5, 30]), options=self._options
        )
        return bool((await self._crowd.operator.SetSlowStart(request)).changes)

    async def _shed(self) -> bool:
        request = api.SetDropOverloadRequest(
            pool="idle", percent=self._rng.choice([0, 10, 50]), options=self._options
        )
        return bool((await self._crowd.operator.SetDropOverload(request)).changes)

    async def _rollback(self) -> bool:
        if time.monotonic() < self._keep_until:
            return False
        request = api.ListRevisionsRequest(limit=6)
        known = (await self._crowd.operator.ListRevisions(request)).revisions
        revision = self._rng.choice(known).number
        back = api.RollbackRequest(revision=revision, options=self._options)
        return bool((await self._crowd.operator.Rollback(back)).changes)

    async def _apply(self) -> bool:
        fleet = await self._crowd.fleet()
        self._edit(fleet)
        text = api.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=self._options)
        return bool((await self._crowd.operator.Apply(text)).changes)

    async def _file(self) -> bool:
        """Edit the file: the watch polls, so other changes come between edit and revision."""
        fleet = await self._crowd.fleet()
        self._edit(fleet)
        self._crowd.edit(fleet)
        await asyncio.sleep(0.3)
        return True

    def _edit(self, fleet: dict[str, Any]) -> None:
        before = copy.deepcopy(fleet)
        while fleet == before:
            pool = fleet["pools"][self._rng.randrange(2)]
            self._rng.choice([self._add, self._remove, self._rename, self._pin, self._header])(pool)

    def _add(self, pool: dict[str, Any]) -> None:
        count = len(self._crowd.instant if pool["name"] == "llm" else self._crowd.talking)
        taken = {each["id"] for each in pool["endpoints"]}
        free = [n for n in range(count) if f"{pool['name'][0]}{n}" not in taken]
        if free:
            variant = self._rng.choice(pool["variants"])["name"]
            made = self._crowd.endpoint(pool["name"], self._rng.choice(free), variant)
            pool["endpoints"].append(made)

    def _remove(self, pool: dict[str, Any]) -> None:
        one = self._rng.choice(pool["endpoints"])
        if others(pool, one):
            pool["endpoints"].remove(one)

    def _rename(self, pool: dict[str, Any]) -> None:
        self._names += 1
        old, new = pool["variants"][1]["name"], f"c{self._names}"
        pool["variants"][1]["name"] = new
        for endpoint in pool["endpoints"]:
            if endpoint["variant"] == old:
                endpoint["variant"] = new

    def _pin(self, pool: dict[str, Any]) -> None:
        headers = pool["variants"][1]["match"]["headers"]
        pool["variants"][1]["match"] = {"headers": {} if headers else {"x-test": "b"}}

    def _header(self, pool: dict[str, Any]) -> None:
        name = self._rng.choice(["x-session-id", "x-other-session"])
        pool["routing"]["session_header"] = name


def others(pool: dict[str, Any], one: dict[str, Any]) -> bool:
    """Return whether another replica of the same variant can take its place."""
    return any(
        each["variant"] == one["variant"] and not each["draining"]
        for each in pool["endpoints"]
        if each is not one
    )
