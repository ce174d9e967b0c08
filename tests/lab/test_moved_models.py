"""Models that move between real Tritons under load, through the operators' ports.

``TIDEGATE_PLACEMENT_SECONDS`` prolongs the run; from 60 s on it has four Tritons of its own and 60
models. ``TIDEGATE_PLACEMENT_SEED`` draws other moves. Figures are printed (``-rP``).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from functools import partial

import grpc
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.utils import InferenceServerException

from support.incidents import stopped
from support.placed_models import PlacedModels
from support.service_process import ready_models, running
from support.traffic import admin, eventually, vision_inputs
from support.workers import states, worker_pids
from tidegate.stack.local import PICKER_ID
from tidegate.stack.tritons.fleet import Tritons
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import ENDPOINT_HEADER

SECONDS = float(os.environ.get("TIDEGATE_PLACEMENT_SECONDS", "6"))
SEED = int(os.environ.get("TIDEGATE_PLACEMENT_SEED", "1"))
LONG = SECONDS >= 60
NAMES = [f"m{number:03}" for number in range(60 if LONG else 12)]
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)
FORCE = api.ChangeOptions(author="test", wait=True, timeout_seconds=60, force=True)
SECOND = "picker-2"
"""The id of a second picker."""
RESTS_S = 1.0
MOVERS = 3
"""Moves at one time, each of another model."""

pytestmark = pytest.mark.timeout(240 + 2 * SECONDS)


def with_many(fleet):
    """Add a pool of all the models on all replicas."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    endpoints = [dict(endpoint, variant="stable") for endpoint in vision["endpoints"]]
    fleet["pools"].append(
        {
            "name": "many",
            "match": {"models": NAMES},
            "variants": [{"name": "stable", "weight": 100}],
            "endpoints": endpoints,
            "routing": {"policy": "least-in-flight"},
            "health": dict(vision["health"]),
        }
    )


@pytest.fixture(scope="module")
async def replicas(tritons):
    """Return the session's Tritons, or four of their own for a long run."""
    if not LONG:
        yield tritons
        return
    async with Tritons(4) as own:
        yield own


@pytest.fixture(scope="module")
async def models(http, replicas):
    """Return the models, each on one or two replicas."""
    async with PlacedModels(http, replicas, NAMES) as placed:
        rng, ids = random.Random(SEED), [each.name for each in replicas.replicas]
        wanted = {(name, at) for name in NAMES for at in rng.sample(ids, rng.randint(1, 2))}
        await placed.change(dict.fromkeys(wanted, True))
        yield placed


@pytest.fixture(scope="module")
async def stack(models, replicas, new_module_stack):  # noqa: ARG001 - loaded first
    """Run one stack with a gateway and two workers, who know where the models are."""
    return await new_module_stack(tritons=replicas, gateway=True, workers=2, fleet=with_many)


class Load:
    """Repeatable requests for all models over both protocols; a context manager.

    Args:
        stack: The stack.
        models: The models.
        clients: Clients of each protocol.
    """

    def __init__(self, stack, models, clients=3) -> None:
        self._stack = stack
        self._models = models
        self._clients = clients
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []

    async def __aenter__(self):
        """Begin to send."""
        self._grpc = triton_grpc.InferenceServerClient(self._stack.grpc_address)
        self._tasks = [
            asyncio.create_task(each(random.Random(f"{SEED} {number}")))
            for number in range(self._clients)
            for each in (self._over_http, self._over_grpc)
        ]
        return self

    async def __aexit__(self, *_):
        """End."""
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        await self._grpc.close()

    async def _over_http(self, rng) -> None:
        while not self._stopped.is_set():
            name = rng.choice(NAMES)
            status, text = await self._models.ask(self._stack.http_url, name)
            self.answers[status] += 1
            if status != 200:
                self.failures.append(f"{name} {status} {text}")

    async def _over_grpc(self, rng) -> None:
        while not self._stopped.is_set():
            name = rng.choice(NAMES)
            try:
                await self._grpc.infer(name, vision_inputs())
                self.answers[200] += 1
            except InferenceServerException as error:
                self.failures.append(f"{name} {error}")


