"""The gateway's ports: what each takes, from whom, and how it answers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
import orjson
import pytest
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as pb

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from gateway.changes import ModelDrains, UndrainedError
from gateway.http_answers import HttpQuestion
from gateway.ports import CannotListenError, scope_of, serve_http
from gateway.settings import GatewaySettings
from support.identities import Machines
from tidegate_api.names import (
    ENDPOINT_HEADER,
    GATEWAY_SERVICE,
    IN_SIGHT_HEADER,
    REPLICAS_HEADER,
)
from tidegate_common.tls.settings import secured

from .conftest import channel, saying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from .conftest import Lab

SERVICE = "/inference.GRPCInferenceService/"


class Triton(grpc.GenericRpcHandler):
    """A replica over gRPC: answers methods with given messages, or aborts."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def service(self, details: Any) -> Any:
        """Return the handler of any method."""
        method = details.method.rpartition("/")[2]

        async def handle(_: bytes, context: Any) -> bytes:
            self.asked.append(method)
            answer = self.answers.get(method)
            if answer is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model")
            return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())

        return grpc.unary_unary_rpc_method_handler(handle)


@contextlib.asynccontextmanager
async def tritons(lab: Lab, *replicas: Triton) -> AsyncIterator[None]:
    """Serve replicas as the pool ``p``."""
    async with contextlib.AsyncExitStack() as stack:
        for number, replica in enumerate(replicas, 1):
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((replica,))
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, 0)
            key = EndpointKey(f"r{number}", 1)
            lab.endpoints.append(Endpoint(key, "stable", None, address))
        pool = Pool("p", frozenset({"m"}), endpoints=tuple(lab.endpoints))
        lab.questions.set_pools({"p": pool})
        yield


async def call(to: Any, method: str, message: Any, kind: Any, **metadata: str) -> tuple[Any, str]:
    """Return the answer to a call, and its note."""
    path = method if method.startswith("/") else SERVICE + method
    sent = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    running = to.unary_unary(path, type(message).SerializeToString, kind.FromString)(
        message, metadata=sent, timeout=60
    )
    answer = await running
    return answer, dict(await running.trailing_metadata()).get(REPLICAS_HEADER, "")


def counted(count: int) -> Any:
    """Return statistics of the model ``m``."""
    made = pb.ModelStatisticsResponse()
    made.model_stats.add(name="m", version="1", inference_count=count, last_inference=count)
    return made


async def test_sums_over_grpc(lab: Lab):
    """Each replica's, in Triton's message; one that lies is named."""
    lies = b"\xff\xff\xff"
    async with (
        tritons(
            lab,
            Triton(ModelStatistics=counted(3)),
            Triton(ModelStatistics=counted(2**40)),
            Triton(ModelStatistics=lies),
            Triton(),
        ),
        channel(lab) as to,
    ):
        asked = pb.ModelStatisticsRequest(name="m")
        answer, note = await call(to, "ModelStatistics", asked, pb.ModelStatisticsResponse)
        (row,) = answer.model_stats
        assert (row.inference_count, row.last_inference) == (2**40 + 3, 2**40)
        assert note == "2/4; r3=malformed, r4=refuses"
        one, _ = await call(
            to, "ModelStatistics", asked, pb.ModelStatisticsResponse, tidegate_endpoint="r1"
        )
        assert one == counted(3)


async def test_an_index_over_grpc_names_the_others_in_its_reason(lab: Lab):
    """The message has no other place for it."""
    ready = pb.RepositoryIndexResponse()
    ready.models.add(name="m", version="1", state="READY")
    gone = pb.RepositoryIndexResponse()
    gone.models.add(name="m", version="1", state="UNAVAILABLE", reason="unloaded")
    async with (
        tritons(lab, Triton(RepositoryIndex=ready), Triton(RepositoryIndex=gone)),
        channel(lab) as to,
    ):
        asked = pb.RepositoryIndexRequest(ready=True)
        answer, note = await call(to, "RepositoryIndex", asked, pb.RepositoryIndexResponse)
        (row,) = answer.models
        assert (row.state, row.reason, note) == ("READY", "r2 UNAVAILABLE (unloaded)", "2/2")


