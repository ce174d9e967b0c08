"""Placement on real Tritons: a hundred models unevenly over three replicas, changed under load.

``TIDEGATE_PLACEMENT_SECONDS`` prolongs the run with changes, ``TIDEGATE_PLACEMENT_SEED`` draws
others.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import time
from collections import Counter
from functools import partial

import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.utils import InferenceServerException

from support.envoy_pages import placed
from support.placed_models import BODY, PlacedModels
from support.service_process import ready_models
from support.traffic import admin, eventually, picker_state, vision_inputs
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import MODEL_HEADER

pytestmark = pytest.mark.timeout(240)

SECONDS = float(os.environ.get("TIDEGATE_PLACEMENT_SECONDS", "8"))
SEED = int(os.environ.get("TIDEGATE_PLACEMENT_SEED", "1"))
NAMES = [f"m{number:03}" for number in range(100)]
NOWHERE = "m-nowhere"
SETTLED_S = 1.0
"""Time after which the picker knows of a load that no request has told it of: its looks follow each
other within half a second while models change."""


def with_many(fleet):
    """Add a pool of all the models on all replicas."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    endpoints = [dict(endpoint, variant="stable") for endpoint in vision["endpoints"]]
    fleet["pools"].append(
        {
            "name": "many",
            "match": {"models": [*NAMES, NOWHERE]},
            "variants": [{"name": "stable", "weight": 100}],
            "endpoints": endpoints,
            "routing": {"policy": "least-in-flight"},
            "health": dict(vision["health"]),
        }
    )


@pytest.fixture(scope="module")
async def models(http, tritons):
    """Return the models, loaded unevenly."""
    async with PlacedModels(http, tritons, NAMES) as placed:
        await placed.spread(random.Random(SEED))
        yield placed


@pytest.fixture(scope="module")
async def stack(models, new_module_stack):  # noqa: ARG001 - loaded first
    """Run one stack whose picker knows where the models are."""
    return await new_module_stack(fleet=with_many)


async def known(http, stack):
    """Return where the picker knows each model READY: model -> replicas."""
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for replica, ready in ready_models(await picker_state(http, stack)).items():
        for name in ready & found.keys():
            found[name].add(replica)
    return found


async def agrees(http, stack, models):
    """Return whether the picker knows exactly what is loaded."""
    return await known(http, stack) == {name: models.on(name) for name in NAMES}


async def told(http, stack, models, names, replica):
    """Return whether Envoy has been told that one replica alone has some of the models."""
    moved, found = set(names), await placed(http, stack, "many")
    return len(found) == len(models.replicas) and all(
        each & moved == (moved if at == replica else set())
        for at, lists in found.items()
        for each in lists
    )


async def read_since(http, stack, name, at):
    """Return whether the picker has read a replica's metrics page after a time, monotonic."""
    now, state = time.monotonic(), await picker_state(http, stack)
    age_s = state["telemetry"]["pages"][name]["last_ok_age_s"]
    return age_s is not None and now - age_s > at


async def counter(http, stack, name):
    """Return the sum of one of Envoy's counters over the pool's clusters."""
    page = f"http://{stack.envoy_admin}/stats?format=json&filter=many/stable/.*{name}$"
    async with http.get(page) as answer:
        stats = orjson.loads(await answer.read())["stats"]
    return sum(each.get("value", 0) for each in stats)


async def ask_for_regions(http, stack, stopped, answers):
    """Name shared memory that no Triton knows, which is answered with 404, until stopped."""
    parameters = {"shared_memory_region": "none", "shared_memory_byte_size": 64}
    asked = {**orjson.loads(BODY), "outputs": [{"name": "scores", "parameters": parameters}]}
    for name in itertools.cycle(NAMES):
        if stopped.is_set():
            return
        url = f"{stack.http_url}/v2/models/{name}/infer"
        async with http.post(url, json=asked) as answer:
            await answer.read()
            answers[answer.status] += 1
        await asyncio.sleep(0.02)