class Moves:
    """Moves models, one at a time each, by the three ways.

    Args:
        stack: The stack.
        models: The models.
        http: A client of HTTP.
    """

    def __init__(self, stack, models, http) -> None:
        self._stack = stack
        self._models = models
        self._http = http
        self._busy: set[str] = set()
        self.made: Counter[str] = Counter()

    async def one(self, rng, way) -> None:
        """Move one model."""
        name = rng.choice([each for each in NAMES if each not in self._busy])
        self._busy.add(name)
        try:
            await getattr(self, way)(rng, name)
            self.made[way] += 1
        finally:
            self._busy.discard(name)

    async def polite(self, rng, name) -> None:
        """Load it on another replica, then unload it where it was, at the control server."""
        here, there = self._places(name)
        gone = rng.choice(sorted(here))
        if there:
            await self._load(name, rng.choice(sorted(there)))
        if len(self._models.on(name)) > 1:
            await self._unload(name, gone)

    async def several(self, rng, name) -> None:
        """Load it on one replica, and unload it from all others at once."""
        here, there = self._places(name)
        kept = rng.choice(sorted(there or here))
        if kept in there:
            await self._load(name, kept)
        gone = sorted(self._models.on(name) - {kept})
        if gone:
            await self._unload(name, *gone)

    async def load_then_unload(self, rng, name) -> None:
        """Load, and unload directly after it, over the operators' port, as Triton's clients do."""
        here, there = self._places(name)
        if not there:
            return
        came, gone = rng.choice(sorted(there)), rng.choice(sorted(here))
        await self._call(name, came, "load")
        await self._call(name, gone, "unload")

    def _places(self, name):
        here = self._models.on(name)
        return here, {each.name for each in self._models.replicas} - here

    async def _load(self, name, at) -> None:
        async with admin(self._stack) as control:
            made = await control.LoadModel(
                api.LoadModelRequest(pool="many", model=name, endpoints=[at], options=WAIT)
            )
        assert made.phase == "done", made
        self._note(name, at, load=True)

    async def _unload(self, name, *gone) -> None:
        async with admin(self._stack) as control:
            made = await control.UnloadModel(
                api.UnloadModelRequest(pool="many", model=name, endpoints=gone, options=WAIT)
            )
        assert made.phase == "done", made
        for at in gone:
            self._note(name, at, load=False)

    async def _call(self, name, at, verb) -> None:
        url = f"http://{self._stack.addresses.gateway.admin}/v2/repository/models/{name}/{verb}"
        async with self._http.post(url, json={}, headers={ENDPOINT_HEADER: at}) as answer:
            assert answer.status == 200, await answer.text()
        self._note(name, at, load=verb == "load")

    def _note(self, name, at, *, load) -> None:
        self._models.changes += 1
        if load:
            self._models.since[name, at] = time.monotonic()
        else:
            self._models.since.pop((name, at), None)


async def agrees(http, stack, models):
    """Return whether all workers know exactly what is loaded."""
    return all(
        {name: {at for at, ready in found.items() if name in ready} for name in NAMES}
        == {name: models.on(name) for name in NAMES}
        for found in map(ready_models, await states(http, stack))
    )


@pytest.fixture
async def second_picker(stack):
    """Run one that no Envoy asks, and that has to be told of all that leaves; return its pid."""
    options = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0", "id": SECOND}
    async with running("ext_proc", "picker_started", xds=stack.addresses.ads, **options) as one:
        assert await eventually(partial(told, stack, SECOND))
        yield one[0]["pid"]


async def told(stack, node):
    """Return whether a picker has acknowledged its pools, and reports."""
    async with admin(stack) as control:
        status = await control.GetStatus(api.GetStatusRequest())
    synced = {each.node for each in status.clients for one in each.types if one.state == "SYNCED"}
    return node in synced and node in status.reports


async def waits(stack, node):
    """Return whether a picker has been sent pools that it has not acknowledged."""
    async with admin(stack) as control:
        status = await control.GetStatus(api.GetStatusRequest())
    (picker,) = (each for each in status.clients if each.node == node)
    return any(each.state != "SYNCED" for each in picker.types)


async def post(http, url, **headers):
    """Return the status and the reason of an answer."""
    async with http.post(url, json={}, headers=headers) as answer:
        return answer.status, answer.headers.get("x-tidegate-reason")


async def on_two(stack, models, name):
    """Let a model be on two replicas; return what moves it, and the replicas."""
    moves = Moves(stack, models, None)
    missing = sorted({each.name for each in models.replicas} - models.on(name))
    for at in missing[: 2 - len(models.on(name))]:
        await moves._load(name, at)
    return moves, sorted(models.on(name))


async def is_ready(http, models, name, at):
    """Return whether a replica has a model READY."""
    async with http.get(f"{models.replica(at).http_url}/v2/models/{name}/ready") as answer:
        return answer.status == 200


async def unload(control, name, at):
    """Begin to unload a model from a replica; return the operation's number."""
    options = api.ChangeOptions(author="test")
    request = api.UnloadModelRequest(pool="many", model=name, endpoints=[at], options=options)
    return (await control.UnloadModel(request)).number


async def ended(stack, number):
    """Wait until an operation has ended; return it."""
    found = []

    async def over() -> bool:
        try:
            async with admin(stack) as control:
                asked = api.GetOperationsRequest(operation=number)
                found[:] = (await control.GetOperations(asked)).operations
        except grpc.aio.AioRpcError:
            return False
        return found[0].ended

    assert await eventually(over)
    return found[0]


