"""A variant's version is what its callers get, on real Tritons over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import grpc
import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.utils import InferenceServerException

from support.placed_models import BODY, CONFIG, PlacedModels
from support.traffic import admin, eventually, metric, picker_state, vision_inputs
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import REPLICAS_HEADER

pytestmark = pytest.mark.timeout(240)

STATUS_S = 10.0
"""Within which the status has the reason."""
SECONDS = float(os.environ.get("TIDEGATE_VERSIONS_SECONDS", "1"))
"""For how long callers go on before and after each change."""
MOVES, BOTH, LOOSE = "moves", "both", "loose"
ALL = "version_policy: { all: {} }"
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)


def with_versions(fleet):
    """Add a pool with a version per variant, and one without versions."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    pinned = [
        dict(each, variant="canary" if each["id"] == "r3" else "stable")
        for each in vision["endpoints"]
    ]
    common = {"routing": {"policy": "least-in-flight"}, "health": dict(vision["health"])}
    fleet["pools"] += [
        {
            "name": "pinned",
            "match": {"models": [MOVES, BOTH]},
            "variants": [
                {"name": "stable", "weight": 100, "model_version": "1"},
                {"name": "canary", "weight": 0, "model_version": "2"},
            ],
            "endpoints": pinned,
            "shadow": {"variant": "canary", "percent": 100},
            **common,
        },
        {
            "name": "free",
            "match": {"models": [LOOSE]},
            "variants": [{"name": "stable", "weight": 100}],
            "endpoints": [dict(each, variant="stable") for each in vision["endpoints"]],
            **common,
        },
    ]


@pytest.fixture(scope="module")
async def models(http, tritons):
    """Return the models: r1 and r2 serve version 1 of ``moves``, r3 serves version 2."""
    async with PlacedModels(http, tritons, [MOVES, BOTH, LOOSE]) as placed:
        for replica in tritons.replicas:
            here = tritons.run.path / "repositories" / replica.name
            (here / BOTH / "2").mkdir()
            (here / BOTH / "config.pbtxt").write_text(CONFIG + ALL, "utf-8")
        (here / MOVES / "2").mkdir()
        await placed.change(
            {(model, each.name): True for model in placed.names for each in tritons.replicas}
        )
        yield placed


@pytest.fixture(scope="module")
async def stack(models, new_module_stack):  # noqa: ARG001 - written first
    """Run one stack with the pools."""
    return await new_module_stack(fleet=with_versions, gateway=True)


@pytest.fixture
async def client(stack):
    """Return a gRPC client of Envoy."""
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as connected:
        yield connected


async def ask(http, url, model, version="", **headers):
    """Return status and version of an answer over HTTP, or the status and the error."""
    of = f"/versions/{version}" if version else ""
    where = f"{url}/v2/models/{model}{of}/infer"
    async with http.post(where, data=BODY, headers=headers) as answer:
        read = orjson.loads(await answer.read())
        return answer.status, read.get("model_version", read.get("error"))


async def looked(http, stack):
    """Return whether the picker knows the models of all replicas, and Envoy serves."""
    found = (await picker_state(http, stack))["probing"]["placement"]
    return (
        all(found.get(f"r{n}") for n in (1, 2, 3))
        and (await ask(http, stack.http_url, BOTH))[0] == 200
    )