async def test_a_model_is_ready_where_a_replica_says_so(lab: Lab):
    """The others are named."""
    yes, no = pb.ModelReadyResponse(ready=True), pb.ModelReadyResponse()
    async with tritons(lab, Triton(ModelReady=no), Triton(ModelReady=yes)), channel(lab) as to:
        asked = pb.ModelReadyRequest(name="m")
        answer, note = await call(to, "ModelReady", asked, pb.ModelReadyResponse)
        assert (answer.ready, note) == (True, "2/2; r1=not-ready")
        answer, note = await call(
            to, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse
        )
        assert (answer.ready, note) == (True, "1/2")


async def test_descriptions_over_grpc(lab: Lab):
    """Versions of all, extensions of each; what else differs is named."""
    one = pb.ModelMetadataResponse(name="m", versions=["1"], platform="a")
    two = pb.ModelMetadataResponse(name="m", versions=["2"], platform="a")
    other = pb.ModelMetadataResponse(name="m", versions=["1"], platform="b")
    servers = [
        pb.ServerMetadataResponse(name="t", extensions=e) for e in (["a", "b"], ["b"], ["b"])
    ]
    models = zip((one, two, other), servers, strict=True)
    async with (
        tritons(lab, *(Triton(ModelMetadata=m, ServerMetadata=s) for m, s in models)),
        channel(lab) as to,
    ):
        asked = pb.ModelMetadataRequest(name="m")
        answer, note = await call(to, "ModelMetadata", asked, pb.ModelMetadataResponse)
        assert (list(answer.versions), answer.platform) == (["1", "2"], "a")
        assert note == "3/3; r3=differs"
        asked = pb.ServerMetadataRequest()
        answer, note = await call(to, "ServerMetadata", asked, pb.ServerMetadataResponse)
        assert (list(answer.extensions), note) == (["b"], "3/3")


async def test_the_error_of_all_is_passed_on(lab: Lab):
    """With its status and its words."""
    async with tritons(lab, Triton(), Triton()), channel(lab) as to:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(to, "ModelConfig", pb.ModelConfigRequest(name="x"), pb.ModelConfigResponse)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        assert error.value.details() == "Request for unknown model"
        assert dict(error.value.trailing_metadata())[REPLICAS_HEADER].startswith("0/2")


async def test_the_gateways_own_health_is_not_the_fleets(lab: Lab):
    """Else Envoy would take no answer from a gateway whose fleet is not ready."""
    async with channel(lab) as to:
        for service, status in ((GATEWAY_SERVICE, 1), ("", 2), ("anything", 2)):
            answer, _ = await call(
                to,
                "/grpc.health.v1.Health/Check",
                health_pb2.HealthCheckRequest(service=service),
                health_pb2.HealthCheckResponse,
            )
            assert answer.status == status