async def test_pickers_and_workers_acknowledge_an_unload(http, stack, models, second_picker):
    """Nothing is unloaded before: another picker is waited for, a worker that hangs is named."""
    moves, (gone, *_) = await on_two(stack, models, NAMES[0])
    worker = f"{PICKER_ID}.w1"
    with stopped(worker_pids(stack)[1]):
        async with admin(stack) as control:
            made = await ended(stack, await unload(control, NAMES[0], gone))
        assert made.phase == "undone", made
        assert f"picker {worker} " in made.why
        assert await is_ready(http, models, NAMES[0], gone)
    assert await eventually(partial(agrees, http, stack, models))
    async with Load(stack, models, clients=1) as load:
        with stopped(second_picker):
            async with admin(stack) as control:
                number = await unload(control, NAMES[0], gone)
            assert await eventually(partial(waits, stack, SECOND))
            assert await eventually(partial(told, stack, worker))
            for _ in range(20):
                await asyncio.sleep(0.05)
                assert await is_ready(http, models, NAMES[0], gone)
        assert (await ended(stack, number)).phase == "done"
    assert load.failures == []
    assert not await is_ready(http, models, NAMES[0], gone)
    moves._note(NAMES[0], gone, load=False)
    assert await eventually(partial(agrees, http, stack, models))


async def test_a_control_server_killed_during_a_drain_goes_on(http, stack, models, second_picker):
    """With an unload of its own, once all pickers know of it again; no request is lost."""
    moves, (gone, *_) = await on_two(stack, models, NAMES[1])
    async with Load(stack, models, clients=1) as load:
        with stopped(second_picker):
            async with admin(stack) as control:
                number = await unload(control, NAMES[1], gone)
            assert await eventually(partial(waits, stack, SECOND))
            await stack.kill_control_server()
            assert await is_ready(http, models, NAMES[1], gone)
        await stack.start_control_server()
        made = await ended(stack, number)
        assert made.phase == "done", made
        assert "the control server was restarted" in [each.text for each in made.steps]
    assert load.failures == []
    assert not await is_ready(http, models, NAMES[1], gone)
    moves._note(NAMES[1], gone, load=False)
    assert await eventually(partial(agrees, http, stack, models))


async def test_a_control_server_killed_during_a_gateways_drain_ends_it(
    http, stack, models, second_picker
):
    """The gateway cannot know who was told: it unloads nothing, and says so."""
    moves, (gone, *_) = await on_two(stack, models, NAMES[2])
    url = f"http://{stack.addresses.gateway.admin}/v2/repository/models/{NAMES[2]}/unload"
    async with Load(stack, models, clients=1) as load:
        with stopped(second_picker):
            unloading = asyncio.create_task(post(http, url, **{ENDPOINT_HEADER: gone}))
            assert await eventually(partial(waits, stack, SECOND))
            await stack.kill_control_server()
            status, reason = await unloading
        await stack.start_control_server()
        assert (status, reason) == (409, "in-use")
        assert await is_ready(http, models, NAMES[2], gone)
        assert await eventually(partial(agrees, http, stack, models))
        assert await post(http, url, **{ENDPOINT_HEADER: gone}) == (200, None)
        moves._note(NAMES[2], gone, load=False)
    assert load.failures == []


async def test_no_request_is_lost_while_models_move(http, stack, models):
    """By drains of one or several replicas at the control server, and over the operators' port."""
    assert await eventually(partial(agrees, http, stack, models))
    moves, rng, began = Moves(stack, models, http), random.Random(SEED), time.monotonic()

    async def mover(number) -> None:
        ways = ("polite", "several", "load_then_unload")
        while time.monotonic() - began < SECONDS:
            await moves.one(rng, ways[number % len(ways)])
            number += 1

    async with Load(stack, models, clients=3) as load:
        await asyncio.gather(*map(mover, range(MOVERS)))
    lasted = time.monotonic() - began
    sys.stdout.write(f"{dict(load.answers)} {dict(moves.made)} in {lasted:.1f} s, seed {SEED}\n")
    assert load.failures == []
    assert load.answers[200] > (10_000 if LONG else 10 * SECONDS)
    assert min(moves.made.values()) >= 1
    assert len(moves.made) == 3
    assert await eventually(partial(agrees, http, stack, models))


async def test_no_request_is_lost_where_models_are_taken_away(http, stack, models):
    """They are loaded and unloaded at the Tritons themselves, which tells no picker anything.

    Each time from all replicas that had it, directly after the load on another one. A model rests
    for a second, as else it would move on while a request follows it.
    """
    assert await eventually(partial(agrees, http, stack, models))
    rng, began, moved = random.Random(SEED), time.monotonic(), 0
    async with Load(stack, models, clients=2) as load:
        while time.monotonic() - began < SECONDS / 2:
            name = rng.choice(NAMES)
            here = models.on(name)
            if any(time.monotonic() - models.since[name, at] < RESTS_S for at in here):
                await asyncio.sleep(0.01)
                continue
            there = sorted({each.name for each in models.replicas} - here)
            if not there:
                await models.change({(name, at): False for at in sorted(here)[1:]})
                continue
            await models.change({(name, rng.choice(there)): True})
            await models.change({(name, at): False for at in here})
            moved += 1
    sys.stdout.write(f"{dict(load.answers)}, {moved} moved, seed {SEED}\n")
    assert load.failures == []
    assert moved