class Callers:
    """Callers of ``moves`` that name no version, over HTTP, gRPC and gRPC streams."""

    def __init__(self, http, stack, client):
        self._http, self._stack, self._client = http, stack, client
        self.answers = {each: Counter() for each in ("http", "grpc", "stream")}
        """By form: the versions that answered, or why none did."""
        self._stopped = asyncio.Event()

    async def __aenter__(self):
        forms = {"http": self._over_http, "grpc": self._over_grpc, "stream": self._streamed}
        self._tasks = [asyncio.create_task(self._go(*each)) for each in forms.items()]
        await asyncio.sleep(SECONDS)
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(SECONDS)
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        figures = {form: dict(found) for form, found in self.answers.items()}
        sys.stdout.write(f"{figures}\n")

    async def _go(self, form, once):
        while not self._stopped.is_set():
            self.answers[form][await once()] += 1
            await asyncio.sleep(0.01)

    async def _over_http(self):
        status, answer = await ask(self._http, self._stack.http_url, MOVES)
        return answer if status == 200 else f"{status} {answer}"

    async def _over_grpc(self):
        try:
            answer = await self._client.infer(MOVES, vision_inputs())
        except InferenceServerException as error:
            return str(error)
        return answer.get_response().model_version

    async def _streamed(self):
        async def requests():
            yield {"model_name": MOVES, "inputs": vision_inputs()}

        try:
            async for result, error in self._client.stream_infer(requests()):
                return str(error) if error else result.get_response().model_version
        except InferenceServerException as error:
            return str(error)
        return "nothing"

    async def answered(self):
        """Wait until all that was asked before this call is answered."""
        before = {form: found.total() for form, found in self.answers.items()}

        async def later():
            return all(found.total() > before[form] for form, found in self.answers.items())

        assert await eventually(later)

    def moved(self):
        """Return how many requests each form has had answered by version 2."""
        return {form: found["2"] for form, found in self.answers.items()}

    def assert_version_one(self):
        """Assert that version 1 has answered all, and that there were some."""
        for form, found in self.answers.items():
            assert set(found) == {"1"}, self.answers
            assert found["1"] >= 10 * SECONDS, form


@asynccontextmanager
async def second_version(tritons, model, *names):
    """Add a version 2 to repositories, as a rollout does; remove it at the end."""
    folders = [tritons.run.path / "repositories" / name / model / "2" for name in names]
    for each in folders:
        each.mkdir()
    try:
        yield
    finally:
        for each in folders:
            each.rmdir()


async def reasons(control):
    """Return the reasons of the status."""
    return list((await control.GetStatus(api.GetStatusRequest())).reasons)


async def test_requests_without_a_version_get_that_of_their_variant(http, stack, client, tritons):
    """Replicas have 1 and 2: HTTP gets the variant's, and so do copies; gRPC is refused."""
    assert await eventually(partial(looked, http, stack))
    url = f"{tritons.replica('r3').http_url}/v2/models/{BOTH}"

    async def served(version):
        async with http.get(f"{url}/versions/{version}/stats") as answer:
            return int((await answer.json())["model_stats"][0]["inference_count"])

    before = await served("2"), await served("1")
    answers = Counter([await ask(http, stack.http_url, BOTH) for _ in range(10)])
    assert answers == {(200, "1"): 10}
    assert await ask(http, stack.http_url, BOTH, "2") == (200, "2")

    async def copied():
        return await served("2") >= before[0] + 10

    assert await eventually(copied)
    assert await served("1") == before[1], "a copy has the version of its own variant"
    with pytest.raises(InferenceServerException, match="would answer by another version: r1 2"):
        await client.infer(BOTH, vision_inputs())
    answer = await client.infer(BOTH, vision_inputs(), model_version="1")
    assert answer.get_response().model_version == "1"
    async with admin(stack) as control:

        async def told():  # the picker knows it first
            wanted = "version 1, but replicas answer by another: r1 2, r2 2"
            return any(wanted in each for each in await reasons(control))

        assert await eventually(told, STATUS_S)


async def test_questions_are_for_the_version_of_the_variant(http, stack):
    """Statistics, configuration and readiness, through the gateway: 1 of two replicas, 2 of one."""
    base = f"{stack.http_url}/v2/models/{MOVES}"
    async with http.get(f"{base}/stats") as answer:
        rows = (await answer.json())["model_stats"]
        assert [each["version"] for each in rows] == ["1", "2"]
    async with http.get(base) as answer:
        assert (await answer.json())["versions"] == ["1", "2"]
    async with http.get(f"{base}/ready") as answer:
        assert (answer.status, answer.headers[REPLICAS_HEADER]) == (200, "3/3")


