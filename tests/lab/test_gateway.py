"""A gateway over three Tritons: sums, states per replica, changes for operators, and its death."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import grpc
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.streams.reflection import VERSIONS
from gateway.streams.watches import StreamAnswers
from support.traffic import VISION, eventually, vision_body
from tidegate.stack import commands
from tidegate.stack.local import GATEWAY
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import ENDPOINT_HEADER, REPLICAS_HEADER
from tidegate_common.children import module_command

pytestmark = pytest.mark.timeout(180)

INDEX = "/v2/repository/index"
STATS = "/v2/models/vision/stats"


@pytest.fixture(scope="module")
async def stack(new_module_stack):
    """Run three replicas behind a gateway."""
    return await new_module_stack(gateway=True)


@pytest.fixture
async def clients(stack):
    """Return tritonclient over HTTP and over gRPC, through Envoy."""
    async with (
        http_aio.InferenceServerClient(stack.http_address) as over_http,
        grpc_aio.InferenceServerClient(stack.grpc_address) as over_grpc,
    ):
        yield over_http, over_grpc


async def ask(http, url, method="GET", headers=None, body=None):
    """Return status, JSON (or ``None``) and the note on replicas."""
    async with http.request(method, url, json=body, headers=headers) as answer:
        read = await answer.read()
        found = await answer.json(content_type=None) if read else None
        return answer.status, found, answer.headers.get(REPLICAS_HEADER, "")


async def infer(http, stack, times=1):
    """Send inferences and return their statuses."""
    found = []
    for _ in range(times):
        status, _, _ = await ask(http, stack.http_url + VISION, "POST", body=vision_body())
        found.append(status)
    return found


def count_of(answer):
    """Return the inferences of the only model in statistics."""
    (row,) = answer["model_stats"]
    return int(row["inference_count"])


async def counted(http, stack, wanted):
    """Return the sum of inferences once it is ``wanted``, or what it is in the end.

    Triton counts an inference after it has sent the answer.
    """
    found = []

    async def reached():
        _, answer, _ = await ask(http, stack.http_url + STATS)
        found.append(count_of(answer))
        return found[-1] >= wanted

    await eventually(reached)
    return found[-1]


async def direct_counts(http, stack):
    """Return what each replica itself has counted."""
    found = {}
    for replica in stack.replicas:
        _, answer, _ = await ask(http, f"http://{replica.http}{STATS}")
        found[replica.name] = count_of(answer)
    return found


async def test_statistics_are_sums_of_all_replicas(http, stack, clients):
    """The same over HTTP and gRPC, and nothing that clients counted is missing."""
    over_http, over_grpc = clients
    before = count_of(await over_http.get_inference_statistics("vision"))
    assert await infer(http, stack, 20) == [200] * 20
    assert await counted(http, stack, before + 20) == before + 20
    after = count_of(await over_http.get_inference_statistics("vision"))
    assert after - before == 20
    assert count_of(await over_grpc.get_inference_statistics("vision", as_json=True)) == after
    assert sum((await direct_counts(http, stack)).values()) == after


async def test_statistics_of_one_replica(http, stack, clients):
    """With the header of its endpoint id, over HTTP and gRPC."""
    one = {ENDPOINT_HEADER: "r2"}
    counts = await direct_counts(http, stack)
    for client, more in ((clients[0], {}), (clients[1], {"as_json": True})):
        answer = await client.get_inference_statistics("vision", headers=one, **more)
        assert count_of(answer) == counts["r2"]
    status, answer, _ = await ask(http, stack.http_url + STATS, headers={ENDPOINT_HEADER: "r9"})
    assert (status, "r9" in answer["error"]) == (404, True)


async def test_the_index_says_which_replica_has_which_version(http, stack, clients):
    """The canary has another version of one model; the others are everywhere."""
    _, rows, note = await ask(http, stack.http_url + INDEX, "POST", body={})
    by_key = {(row["name"], row.get("version", "")): row for row in rows}
    assert by_key["vision", "1"] == {"name": "vision", "version": "1", "state": "READY"}
    first, second = by_key["toy-llm", "1"], by_key["toy-llm", "2"]
    assert (first["state"], first["reason"]) == ("READY", "r3 absent")
    assert second["replicas"]["r3"] == {"state": "READY"}
    assert note == "3/3"
    answer = await clients[1].get_model_repository_index()
    assert {(each.name, each.version) for each in answer.models} == set(by_key)


async def test_descriptions_are_those_of_all(clients):
    """Versions of the stable replicas and of the canary."""
    over_http, over_grpc = clients
    assert (await over_http.get_model_metadata("toy-llm"))["versions"] == ["1", "2"]
    assert list((await over_grpc.get_model_metadata("toy-llm")).versions) == ["1", "2"]
    config = await over_http.get_model_config("vision")
    assert config["name"] == (await over_grpc.get_model_config("vision")).config.name == "vision"
    assert await over_http.is_server_ready()
    assert await over_grpc.is_server_ready()
    assert await over_grpc.is_server_live()
    assert await over_http.is_model_ready("toy-llm", "2")
    assert await over_grpc.is_model_ready("toy-llm", "2")
    assert not await over_http.is_model_ready("toy-llm", "7")


async def test_configurations_agree_over_grpc(stack):
    """Maps that servers write in any order make no difference."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for model in ("vision", "counter"):
            call = stub.ModelConfig(service_pb2.ModelConfigRequest(name=model))
            assert (await call).config.name == model
            assert dict(await call.trailing_metadata())[REPLICAS_HEADER] == "3/3"


