"""Who may call what: each port of the services, each role, and certificates of every kind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.fleets import fleet
from support.identities import (
    CUT,
    KINDS,
    REFUSED,
    ROLES,
    TAKEN,
    Machines,
    Presented,
    clients_of,
    page_verdict,
)
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_api.names import CLUSTER_TYPE, GATEWAY_NODE_CLUSTER, PICKER_NODE_CLUSTER, POOL_TYPE
from tidegate_common.tls.files import LOOK_S
from xds_server.admin.access.tokens import line_of, new_token
from xds_server.app import _running
from xds_server.settings import ControlSettings

WAIT_S = 20.0


class Control(NamedTuple):
    """A control server with TLS, in this process."""

    ads: str
    admin: str
    metrics: str
    health: str


@contextlib.asynccontextmanager
async def control(machines: Machines, folder, **more: Any):
    """Run a control server with the identity of these machines."""
    file = folder / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    with HeldPorts() as ports:
        ads, admin, metrics, health = (ports.address() for _ in range(4))
        settings = ControlSettings(
            fleet=file,
            ads=ads,
            admin=admin,
            metrics=metrics,
            health_port=int(health.rpartition(":")[2]),
            **machines.options,
            **more,
        )
        async with _running(settings):
            yield Control(ads, admin, metrics, health)


def verdict(error: grpc.aio.AioRpcError) -> str:
    """Return how a failed call ended: it was refused, or there was no connection."""
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return REFUSED
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return CUT
    return TAKEN  # the call was refused for what it asks, not for who asks


async def unary(stub_of, method: str, request: Any, address: str, who: Presented) -> str:
    """Make one call and return its verdict."""
    async with who.channel(address) as channel:
        try:
            await getattr(stub_of(channel), method)(request, timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return verdict(error)
        return TAKEN


async def follow(address: str, who: Presented, type_url: str, cluster: str) -> str:
    """Ask for resources as a node of a cluster; return the verdict on the stream.

    gRPC's client says ``INTERNAL`` where a refusal comes while it still writes: it asks again.
    """
    for _ in range(10):
        code, details = await _followed(address, who, type_url, cluster)
        if code is not grpc.StatusCode.INTERNAL:
            break
    if code is grpc.StatusCode.INVALID_ARGUMENT and "its certificate has only" in details:
        return REFUSED
    verdicts = {grpc.StatusCode.PERMISSION_DENIED: REFUSED, grpc.StatusCode.UNAVAILABLE: CUT}
    return TAKEN if code is None else verdicts[code]


async def _followed(
    address: str, who: Presented, type_url: str, cluster: str
) -> tuple[grpc.StatusCode | None, str]:
    """Return the status of one stream; no code = it was answered."""
    async with who.channel(address) as channel:
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
        request = discovery_pb2.DeltaDiscoveryRequest(
            type_url=type_url, node={"id": "p1", "cluster": cluster}
        )
        try:
            async with asyncio.timeout(WAIT_S):
                await call.write(request)
                answer = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            answer = grpc.aio.EOF
        if answer is not grpc.aio.EOF:
            return None, ""
        return await call.code(), await call.details()


async def report(address: str, who: Presented) -> str:
    """Report as a picker; return the verdict on the stream."""
    async with who.channel(address) as channel:
        call = report_pb2_grpc.PickerReportsStub(channel).Report()
        try:
            async with asyncio.timeout(WAIT_S):
                await call.write(report_pb2.PickerReport(picker_id="p1"))
                await call.done_writing()
                await call
        except asyncio.InvalidStateError:
            return REFUSED
        except grpc.aio.AioRpcError as error:
            # A refusal that comes while the client still writes may end with another code.
            return CUT if error.code() is grpc.StatusCode.UNAVAILABLE else REFUSED
        return TAKEN


async def page(address: str, who: Presented, path: str) -> str:
    """Read a page; return the verdict."""
    return await page_verdict(f"https://{address}{path}", who)


def _admin(method: str, request: Any):
    return lambda at, who: unary(admin_pb2_grpc.AdminStub, method, request, at.admin, who)


async def _status(at: Control, who: Presented) -> str:
    stub, request = csds_pb2_grpc.ClientStatusDiscoveryServiceStub, csds_pb2.ClientStatusRequest()
    return await unary(stub, "FetchClientStatus", request, at.admin, who)


async def _health(at: Control, who: Presented) -> str:
    request = health_pb2.HealthCheckRequest()
    return await unary(health_pb2_grpc.HealthStub, "Check", request, at.ads, who)


READERS, OPERATORS = {"viewer", "operator", "admin"}, {"operator", "admin"}
CALLS = {
    "clusters": (lambda at, who: follow(at.ads, who, CLUSTER_TYPE, "gateway"), {"envoy"}),
    "pools": (lambda at, who: follow(at.ads, who, POOL_TYPE, PICKER_NODE_CLUSTER), {"picker"}),
    "pools of a gateway": (
        lambda at, who: follow(at.ads, who, POOL_TYPE, GATEWAY_NODE_CLUSTER),
        {"picker", "gateway"},
    ),
    "reports": (lambda at, who: report(at.ads, who), {"picker"}),
    "health": (_health, set(ROLES)),
    "GetFleet": (_admin("GetFleet", api.GetFleetRequest()), READERS),
    "GetStatus": (_admin("GetStatus", api.GetStatusRequest()), READERS),
    "GetReplicas": (_admin("GetReplicas", api.GetReplicasRequest()), READERS),
    "GetTraffic": (_admin("GetTraffic", api.GetTrafficRequest()), READERS),
    "GetConfig": (_admin("GetConfig", api.GetConfigRequest()), READERS),
    "GetModels": (_admin("GetModels", api.GetModelsRequest()), READERS),
    "GetRequest": (_admin("GetRequest", api.GetRequestRequest(request="x")), READERS),
    "ListRevisions": (_admin("ListRevisions", api.ListRevisionsRequest()), READERS),
    "GetDrain": (_admin("GetDrain", api.GetDrainRequest(endpoint="r9")), READERS),
    "Diff": (_admin("Diff", api.DiffRequest(old_revision=1)), READERS),
    "FetchClientStatus": (_status, READERS),
    "SetWeights": (_admin("SetWeights", api.SetWeightsRequest()), OPERATORS),
    "SetDraining": (_admin("SetDraining", api.SetDrainingRequest()), OPERATORS),
    "SetStandby": (_admin("SetStandby", api.SetStandbyRequest()), OPERATORS),
    "SetBreaker": (_admin("SetBreaker", api.SetBreakerRequest()), OPERATORS),
    "SetSlowStart": (_admin("SetSlowStart", api.SetSlowStartRequest()), OPERATORS),
    "SetDropOverload": (_admin("SetDropOverload", api.SetDropOverloadRequest()), OPERATORS),
    "Confirm": (_admin("Confirm", api.ConfirmRequest()), OPERATORS),
    "Rollback": (_admin("Rollback", api.RollbackRequest(revision=99)), OPERATORS),
    "Apply": (_admin("Apply", api.ApplyRequest(fleet="no fleet")), {"admin"}),
    "LoadModel": (_admin("LoadModel", api.LoadModelRequest()), {"admin"}),
    "UnloadModel": (_admin("UnloadModel", api.UnloadModelRequest()), {"admin"}),
    "AbortModel": (_admin("AbortModel", api.AbortModelRequest()), {"admin"}),
    "GetOperations": (_admin("GetOperations", api.GetOperationsRequest()), READERS),
    "GetModelParity": (_admin("GetModelParity", api.GetModelParityRequest()), READERS),
    "GetCanaries": (_admin("GetCanaries", api.GetCanariesRequest()), READERS),
    "StartCanary": (_admin("StartCanary", api.StartCanaryRequest()), OPERATORS),
    "ActOnCanary": (_admin("ActOnCanary", api.ActOnCanaryRequest()), OPERATORS),
    "/metrics": (lambda at, who: page(at.metrics, who, "/metrics"), READERS),
    "/safe-to-stop": (
        lambda at, who: page(at.metrics, who, "/safe-to-stop?endpoint=r9&timeout=0"),
        {*READERS, "reporter"},
    ),
    "/healthz": (lambda at, who: page(at.metrics, who, "/healthz"), set(ROLES)),
    "another page": (lambda at, who: page(at.metrics, who, "/debug"), set()),
}
"""Calls of the control server's ports, and the roles that may make them."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Machines:
    """Return the authority that the servers trust."""
    return Machines(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Machines:
    """Return another authority."""
    return Machines(tmp_path_factory.mktemp("theirs"), "other")


@pytest.fixture(scope="module")
def clients(machines: Machines) -> dict[str, Presented]:
    """Return a client of each role, and one whose name has no role."""
    return clients_of(machines)


@pytest.fixture(scope="module")
def invalid(machines: Machines, others: Machines) -> dict[str, dict[str, Presented]]:
    """Return clients whose certificates are not valid, by kind and role."""
    return {kind: machines.invalid(others, kind, ROLES) for kind in KINDS}


@pytest.fixture(scope="module")
async def served(machines: Machines, tmp_path_factory):
    """Run one control server for the tests that change no files."""
    async with control(machines, tmp_path_factory.mktemp("control")) as started:
        yield started


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_taken_from_its_roles_only(served: Control, clients, call: str) -> None:
    """Each call of the control server, by each role."""
    make, allowed = CALLS[call]
    found = await asyncio.gather(*(make(served, who) for who in clients.values()))
    wanted = {role: TAKEN if role in allowed else REFUSED for role in clients}
    assert dict(zip(clients, found, strict=True)) == wanted


PORTS = ("clusters", "pools", "reports", "GetStatus", "Apply", "/metrics")
"""A call of each port and service."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", PORTS)
async def test_a_certificate_that_is_not_valid_reaches_nothing(
    served: Control, invalid: dict[str, dict[str, Presented]], call: str, kind: str
) -> None:
    """Whatever role it names: the connection ends in the handshake."""
    make, _ = CALLS[call]
    verdicts = await asyncio.gather(*(make(served, who) for who in invalid[kind].values()))
    assert dict(zip(invalid[kind], verdicts, strict=True)) == dict.fromkeys(ROLES, CUT)


def test_every_method_of_the_admin_api_is_tried() -> None:
    """A new one is entered above with its roles."""
    assert {method.name for method in api.DESCRIPTOR.services_by_name["Admin"].methods} <= set(
        CALLS
    )


async def test_health_alone_is_plain_on_its_own_port(served: Control) -> None:
    """A kubelet has no certificate; it learns nothing else there."""
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://{served.health}/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with http.get(f"http://{served.health}/metrics") as answer:
            assert answer.status == 404


async def test_a_rogue_client_is_shown_and_changes_nothing(served: Control, clients) -> None:
    """Its refusal of resources cannot roll an operator's change back."""
    assert await follow(served.ads, clients["viewer"], CLUSTER_TYPE, "gateway") == REFUSED
    async with clients["viewer"].channel(served.admin) as channel:
        status = await admin_pb2_grpc.AdminStub(channel).GetStatus(api.GetStatusRequest())
    assert not status.clients
    assert any(
        "needs the role envoy or gateway or picker" in each.reason for each in status.refused
    )


async def test_another_authority_comes_into_force_without_a_restart(tmp_path_factory) -> None:
    """Both sides of it: who was trusted is refused, and who was refused is trusted."""
    old = Machines(tmp_path_factory.mktemp("old"), "old")
    new = Machines(tmp_path_factory.mktemp("new"), "new")
    make, _ = CALLS["GetStatus"]
    before, after = ({role: each.client(role) for role in ROLES} for each in (old, new))
    async with control(old, tmp_path_factory.mktemp("control")) as at:
        assert await make(at, before["viewer"]) == TAKEN
        old.renew_server(signer=new)
        async with asyncio.timeout(WAIT_S):
            while await make(at, after["viewer"]) != TAKEN:  # noqa: ASYNC110 - files raise no event
                await asyncio.sleep(LOOK_S / 4)
        for call in PORTS:
            make, allowed = CALLS[call]
            taken = {role: await make(at, who) for role, who in after.items()}
            assert taken == {role: TAKEN if role in allowed else REFUSED for role in ROLES}, call
            assert {await make(at, who) for who in before.values()} == {CUT}, call


async def test_a_broken_certificate_keeps_the_port_open(tmp_path_factory) -> None:
    """What was in force goes on."""
    own = Machines(tmp_path_factory.mktemp("own"), "own")
    make, _ = CALLS["GetStatus"]
    viewer = own.client("viewer")
    async with control(own, tmp_path_factory.mktemp("control")) as at:
        own.files.key.write_text("broken")
        await asyncio.sleep(3 * LOOK_S)
        assert await make(at, viewer) == TAKEN


async def test_a_live_connection_ends_at_its_maximum_age(tmp_path_factory) -> None:
    """So that a certificate that was withdrawn does not serve for ever."""
    own = Machines(tmp_path_factory.mktemp("own"), "own")
    async with control(own, tmp_path_factory.mktemp("control"), tls_max_age=1) as at:
        async with own.client("picker").channel(at.ads) as channel:
            call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
            node = {"id": "p1", "cluster": PICKER_NODE_CLUSTER}
            await call.write(discovery_pb2.DeltaDiscoveryRequest(type_url=POOL_TYPE, node=node))
            async with asyncio.timeout(WAIT_S):
                assert await call.read() is not grpc.aio.EOF
                with pytest.raises(grpc.aio.AioRpcError, match="max connection age"):
                    await call.read()
        assert await follow(at.ads, own.client("picker"), POOL_TYPE, PICKER_NODE_CLUSTER) == TAKEN


async def test_a_picker_speaks_as_itself_only(machines: Machines, tmp_path) -> None:
    """Another picker's id is refused on ADS and in reports, and its own workers' are taken."""
    other = machines.client("picker", "p9")
    async with control(machines, tmp_path) as at:
        node, code = PICKER_NODE_CLUSTER, grpc.StatusCode.INVALID_ARGUMENT
        assert (await _followed(at.ads, other, POOL_TYPE, node))[0] is code
        assert await report(at.ads, other) == REFUSED
        assert await report(at.ads, machines.client("picker", "p1")) == TAKEN
        async with machines.client("viewer").channel(at.admin) as channel:
            status = await admin_pb2_grpc.AdminStub(channel).GetStatus(api.GetStatusRequest())
        assert any("names the picker p9" in each.reason for each in status.refused)


async def test_optional_certificates_lock_no_client_of_ads_out(
    machines: Machines, clients, tmp_path
) -> None:
    """They are for operators with tokens: Envoys and pickers are known by their certificates."""
    async with control(machines, tmp_path, tls_client="optional") as at:
        assert await follow(at.ads, clients["envoy"], CLUSTER_TYPE, "edge") == TAKEN
        assert await follow(at.ads, clients["picker"], POOL_TYPE, PICKER_NODE_CLUSTER) == TAKEN
        assert await report(at.ads, clients["picker"]) == TAKEN
        assert await follow(at.ads, machines.nameless, CLUSTER_TYPE, "edge") == CUT


async def test_http_takes_the_certificates_of_the_admin_port(
    machines: Machines, others: Machines, clients, tmp_path
) -> None:
    """Each role over HTTP with JSON, and certificates that are not valid."""
    with HeldPorts() as ports:
        web = ports.address()
        async with control(machines, tmp_path, admin_http=web):
            for role, who in clients.items():
                for verb, path, allowed in (
                    ("GET", "/v1/GetStatus", READERS),
                    ("POST", "/v1/SetWeights", OPERATORS),
                    ("POST", "/v1/Apply", {"admin"}),
                ):
                    status = await asked(web, who, verb, path)
                    # A body without content is refused by the call, for those who may make it.
                    wanted = (200, 400) if role in allowed else (403,)
                    assert status in wanted, (role, path)
            strangers = (machines.stranger(others, "admin"), machines.expired("admin"))
            for who in (*strangers, machines.nameless):
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    await asked(web, who, "GET", "/v1/GetStatus")


async def asked(address: str, who: Presented, verb: str, path: str, **headers: str) -> int:
    """Make a call over HTTP with JSON; return its status."""
    body = "{}" if verb == "POST" else None
    given = {"Content-Type": "application/json", **headers}
    url = f"https://{address}{path}"
    async with (
        aiohttp.ClientSession(headers=given) as http,
        http.request(verb, url, data=body, ssl=who.context()) as answer,
    ):
        await answer.read()
        return answer.status


async def test_a_token_says_who_calls_over_tls(machines: Machines, clients, tmp_path) -> None:
    """Without a certificate, where none is demanded; and instead of that of a machine."""
    token = new_token()
    (tmp_path / "tokens").write_text(line_of("ann", "operator", token))
    given = (("authorization", f"Bearer {token}"),)
    with HeldPorts() as ports:
        web = ports.address()
        more = {"admin_tokens": tmp_path / "tokens", "tls_client": "optional", "admin_http": web}
        async with control(machines, tmp_path, **more) as at:
            async with machines.nameless.channel(at.admin) as channel:
                stub = admin_pb2_grpc.AdminStub(channel)
                await stub.GetFleet(api.GetFleetRequest(), timeout=WAIT_S, metadata=given)
                for metadata, code in (
                    (None, grpc.StatusCode.UNAUTHENTICATED),
                    (given, grpc.StatusCode.PERMISSION_DENIED),
                ):
                    call = stub.Apply(api.ApplyRequest(), timeout=WAIT_S, metadata=metadata)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call
                    assert caught.value.code() is code
            bearer = {"Authorization": f"Bearer {token}"}
            assert await asked(web, machines.nameless, "GET", "/v1/GetStatus", **bearer) == 200
            assert await asked(web, machines.nameless, "GET", "/v1/GetStatus") == 401
            assert await asked(web, clients["admin"], "POST", "/v1/Apply", **bearer) == 403