async def test_changes_over_grpc_are_for_operators_only(lab: Lab):
    """The port for questions does not know the methods."""
    replicas = [Triton(RepositoryModelLoad=b""), Triton()]
    asked = pb.RepositoryModelLoadRequest(model_name="m")
    async with tritons(lab, *replicas):
        async with channel(lab) as to:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(to, "RepositoryModelLoad", asked, pb.RepositoryModelLoadResponse)
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert not replicas[0].asked
        async with channel(lab, admin=True) as to:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(to, "RepositoryModelLoad", asked, pb.RepositoryModelLoadResponse)
            assert error.value.code() == grpc.StatusCode.ABORTED
            assert "r2: Request for unknown model" in str(error.value.details())
            await call(
                to,
                "RepositoryModelLoad",
                asked,
                pb.RepositoryModelLoadResponse,
                tidegate_endpoint="r1",
            )


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("A" * 255, True),
        ("A" * 256, False),
        ("é" * 128, False),
        ("/".join(["A" * 199] * 20), True),
        ("/".join(["A" * 199] * 20) + "/A", False),
    ],
)
async def test_a_load_that_would_end_replicas_is_not_sent(lab: Lab, path: str, sent: bool):
    """Triton 2.51 aborts where a file's path is longer than its file system takes."""
    replica = Triton(RepositoryModelLoad=b"")
    asked = pb.RepositoryModelLoadRequest(model_name="m")
    asked.parameters["config"].string_param = "{}"
    asked.parameters[f"file:{path}"].bytes_param = b"a"
    body = {"parameters": {"config": "{}", f"file:{path}": "YQ=="}}
    question = HttpQuestion("POST", "/v2/repository/models/m/load", orjson.dumps(body))
    async with tritons(lab, replica), channel(lab, admin=True) as to:
        if sent:
            await call(to, "RepositoryModelLoad", asked, pb.RepositoryModelLoadResponse)
        else:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(to, "RepositoryModelLoad", asked, pb.RepositoryModelLoadResponse)
            assert error.value.code() == grpc.StatusCode.INTERNAL
            words = "failed to load 'm', failed to poll from model repository"
            assert str(error.value.details()).startswith(words)
            reply = await lab.calls.http(question, scope_of("*", None), admin=True)
            assert (reply.status, reply.reason) == (500, "bad-request")
            assert orjson.loads(reply.body)["error"].startswith(words)
        assert replica.asked == ["RepositoryModelLoad"] * sent


async def test_a_load_leaves_out_replicas_whose_version_it_could_replace(lab: Lab):
    """Where the model is not READY nothing is replaced; if none is left, the load is refused."""
    asked = pb.RepositoryModelLoadRequest(model_name="m")
    ready = Triton(RepositoryModelLoad=b"", ModelReady=pb.ModelReadyResponse(ready=True))
    idle = Triton(RepositoryModelLoad=b"", ModelReady=b"")
    async with tritons(lab, ready, idle):
        lab.put(variants=(Variant("stable", 1, "1"),))
        async with channel(lab, admin=True) as to:
            answer = pb.RepositoryModelLoadResponse
            _, note = await call(to, "RepositoryModelLoad", asked, answer)
            assert note == "1/2; unasked=1"
            assert (ready.asked[-1], idle.asked[-1]) == ("ModelReady", "RepositoryModelLoad")
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(to, "RepositoryModelLoad", asked, answer, tidegate_endpoint="r1")
            assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert "(r1: variant stable of pool p has model_version 1)" in error.value.details()
            assert "RepositoryModelLoad" not in ready.asked