async def test_an_unload_on_one_replica_shows_and_a_load_brings_it_back(http, stack, clients):
    """Through the ports for operators, with Triton's own clients."""
    gateway = stack.addresses.gateway
    async with http_aio.InferenceServerClient(gateway.admin) as admin:
        await admin.unload_model("vision", headers={ENDPOINT_HEADER: "r2"})
    try:

        async def shown():
            _, rows, _ = await ask(http, stack.http_url + INDEX, "POST", body={})
            (row,) = [each for each in rows if each["name"] == "vision"]
            states = {name: one["state"] for name, one in row.get("replicas", {}).items()}
            return row["state"] == "READY" and states.get("r2") == "UNAVAILABLE"

        assert await eventually(shown)
        status, _, note = await ask(http, f"{stack.http_url}/v2/models/vision/config")
        assert (status, note) == (200, "2/3; r2=refuses")
        assert await clients[0].is_server_ready()
    finally:
        async with grpc_aio.InferenceServerClient(gateway.admin_grpc) as admin:
            await admin.load_model("vision")
    status, _, note = await ask(http, f"{stack.http_url}/v2/models/vision/config")
    assert (status, note) == (200, "3/3")


async def test_a_watch_tells_when_the_fleet_is_not_ready_and_when_it_is(stack):
    """Through Envoy, while the stream stays open."""
    async with (
        grpc.aio.insecure_channel(stack.grpc_address) as channel,
        http_aio.InferenceServerClient(stack.addresses.gateway.admin) as admin,
        asyncio.timeout(60),
    ):
        asked = health_pb2.HealthCheckRequest()
        watch = health_pb2_grpc.HealthStub(channel).Watch(asked)
        assert (await watch.read()).status == status_of("SERVING")
        await admin.unload_model("vision")
        try:
            assert (await watch.read()).status == status_of("NOT_SERVING")
        finally:
            await admin.load_model("vision")
        assert (await watch.read()).status == status_of("SERVING")


def status_of(name):
    """Return the number of a status of health."""
    return health_pb2.HealthCheckResponse.ServingStatus.Value(name)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_client_that_has_only_reflection_can_ask_a_replica(stack, version):
    """What is described is what can be called."""
    known = StreamAnswers(None, 1.0)._reflection(version)
    service = "inference.GRPCInferenceService"
    asked = known._request(file_containing_symbol=service).SerializeToString()
    pool = descriptor_pool.DescriptorPool()
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        async for said in channel.stream_stream(path)(iter([asked]), timeout=30):
            files = known._response.FromString(said).file_descriptor_response
            for file in files.file_descriptor_proto:
                pool.AddSerializedFile(file)
        method = pool.FindServiceByName(service).methods_by_name["ModelMetadata"]
        request, reply = map(
            message_factory.GetMessageClass, (method.input_type, method.output_type)
        )
        call = channel.unary_unary(
            f"/{service}/ModelMetadata", request.SerializeToString, reply.FromString
        )
        assert (await call(request(name="vision"), timeout=30)).name == "vision"


async def test_settings_reach_all_replicas(http, stack):
    """And are the same everywhere afterwards."""
    url = f"http://{stack.addresses.gateway.admin}/v2/logging"
    status, _, note = await ask(http, url, "POST", body={"log_verbose_level": 1})
    assert (status, note) == (200, "3/3")
    try:
        for replica in stack.replicas:
            _, found, _ = await ask(http, f"http://{replica.http}/v2/logging")
            assert found["log_verbose_level"] == 1
    finally:
        await ask(http, url, "POST", body={"log_verbose_level": 0})
    _, found, note = await ask(http, url)
    assert (found["log_verbose_level"], note) == (0, "3/3")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v2/repository/models/vision/unload", "port for operators"),
        ("/v2/trace/setting", "port for operators"),
        ("/v2/systemsharedmemory/status", "of one host"),
    ],
)
async def test_clients_cannot_change_replicas(http, stack, path, why):
    """The refusal says where such a call belongs."""
    status, answer, _ = await ask(http, stack.http_url + path, "POST", body={})
    assert status == 403
    assert why in answer["error"]


async def test_a_replica_that_restarts_lowers_no_sum(http, stack):
    """While it is away it counts with what it said last; its new counts come on top."""
    _, answer, _ = await ask(http, stack.http_url + STATS)
    before = count_of(answer)
    await stack.kill_replica("r1")
    try:
        status, answer, note = await ask(http, stack.http_url + STATS)
        assert (status, count_of(answer), note) == (200, before, "2/3; r1=unreachable")
        _, rows, _ = await ask(http, stack.http_url + INDEX, "POST", body={})
        assert any("r1 unknown" in row.get("reason", "") for row in rows)
    finally:
        await stack.restart_replica("r1")
    assert await infer(http, stack, 5) == [200] * 5
    assert await counted(http, stack, before + 5) == before + 5


