"""One address for everything: a listener of Envoy that takes inferences and changes of replicas."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from bench.emulator.http import DataPort
from bench.emulator.replica import EmulatedReplica
from bench.engine import EngineConfig
from support.identities import Machines
from support.operators_listener import operators_listener
from support.secured_stack import secured_stack
from support.traffic import VISION, eventually, vision_body

pytestmark = pytest.mark.timeout(180)

LOAD = "/v2/repository/models/vision/load"
SETTINGS = "/v2/logging"


@pytest.fixture(scope="module")
async def engine():
    """Serve an emulated engine with OpenAI's API; return its address."""
    port = DataPort(EmulatedReplica(EngineConfig(), 100.0), "vllm")
    server = await asyncio.get_running_loop().create_server(port.protocol, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()
    yield f"{host}:{number}"
    server.close()


@pytest.fixture(scope="module")
async def stack(new_module_stack, engine):
    """Run three Tritons and an engine behind a gateway."""

    def with_engine(fleet):
        for pool in fleet["pools"]:
            pool["variants"] = [{"name": each["name"]} for each in pool["variants"]]
        match = {"models": ["chat"], "paths": ["/v1/chat/completions"]}
        fleet["pools"].append(
            {"name": "chat", "match": match, "endpoints": [{"id": "e1", "http": engine}]}
        )

    return await new_module_stack(gateway=True, fleet=with_engine)


@pytest.fixture(scope="module")
async def operators(stack, http):
    """Add a listener for operators to the running fleet; return its address."""
    return await operators_listener(stack, http)


async def test_one_address_infers_and_changes_all_replicas(operators, http):
    """With tritonclient over HTTP and gRPC; the engine has no part in it."""
    async with (
        http_aio.InferenceServerClient(operators) as over_http,
        grpc_aio.InferenceServerClient(operators) as over_grpc,
    ):
        for client in (over_http, over_grpc):
            await client.load_model("vision")
            assert await client.is_model_ready("vision")
            with pytest.raises(InferenceServerException, match="failed to load 'missing'"):
                await client.load_model("missing")
            await client.update_log_settings({"log_verbose_level": 0})
            assert await client.get_trace_settings()
            for refused in (client.get_system_shared_memory_status,):
                with pytest.raises(InferenceServerException, match="shared memory"):
                    await refused()
    async with http.post(f"http://{operators}{VISION}", json=vision_body()) as answer:
        assert answer.status == 200
    async with http.post(f"http://{operators}{LOAD}", json={}) as answer:
        assert (answer.status, answer.headers["x-tidegate-replicas"]) == (200, "3/3")


async def test_clients_and_web_pages_change_nothing(stack, operators, http):
    """The clients' listener refuses what that for operators takes, and so does this of a page."""
    for address, headers in ((stack.http_address, {}), (operators, {"origin": "http://a.test"})):
        for path in (LOAD, SETTINGS):
            async with http.post(f"http://{address}{path}", json={}, headers=headers) as answer:
                assert answer.status == 403
                assert answer.headers["x-tidegate-reason"] == "one-replica"
    async with grpc_aio.InferenceServerClient(stack.grpc_address) as client:
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            await client.unload_model("vision")


async def test_by_certificates_operators_alone_change_replicas(demo_extra, tmp_path):
    """Envoy tells the gateway whose certificate it is, over whatever the client sent."""
    del demo_extra
    machines = Machines(tmp_path)
    load = "/v2/repository/models/toy-llm/load"
    forged = {"x-forwarded-client-cert": "URI=spiffe://tidegate/admin"}
    cases = [
        ("operator", {}, 200),
        ("admin", {}, 200),
        ("viewer", {}, 403),
        ("viewer", forged, 403),
        ("envoy", forged, 403),
        ("reporter", {}, 403),
    ]
    async with secured_stack(machines, "grpc", gateway=True) as stack:
        url = f"https://localhost:{stack.operators.rpartition(':')[2]}"

        async def post(role, path, headers):
            context = machines.client(role).context()
            async with stack.http.post(url + path, json={}, headers=headers, ssl=context) as answer:
                return answer.status

        async def changed():
            return await post("operator", load, {}) == 200

        await eventually(changed, 30)
        found = [(role, headers, await post(role, load, headers)) for role, headers, _ in cases]
        assert found == cases
        assert await post("viewer", "/v2/models/toy-llm/generate", {}) == 200
        context = machines.nameless.context()
        with pytest.raises(aiohttp.ClientError):
            await stack.http.post(url + load, json={}, ssl=context)
        async with stack.http.post(f"http://{stack.listener}{load}", json={}) as answer:
            assert answer.status == 403