async def test_loads_through_our_ports_move_no_caller(http, stack, client, tritons):
    """Of version 2, of one that does not exist, of any; and over the port for operators."""
    async with (
        second_version(tritons, MOVES, "r1", "r2"),
        admin(stack) as control,
        Callers(http, stack, client) as callers,
    ):
        for version in ("2", "3"):
            request = api.LoadModelRequest(
                pool="pinned", model=MOVES, version=version, options=WAIT
            )
            with pytest.raises(grpc.aio.AioRpcError, match="has model_version 1") as error:
                await control.LoadModel(request)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        request = api.LoadModelRequest(pool="pinned", model=MOVES, options=WAIT)
        assert (await control.LoadModel(request)).phase == "undone"  # r3 has another version
        request.endpoints.extend(["r1", "r2"])
        made = await control.LoadModel(request)
        assert (made.phase, [each.state for each in made.replicas]) == ("done", ["kept"] * 2)
        path = f"v2/repository/models/{MOVES}/load"
        async with http.post(f"http://{stack.addresses.gateway.admin}/{path}") as answer:
            assert answer.status == 409
            assert "model_version 1" in (await answer.json())["error"]
    callers.assert_version_one()


async def test_a_load_at_a_replica_moves_at_most_what_comes_within_a_look(
    http, stack, client, tritons, models
):
    """None over HTTP; the others are counted, and the status has replica and version in time."""

    async def counted():
        name = "tidegate_picker_version_moved_requests_total"
        return await metric(http, stack.picker_metrics, name, pool="pinned", variant="stable")

    async def known(control):
        wanted = f"model {MOVES} is to be answered by version 1"
        found = [each for each in await reasons(control) if wanted in each]
        return bool(found) and "r1 2" in found[0]

    before = await counted()
    async with second_version(tritons, MOVES, "r1"), admin(stack) as control:
        async with Callers(http, stack, client) as callers:
            await models.change({(MOVES, "r1"): True})
            assert await eventually(partial(known, control), STATUS_S)
            await callers.answered()  # what was picked before
            moved = callers.moved()
        sys.stdout.write(f"moved {moved}, counted {await counted() - before}\n")
        assert callers.moved() == moved, "none once it is known"
        assert moved["http"] == 0
        assert moved["grpc"] + moved["stream"] <= await counted() - before
        for form, found in callers.answers.items():
            assert set(found) <= {"1", "2"}, (form, found)
    await models.change({(MOVES, "r1"): True})
    async with admin(stack) as control:

        async def over():
            return not await known(control)

        assert await eventually(over)


async def test_replicas_that_answer_by_different_versions_are_told(stack, tritons, models):
    """Also of a variant without a version; a load that fails says what they serve now."""
    async with admin(stack) as control, second_version(tritons, LOOSE, "r1", "r2", "r3"):
        await models.change({(LOOSE, "r1"): True})

        async def known():
            wanted = f"model {LOOSE} is answered by different versions: r1 2, r2 1, r3 1"
            return any(wanted in each for each in await reasons(control))

        assert await eventually(known, STATUS_S)
        request = api.LoadModelRequest(pool="free", model=LOOSE, version="3", options=WAIT)
        made = await control.LoadModel(request)
        assert (made.phase, made.now) == ("undone", "r1, r2, r3: version 2")
    await models.change({(LOOSE, each.name): True for each in tritons.replicas})


async def test_without_a_picker_the_version_is_the_variants_over_http(http, stack):
    """Envoy writes it by itself."""
    await stack.kill_picker()
    try:
        answers = Counter([await ask(http, stack.http_url, BOTH) for _ in range(10)])
        assert answers == {(200, "1"): 10}
    finally:
        await stack.start_picker()