async def test_a_dead_gateway_costs_questions_only(http, stack, clients):
    """Inferences go on; questions are answered again when it is back."""
    await stack._supervisor.kill(GATEWAY)
    try:
        assert await eventually(lambda: has_status(http, stack, 503))
        assert await infer(http, stack, 10) == [200] * 10
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            await clients[1].get_inference_statistics("vision")
        status, answer, _ = await ask(http, stack.http_url + INDEX, "POST", body={})
        assert (status, set(answer)) == (503, {"error"})
    finally:
        await stack._supervisor.restart(GATEWAY)
    assert await eventually(lambda: has_status(http, stack, 200))


async def has_status(http, stack, status):
    """Return whether statistics are answered with this status."""
    return (await ask(http, stack.http_url + STATS))[0] == status


@asynccontextmanager
async def two_gateways(http, stack):
    """Run a second gateway after the first one; the fleet is changed while it runs."""
    first = stack.addresses.gateway
    fleet = stack.read_fleet()
    with HeldPorts() as ports:
        second = type(first)(*(ports.address() for _ in range(5)))
        command = module_command(*commands.gateway(second, stack.addresses.ads, "gateway-2"))
        await stack._supervisor.start("gateway-2", command, service_environment())
        both = {"http": [first.http, second.http], "grpc": [first.grpc, second.grpc]}
        try:
            stack.write_fleet({**fleet, "gateway": both})
            assert await eventually(lambda: answers(http, second.metrics))
            assert await eventually(lambda: shown(http, stack, "membership_healthy", [2, 2]))
            yield
        finally:
            await stack._supervisor.restart(GATEWAY)
            stack.write_fleet(fleet)
            assert await eventually(lambda: answers(http, first.metrics))
            await stack._supervisor.kill("gateway-2")
    assert await eventually(lambda: shown(http, stack, "membership_total", [1, 1]))
    assert await eventually(lambda: has_status(http, stack, 200))


async def test_a_second_gateway_takes_over(http, stack):
    """At once, before Envoy's checks miss the first."""
    async with two_gateways(http, stack):
        await stack._supervisor.kill(GATEWAY)
        statuses = [(await ask(http, stack.http_url + STATS))[0] for _ in range(10)]
        assert statuses == [200] * 10
        async with grpc_aio.InferenceServerClient(stack.grpc_address) as client:
            assert await client.is_model_ready("vision")


async def test_a_question_that_a_dead_gateway_had_is_answered_by_the_second(http, stack):
    """Over both protocols; it had read them."""
    async with (
        two_gateways(http, stack),
        grpc_aio.InferenceServerClient(stack.grpc_address) as client,
    ):
        os.kill(stack._supervisor.pid(GATEWAY), signal.SIGSTOP)
        over_http = asyncio.create_task(ask(http, stack.http_url + STATS))
        over_grpc = asyncio.create_task(client.is_model_ready("vision"))
        assert await eventually(lambda: shown(http, stack, "upstream_rq_active", [1, 1]))
        await stack._supervisor.kill(GATEWAY)
        assert (await over_http)[0] == 200
        assert await over_grpc


async def shown(http, stack, name, values):
    """Return whether Envoy shows these values of its clusters of gateways, one per protocol."""
    page = f"http://{stack.envoy_admin}/stats?format=json&filter=gateway.*{name}$"
    async with http.get(page) as answer:
        found = [each["value"] for each in (await answer.json())["stats"]]
    return found == values


async def answers(http, metrics):
    """Return whether a gateway knows its pools."""
    try:
        async with http.get(f"http://{metrics}/healthz") as answer:
            return answer.status == 200
    except OSError:
        return False


async def test_a_gateway_delays_no_drain(http, stack):
    """It is no picker: it has no requests in flight, and drains wait for no report of it."""
    fleet = stack.read_fleet()
    for pool in fleet["pools"]:
        for endpoint in pool["endpoints"]:
            endpoint["draining"] = endpoint["id"] == "r2"
    try:
        stack.write_fleet(fleet)
        await stack.wait_synced()
        assert await eventually(lambda: has_clients(stack, envoy=1, picker=1, gateway=1))
        assert (await ask(http, stack.http_url + "/v2/health/ready"))[0] == 200
    finally:
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["draining"] = False
        stack.write_fleet(fleet)
        await stack.wait_synced()


async def has_clients(stack, **kinds):
    """Return whether the control server has these numbers of clients of each kind."""
    async with grpc.aio.insecure_channel(stack.admin_address) as channel:
        status = await admin_pb2_grpc.AdminStub(channel).GetStatus(admin_pb2.GetStatusRequest())
    found = {}
    for client in status.clients:
        found[client.kind] = found.get(client.kind, 0) + 1
    return found == kinds