async def test_no_request_misses_a_model_that_a_replica_has(http, stack, models, record_property):
    """A tenth of the placements changes each second; each model keeps one settled replica.

    A further client asks for unknown regions of shared memory, which Triton answers with 404 too.
    """
    assert await eventually(partial(agrees, http, stack, models))
    rng = random.Random(SEED)
    answers, regions = Counter(), Counter()
    failures: list[str] = []
    client = triton_grpc.InferenceServerClient(stack.grpc_address)
    stopped = asyncio.Event()
    before = (await picker_state(http, stack))["probing"]
    began, changed = time.monotonic(), models.changes

    async def over_http() -> None:
        while not stopped.is_set():
            name = rng.choice(NAMES)
            status, text = await models.ask(stack.http_url, name)
            answers[status] += 1
            if status != 200:
                failures.append(f"{name} {status} {text}")

    async def over_grpc() -> None:
        while not stopped.is_set():
            name = rng.choice(NAMES)
            try:
                await client.infer(name, vision_inputs())
                answers[200] += 1
            except InferenceServerException as error:
                failures.append(f"{name} {error}")

    workers = [asyncio.create_task(ask_for_regions(http, stack, stopped, regions))]
    workers += [asyncio.create_task(each()) for each in 3 * (over_http, over_grpc)]
    try:
        for second in range(round(SECONDS)):
            await models.change(models.drawn(rng, len(NAMES) * 3 // 10, SETTLED_S))
            await asyncio.sleep(max(0.0, began + second + 1 - time.monotonic()))
    finally:
        stopped.set()
        await asyncio.gather(*workers)
        await client.close()
    lasted, changes = time.monotonic() - began, models.changes - changed
    after = (await picker_state(http, stack))["probing"]
    looks = after["looks"] - before["looks"]
    for_misses = after["looks_for_misses"] - before["looks_for_misses"]
    repeated = await counter(http, stack, "upstream_rq_retry")
    record_property("answers", dict(answers))
    figures = {"changes": changes, "looks": looks, "for_misses": for_misses, "repeated": repeated}
    record_property("figures", figures)
    sys.stdout.write(f"{dict(answers)} {figures} in {lasted:.1f} s\n")
    assert failures == []
    assert regions[404] > SECONDS
    assert answers[200] > 10 * SECONDS
    assert changes > 10 * SECONDS
    assert for_misses <= changes
    assert await eventually(partial(agrees, http, stack, models))


async def test_an_unload_moves_that_model_only(http, stack, models):
    """The replica serves its other models as before, and operators see it."""
    await models.change({(name, at): True for name in NAMES[:2] for at in ("r1", "r2")})
    await models.change({(name, "r3"): False for name in NAMES[:2] if "r3" in models.on(name)})
    assert await eventually(partial(agrees, http, stack, models))
    await models.change({(NAMES[0], "r1"): False})
    served: dict[str, set[str]] = {name: set() for name in NAMES[:2]}
    wanted = {NAMES[0]: {"r2"}, NAMES[1]: {"r1", "r2"}}
    for turn in range(200):  # a replica that a busy machine makes slow is chosen less often
        for name, by in served.items():
            status, who = await models.ask(stack.http_url, name)
            assert status == 200, who
            by.add(who)
        if turn >= 20 and served == wanted:
            break
    assert served == wanted

    async def shown() -> bool:
        async with admin(stack) as control:
            answer = await control.GetModels(admin_pb2.GetModelsRequest(pool="many"))
        states = {(each.model, each.endpoint): each.state for each in answer.models}
        found = [states.get((name, at)) for name in NAMES[:2] for at in ("r1", "r2", "r3")]
        return found == ["UNAVAILABLE", "READY", "UNAVAILABLE", "READY", "READY", "UNAVAILABLE"]

    assert await eventually(shown)


async def test_a_model_that_is_loaded_again_is_no_restart(http, stack, models):
    """Its counter falls to zero; what the picker knows of the replica's other models stays."""
    await models.change({(NAMES[1], "r1"): True, (NAMES[2], "r1"): True})
    replica = models.replica("r1")
    for _ in range(3):
        for name in NAMES[1:3]:
            assert (await models.ask(replica.http_url, name))[0] == 200
        assert await eventually(partial(read_since, http, stack, "r1", time.monotonic()))
        await models.change({(NAMES[1], "r1"): False})
        await models.change({(NAMES[1], "r1"): True})
        assert await eventually(partial(read_since, http, stack, "r1", time.monotonic()))
    state = await picker_state(http, stack)
    assert state["telemetry"]["pages"]["r1"]["restarts"] == 0
    assert state["probing"]["placement"]["r1"] is not None


async def test_a_name_that_no_replica_has_is_asked_once(http, stack, models):
    """Its 404 is the replica's own, unrepeated, over both protocols."""
    assert await eventually(partial(agrees, http, stack, models))
    before = await counter(http, stack, "upstream_rq_retry")
    for _ in range(5):
        status, text = await models.ask(stack.http_url, NOWHERE)
        assert status == 404
        assert "unknown model" in text
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        with pytest.raises(InferenceServerException, match="unknown model"):
            await client.infer(NOWHERE, vision_inputs())
    assert await counter(http, stack, "upstream_rq_retry") == before


async def test_a_picker_that_starts_costs_no_request_its_model(http, stack, models):
    """Before it has looked at the replicas it may choose one that lacks the model."""
    name = NAMES[0]
    await models.change({(name, "r1"): True})
    await models.change({(name, at): False for at in models.on(name) - {"r1"}})
    assert await eventually(partial(told, http, stack, models, [name], "r1"))
    answers: Counter[tuple[int, str]] = Counter()
    stopped = asyncio.Event()

    async def ask() -> None:
        while not stopped.is_set():
            answers[await models.ask(stack.http_url, name)] += 1

    asking = [asyncio.create_task(ask()) for _ in range(3)]
    for _ in range(2):
        await stack.kill_picker()
        await stack.start_picker()
    stopped.set()
    await asyncio.gather(*asking)
    assert list(answers) == [(200, "r1")]


async def test_a_replica_that_restarts_with_other_models_is_known(http, stack, models, tritons):
    """It has none of the models then, and requests do not find that out."""
    await models.change({(name, "r2"): True for name in NAMES if models.on(name) <= {"r1"}})
    assert await eventually(partial(agrees, http, stack, models))
    await tritons.restart("r1")
    for name in NAMES:
        models.since.pop((name, "r1"), None)
    # Until then the picker may forget what r1 has once more, as that of its former process.
    assert await eventually(partial(read_since, http, stack, "r1", time.monotonic()))
    assert await eventually(partial(agrees, http, stack, models))
    for name in NAMES[:10]:
        status, who = await models.ask(stack.http_url, name)
        assert (status, who in {"r2", "r3"}) == (200, True)


async def test_without_a_picker_envoy_goes_where_a_model_is(http, stack, models):
    """It chooses by what pickers found last; a name that no replica has is still asked once."""
    lost = {(name, at): False for name in NAMES[:20] for at in models.on(name) - {"r2"}}
    await models.change({(name, "r2"): True for name in NAMES[:20]})
    await models.change(lost)
    assert await eventually(partial(agrees, http, stack, models))
    assert await eventually(partial(told, http, stack, models, NAMES[:20], "r2"))
    await stack.kill_picker()

    async def in_use() -> bool:
        # Envoy's main thread shows an update before all its workers have it.
        return all([await models.ask(stack.http_url, each) == (200, "r2") for each in NAMES[:20]])

    try:
        assert await eventually(in_use)
        for name in NAMES[:20] * 2:
            status, who = await models.ask(stack.http_url, name)
            assert (status, who) == (200, "r2"), name
        for name in NAMES[20:]:
            status, who = await models.ask(stack.http_url, name)
            assert (status, who in models.on(name)) == (200, True), (name, who)
        async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
            for name in NAMES[:5] * 2:
                await client.infer(name, vision_inputs(), headers={MODEL_HEADER: name})
        assert (await models.ask(stack.http_url, NOWHERE))[0] == 404
    finally:
        await stack.start_picker()
    assert await eventually(partial(agrees, http, stack, models))
