"""A variant's version is what its callers get, on real Tritons over HTTP and gRPC."""

from __future__ import annotations

from collections import Counter
from functools import partial

import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.utils import InferenceServerException

from support.placed_models import BODY, CONFIG, PlacedModels
from support.traffic import eventually, picker_state, vision_inputs

pytestmark = pytest.mark.timeout(240)

STATUS_S = 10.0
"""Within which `status` has the reason."""
MOVES, BOTH, LOOSE = "moves", "both", "loose"
ALL = "version_policy: { all: {} }"


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
    return await new_module_stack(fleet=with_versions)


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


async def test_requests_without_a_version_get_that_of_their_variant(http, stack, client):
    """Replicas have versions 1 and 2: HTTP gets the variant's; gRPC is refused with the reason."""
    assert await eventually(partial(looked, http, stack))
    answers = Counter([await ask(http, stack.http_url, BOTH) for _ in range(10)])
    assert answers == {(200, "1"): 10}
    assert await ask(http, stack.http_url, BOTH, "2") == (200, "2")
    with pytest.raises(InferenceServerException, match="would answer by another version: r1 2"):
        await client.infer(BOTH, vision_inputs())
