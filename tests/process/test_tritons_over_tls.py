"""Real Tritons behind TLS: a picker and a gateway know their models; loads reach them."""

from __future__ import annotations

import contextlib
import json

import aiohttp
import pytest

from support.certificates import Authority
from support.control_process import served
from support.placed_models import PlacedModels
from support.service_process import picker_and_gateway, ready_models
from support.tls_front import TlsFront
from support.traffic import eventually
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import REPLICAS_HEADER

pytestmark = pytest.mark.timeout(120)

HERE, THERE = "tls-here", "tls-there"
WAIT = api.ChangeOptions(wait=True, timeout_seconds=60)


@pytest.fixture
async def models(http, tritons):
    """Return two models, one of which is loaded on the first replica."""
    async with PlacedModels(http, tritons, [HERE, THERE]) as placed:
        await placed.change({(HERE, "r1"): True})
        yield placed


async def test_models_are_known_and_loaded_over_tls(tritons, models, tmp_path):
    """One replica's certificate is of a stranger: only that one is unknown."""
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    contexts = [
        each.server(each.sign(name, "DNS:triton.test"), ask_clients=False)
        for each, name in ((authority, "one"), (authority, "two"), (stranger, "three"))
    ]
    async with contextlib.AsyncExitStack() as stack:
        fronts = [TlsFront(each.http) for each in tritons.replicas]
        for front, tls in zip(fronts, contexts, strict=True):
            await stack.enter_async_context(front.serve(tls))
        names = [each.name for each in tritons.replicas]
        pool = {
            "name": "tls",
            "default": True,
            "match": {"models": [HERE, THERE]},
            "variants": [{"name": "stable"}],
            "endpoints": [
                {"id": name, "http": front.address}
                for name, front in zip(names, fronts, strict=True)
            ],
            "health": {"interval": "200ms"},
            "upstream_tls": {"ca": str(authority.own.certificate), "server_name": "triton.test"},
        }
        file = tmp_path / "fleet.yaml"
        file.write_text(json.dumps({"pools": [pool]}), "utf-8")
        control = await stack.enter_async_context(served(file, tmp_path / "state"))
        services = await stack.enter_async_context(picker_and_gateway(control.ads))
        (picker, _), (gateway, _) = services
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def known() -> dict[str, set[str]]:
            async with http.get(f"http://{picker['metrics']}/debug/state") as answer:
                found = ready_models(await answer.json())
            return {replica: each & {HERE, THERE} for replica, each in found.items()}

        async def index() -> tuple[str, list[str]]:
            async with http.post(f"http://{gateway['http']}/v2/repository/index") as answer:
                rows = await answer.json(content_type=None) if answer.status == 200 else []
                here = [each for each in rows if each["name"] in (HERE, THERE)]
                ready = [each["name"] for each in here if each.get("state") == "READY"]
                return answer.headers[REPLICAS_HEADER], sorted(ready)

        async def first_known() -> bool:
            return await known() == {"r1": {HERE}, "r2": set(), "r3": set()}

        assert await eventually(first_known)
        assert await index() == ("2/3; r3=unreachable", [HERE])
        load = api.LoadModelRequest(pool="tls", model=THERE, endpoints=["r1", "r2"], options=WAIT)
        made = await control.admin.LoadModel(load)
        assert made.phase == "done", made

        async def all_known() -> bool:
            return await known() == {"r1": {HERE, THERE}, "r2": {THERE}, "r3": set()}

        assert await eventually(all_known)
        assert await index() == ("2/3; r3=unreachable", [HERE, THERE])
        load = api.LoadModelRequest(pool="tls", model=HERE, options=WAIT)
        made = await control.admin.LoadModel(load)
        assert (made.phase, "r3: it cannot be asked: " in made.why) == ("undone", True), made
        assert "certificate verify failed" in made.why
        unload = api.UnloadModelRequest(pool="tls", model=THERE, endpoints=["r2"], options=WAIT)
        assert (await control.admin.UnloadModel(unload)).phase == "done"
        models.since[THERE, "r1"] = models.since[HERE, "r1"]