async def test_a_load_over_http_that_could_replace_a_version_is_refused(lab: Lab):
    """With the reason as a header; an unload replaces nothing."""
    await lab.replicas(saying(), variants=(Variant("stable", 1, "1"),))
    given: dict[str, Any] = {"admin": True, "option": "admin"}
    load, unload = (f"/v2/repository/models/m/{verb}" for verb in ("load", "unload"))
    async with (
        serve_http(lab.calls, "127.0.0.1:0", None, lambda *_: None, **given) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        async with session.post(load) as answer:
            assert (answer.status, answer.headers["x-tidegate-reason"]) == (409, "pinned-version")
            assert "model_version 1" in (await answer.json())["error"]
        async with session.post(unload) as answer:
            assert answer.status == 200
    asked = [line.removesuffix(" HTTP/1.1") for _, line in lab.asked]
    assert asked == ["GET /v2/models/m/ready", f"POST {unload}"]


class InUse(ModelDrains):
    """Takes no model out of use."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[tuple[str, list[str]]] = []

    @contextlib.asynccontextmanager
    async def held(self, model: str, endpoints: Iterable[str]) -> AsyncIterator[None]:
        """Refuse."""
        self.asked.append((model, list(endpoints)))
        if model and self.asked[-1][1]:
            raise UndrainedError("picker p is not connected")
        yield


async def test_a_model_that_stays_in_use_is_not_unloaded(lab: Lab):
    """Over both protocols; loads, and calls without a model, ask for nothing."""
    await lab.replicas(saying(), saying())
    drains = lab.changes._drains = InUse()
    load, unload = (f"/v2/repository/models/m/{verb}" for verb in ("load", "unload"))
    given: dict[str, Any] = {"admin": True, "option": "admin"}
    async with (
        serve_http(lab.calls, "127.0.0.1:0", None, lambda *_: None, **given) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        async with session.post(unload, headers={ENDPOINT_HEADER: "r2"}) as answer:
            assert (answer.status, answer.headers["x-tidegate-reason"]) == (409, "in-use")
            error = (await answer.json())["error"]
        async with session.post(load) as answer:
            assert answer.status == 200
    assert error == "m is still in use: picker p is not connected"
    assert [each for each in drains.asked if each[1]] == [("m", ["r2"])]
    assert {line for _, line in lab.asked} == {f"POST {load} HTTP/1.1"}


async def test_http_has_the_note_and_the_reason_as_headers(lab: Lab):
    """Over a socket, with the sight that Envoy sets."""
    await lab.replicas(saying(raw=b'{"name":"m"}'))
    given: dict[str, Any] = {"admin": False, "option": "http"}
    async with (
        serve_http(lab.calls, "127.0.0.1:0", None, lambda *_: None, **given) as address,
        aiohttp.ClientSession(f"http://{address}") as session,
    ):
        async with session.get("/v2/models/m") as answer:
            assert (await answer.read(), answer.headers[REPLICAS_HEADER]) == (
                b'{"name":"m"}',
                "1/1",
            )
        async with session.get("/v2/models/m", headers={IN_SIGHT_HEADER: "other"}) as answer:
            assert (answer.status, answer.headers["x-tidegate-reason"]) == (503, "unavailable")
        async with session.get("/v2/models/m", headers={ENDPOINT_HEADER: "r9"}) as answer:
            assert answer.status == 404
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.post("/v2/repository/index", data=b"x" * 100_000) as answer:
            assert answer.status == 413


def test_the_sight_and_the_replica_are_read_from_headers():
    """Without the header all pools are in sight; an empty one is none."""
    assert scope_of(None, None)[:2] == (None, "")
    assert scope_of("*", "r1")[:2] == (None, "r1")
    assert scope_of("a,b", None).names == {"a", "b"}
    assert scope_of("", None).names == {""}
    assert len(scope_of(None, "r" * 5000).endpoint) == 256


async def test_an_address_that_is_taken_is_told_with_its_option(lab: Lab):
    """An operator knows what to change."""
    given: dict[str, Any] = {"admin": True, "option": "admin"}
    async with serve_http(lab.calls, "127.0.0.1:0", None, lambda *_: None, **given) as address:
        with pytest.raises(CannotListenError, match=f"{address}.*--admin"):
            async with serve_http(lab.calls, address, None, lambda *_: None, **given):
                pass


@pytest.mark.parametrize(
    ("role", "admin", "status"),
    [("envoy", False, 200), ("envoy", True, 403), ("operator", True, 200), ("viewer", False, 403)],
)
async def test_over_tls_each_port_is_for_its_roles(
    lab: Lab, tmp_path: Path, role: str, admin: bool, status: int
):
    """Envoys ask, operators change."""
    machines = Machines(tmp_path)
    settings = GatewaySettings.model_validate({**machines.options, "id": "g"})
    refused: list[Any] = []
    await lab.replicas(saying(raw=b"{}"))
    async with (
        serve_http(
            lab.calls,
            "127.0.0.1:0",
            secured(settings),
            lambda *given: refused.append(given),
            admin=admin,
            option="http",
        ) as address,
        aiohttp.ClientSession() as session,
        session.get(
            f"https://localhost:{address.rpartition(':')[2]}/v2/models/m",
            ssl=machines.client(role).context(),
        ) as answer,
    ):
        assert answer.status == status
    assert len(refused) == (status == 403)
