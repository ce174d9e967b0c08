"""Continuous changes, kills and clients of every bad kind fail no request and cut no stream."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest

from support.ads_peers import AdsPeer, Deaf, Flapping, Mute, Refusing, Slow
from support.crowd import CHUNK_S, CONTROL, ENVOYS, PICKERS, Crowd, Talks
from support.in_process_stack import Flow
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.control.fleet_control import FALLBACK_AUTHOR
from xds_server.protocol.gate.quarantine import LIMIT
from xds_server.protocol.publication import STAGE_DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CHANGES = int(os.environ.get("TIDEGATE_STORM_CHANGES", "60"))
"""Number of changes; from 300 on it is the long form, of several minutes."""
LONG = CHANGES >= 300
SEED = int(os.environ.get("TIDEGATE_STORM_SEED", "20"))
STREAM_S = 120.0 if LONG else 15.0
PAUSES_S = (0.0, 0.0, 0.2, 0.6, 2.5) if LONG else (0.0, 0.0, 0.1, 0.3, 0.5)
RATE = 60.0
"""Requests per second through each Envoy."""
NEWEST_S = 1.0
"""Longest time to the newest state, in seconds, without what the machine took."""
DRAIN_S = 1.0
"""Longest time to each drain, in seconds, likewise; mostly 40 ms."""
LAST_S = 5.0
"""The same where another change has taken the other replica from pickers just before: then Envoys
have to know what takes its place, and slow ones are waited for."""

pytestmark = [
    pytest.mark.timeout(60 + 6 * CHANGES),
    pytest.mark.usefixtures("demo_extra"),
]


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


class Line:
    """Requests and long streams through one Envoy."""

    def __init__(self, crowd: Crowd, envoy: str) -> None:
        self.envoy = envoy

        async def connect() -> Any:
            return await crowd.connect(envoy)

        self.flow = Flow(crowd.listener, rate=RATE, connections=2)
        self.flow.connect = connect  # type: ignore[method-assign]  # by which Envoy, not address
        self.talks = Talks(connect, round(STREAM_S / CHUNK_S))

    @property
    def wrong(self) -> Counter[str]:
        """What has failed."""
        return self.flow.wrong + self.talks.wrong

    def forgive(self) -> None:
        """Forget what the death of its Envoy broke: connections, but no answer but 200 came."""
        assert not [each for each in self.wrong if "HTTP/1.1" in each], self.wrong
        self.flow.wrong.clear()
        self.talks.wrong.clear()


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


def clients(ads: str, rng: random.Random) -> tuple[list[AdsPeer], list[AdsPeer]]:
    """Return correct clients, and those of every other kind."""
    watches = [
        AdsPeer(ads, f"watch-{kind}-{variant}", kind, variant)
        for kind in ("envoy", "picker")
        for variant in ("delta", "sotw")
    ]
    bad = [
        Deaf(ads, "deaf-envoy", "envoy", "delta"),
        Deaf(ads, "deaf-picker", "picker", "sotw"),
        Mute(ads, "mute-envoy", "envoy", "sotw"),
        Mute(ads, "mute-picker", "picker", "delta"),
        Refusing(ads, "refusing-envoy", "envoy", "delta"),
        Refusing(ads, "refusing-picker", "picker", "sotw"),
        Refusing(ads, "choosy-envoy", "envoy", "sotw", first=True),
        Slow(ads, "slow-envoy", "envoy", "delta", rng=rng),
        Slow(ads, "slow-picker", "picker", "sotw", rng=rng),
        Flapping(ads, "flapping-envoy", "envoy", "sotw", rng=rng),
        Flapping(ads, "flapping-picker", "picker", "delta", rng=rng),
        Mute(ads, "envoy-1", "envoy", "delta"),  # a twin of an Envoy
        AdsPeer(ads, "picker-1", "picker", "sotw"),  # a twin of a picker
    ]
    return watches, bad


class Kills:
    """Kills one process at a time and starts it again."""

    def __init__(self, crowd: Crowd, lines: dict[str, Line], operators: Operators) -> None:
        self.made: Counter[str] = Counter()
        self.started = time.monotonic()
        """When the control server began to serve."""
        self._crowd, self._lines, self._operators = crowd, lines, operators
        self._task: asyncio.Task[None] | None = None

    async def kill(self, name: str) -> None:
        """Kill a process after the one before is back; do not wait until this one is."""
        await self.back()
        await self._operators.settle()
        self.made[name] += 1
        self._task = asyncio.create_task(self._kill(name))

    async def back(self) -> None:
        """Wait until what was killed is back."""
        if self._task is not None:
            await self._task

    async def _kill(self, name: str) -> None:
        others = [line for line in self._lines.values() if line.envoy != name]
        assert not sum((line.wrong for line in self._lines.values()), Counter())
        self._operators.control_down = name == CONTROL
        await self._crowd.kill(name)
        await self._crowd.serving()
        if name == CONTROL:
            await self._crowd.status()
            self.started = time.monotonic()
            self._operators.control_down = False
        if name in self._lines:
            self._lines[name].forgive()
        assert not sum((line.wrong for line in others), Counter()), name


def plan(rng: random.Random) -> dict[int, str]:
    """Return which process is killed before which change."""
    each = [CONTROL, "envoy-2", PICKERS[0]]
    if not LONG:
        return {CHANGES * (n + 1) // 4: name for n, name in enumerate(each)}
    names = [*ENVOYS, CONTROL, CONTROL, *PICKERS]
    return {number: rng.choice(names) for number in range(20, CHANGES - 20, 25)}


async def newest(crowd: Crowd, watches: list[AdsPeer], lag: Lag) -> list[tuple[float, float]]:
    """Make a last change; return the seconds until each has it, with the lag.

    Envoys and pickers that are waited for with good reason, as clusters warm, answer before it.
    """
    await crowd.acknowledged()
    weight = 7919
    found = [watch.once(lambda peer: peer.weighs("llm", weight)) for watch in watches]
    fleet = await crowd.fleet()
    variant = fleet["pools"][0]["variants"][0]["name"]
    request = api.SetWeightsRequest(pool="llm", weights={variant: weight})
    began = time.monotonic()
    await crowd.operator.SetWeights(request)
    async with asyncio.timeout(60):
        times = await asyncio.gather(*found)
    return [(at - began, lag.between(began, at)) for at in times]


async def test_no_request_fails_and_no_stream_is_cut_in_a_crowd(tmp_path) -> None:
    """X45 and others: with 2 Envoys, 2 pickers and clients that hold a control server up."""
    rng = random.Random(SEED)
    lag = Lag()
    async with AsyncExitStack() as exit_, Crowd(tmp_path, STREAM_S) as crowd:
        measuring = asyncio.create_task(lag.run())
        exit_.callback(measuring.cancel)
        watches, bad = clients(crowd.ads, rng)
        for peer in (*watches, *bad):
            await exit_.enter_async_context(peer)
        lines = {envoy: Line(crowd, envoy) for envoy in ENVOYS}
        for line in lines.values():
            await exit_.enter_async_context(line.flow)
            await exit_.enter_async_context(line.talks)
        operators = Operators(crowd, watches, lag, rng)
        kills, planned = Kills(crowd, lines, operators), plan(rng)
        for number in range(CHANGES):
            if number in planned:
                await kills.kill(planned[number])
            if number == CHANGES * 6 // 10:
                for line in lines.values():
                    line.talks.last = True
            await operators.change()
            await asyncio.sleep(rng.choice(PAUSES_S))
        await kills.back()
        await operators.settle()
        # Until then those that have never answered are waited for, with anything but drains.
        await asyncio.sleep(max(0.0, kills.started + STAGE_DEADLINE_S + 1.0 - time.monotonic()))
        last_s = await newest(crowd, watches, lag)
        for line in lines.values():
            await line.talks.finish()
            assert not line.wrong, line.envoy
            assert line.talks.whole
            assert line.flow.answered > 5 * CHANGES
        revisions = await crowd.operator.ListRevisions(api.ListRevisionsRequest(limit=10_000))
        backs = [each for each in revisions.revisions if each.author == FALLBACK_AUTHOR]
        made = f"{operators.made} {kills.made} {len(backs)} {operators.drains_s} {last_s}"
        # Each life of the control server learns anew whose refusals count for nothing.
        refusing = [peer for peer in bad if isinstance(peer, Refusing) and peer.kind == "envoy"]
        assert len(backs) <= LIMIT * len(refusing) * (1 + kills.made[CONTROL])
        assert operators.drains_s
        assert all(took - lagged <= bound for took, lagged, bound in operators.drains_s), made
        assert max(took - lagged for took, lagged in last_s) <= NEWEST_S, made
        assert len(operators.made) == len(operators.verbs), made
