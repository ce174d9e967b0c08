"""Forged calls have no effect: rogue ADS clients, log entries, reports, findings, readings.

And random bytes and messages, from peers whose roles allow the call, end nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import UpstreamEnd
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.service.status.v3 import csds_pb2
from grpc_health.v1 import health_pb2

from ext_proc.server.port import EXCHANGES, LOGS, READINGS
from support.identities import KINDS, Machines, Presented
from support.random_messages import filled, garbled
from support.secured_stack import Stack, secured_stack
from support.traffic import eventually
from support.tries import tries
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_api.fleet.v1 import report_pb2
from tidegate_api.names import (
    CLUSTER_TYPE,
    LISTENER_TYPE,
    PICKER_NODE_CLUSTER,
    POOL_TYPE,
    TICKET_HEADER,
    TIDEGATE_NAMESPACE,
)
from tidegate_api.telemetry.v1 import telemetry_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("demo_extra")]

WAIT_S = 20.0
ROLES = ("envoy", "picker", "gateway", "reporter", "viewer", "operator", "admin")
DELTA = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
WHOLE = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
REPORTS = "/tidegate.fleet.v1.PickerReports/Report"
ADMIN = "/tidegate.admin.v1.Admin"
ENTRIES = 50
ROUNDS = tries(10)
"""Messages of each kind that are sent to each method."""


@pytest.fixture(scope="module", params=["nghttp2", "grpc"])
async def stack(request: pytest.FixtureRequest, tmp_path_factory) -> AsyncIterator[Stack]:
    """Run a stack over each transport of the picker."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    async with secured_stack(machines, request.param) as started:
        yield started


@pytest.fixture(scope="module")
def clients(stack: Stack) -> dict[str, Presented]:
    """Return a client of each role."""
    return {role: stack.machines.client(role) for role in ROLES}


@pytest.fixture(scope="module")
def strangers(stack: Stack, tmp_path_factory) -> list[Presented]:
    """Return clients that no certificate makes an Envoy, picker or reporter."""
    others = Machines(tmp_path_factory.mktemp("theirs"), "other")
    roles = ("envoy", "picker", "reporter")
    made = [stack.machines.invalid(others, kind, roles) for kind in KINDS]
    unknown = stack.machines.client("unknown")
    return [unknown, *(who for found in made for who in found.values())]


async def send(
    address: str, who: Presented, path: str, messages: Sequence[bytes], most_s: float = WAIT_S
) -> grpc.StatusCode:
    """Make a call with raw messages; return how it ended, ``OK`` if it goes on.

    A refusal has no one code: gRPC's client reports a write that meets it as a fault of its own.
    """
    async with who.channel(address) as channel:
        call: Any = channel.stream_stream(path)()

        async def write() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for each in messages:
                    await call.write(each)
                await call.done_writing()

        async def read() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass

        try:
            async with asyncio.timeout(most_s):
                await asyncio.gather(write(), read())
                code: grpc.StatusCode = await call.code()
                return code
        except TimeoutError:
            call.cancel()
            return grpc.StatusCode.OK  # it would have gone on


async def in_force(stack: Stack) -> tuple[Any, ...]:
    """Return what must stay as it is: revision, clients, replicas."""
    async with stack.viewer.channel(stack.admin) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        fleet = await admin.GetFleet(api.GetFleetRequest())
        replicas = await admin.GetReplicas(api.GetReplicasRequest())
    status = await stack.status()
    clients = {
        (each.node, each.kind, each.quarantine, *(view.state for view in each.types))
        for each in status.clients
    }
    states = {(each.endpoint, each.state) for each in replicas.replicas}
    return fleet.revision, fleet.fleet_json, clients, states


def nacks(node: str, cluster: str) -> list[bytes]:
    """Return what a client sends that subscribes as a node and refuses everything."""
    made = []
    for kind in (CLUSTER_TYPE, LISTENER_TYPE, POOL_TYPE):
        request = discovery_pb2.DeltaDiscoveryRequest(
            type_url=kind, node={"id": node, "cluster": cluster}
        )
        made.append(request.SerializeToString())
        for nonce in range(8):
            request.response_nonce = str(nonce)
            request.error_detail.code, request.error_detail.message = 3, "no"
            made.append(request.SerializeToString())
    return made


async def test_a_rogue_ads_client_changes_nothing(stack: Stack, clients, strangers) -> None:
    """Neither under its own name nor under that of a client; an operator's change stays."""
    async with clients["operator"].channel(stack.admin) as channel:
        change = api.SetDrainingRequest(endpoint="u1", draining=True)
        change.options.wait, change.options.timeout_seconds = True, WAIT_S
        await admin_pb2_grpc.AdminStub(channel).SetDraining(change)
    before = await in_force(stack)
    others = [clients[role] for role in ("reporter", "viewer", "operator", "admin")]
    tries = [
        send(stack.ads, who, DELTA, nacks(node, cluster))
        for who in (*others, *strangers)
        for node, cluster in (("e1", "test"), ("p1", PICKER_NODE_CLUSTER), ("e9", "test"))
    ]
    # An Envoy is no picker, and a picker is no Envoy.
    tries.append(send(stack.ads, clients["envoy"], DELTA, nacks("p1", PICKER_NODE_CLUSTER)))
    tries.append(send(stack.ads, clients["picker"], DELTA, nacks("e1", "test")))
    assert grpc.StatusCode.OK not in await asyncio.gather(*tries)
    assert await in_force(stack) == before
    assert await stack.ask() == 200


def entries(ticket: str, address: str) -> bytes:
    """Return a message with failed requests and failed attempts of a replica."""
    message = als_pb2.StreamAccessLogsMessage()
    host, _, port = address.rpartition(":")
    for number in range(ENTRIES):
        entry = message.http_logs.log_entry.add()
        common = entry.common_properties
        common.upstream_cluster = "llm/default/http"
        common.upstream_remote_address.socket_address.address = host
        common.upstream_remote_address.socket_address.port_value = int(port)
        common.upstream_request_attempt_count = 1
        common.response_flags.upstream_connection_termination = True
        common.duration.seconds = 1
        named = f"{ticket}{number}"
        if number % 2:
            common.access_log_type = UpstreamEnd
            entry.request.request_headers[TICKET_HEADER] = f"{named};p1;{address}"
        else:
            fields = common.metadata.filter_metadata[TIDEGATE_NAMESPACE]
            fields["picker"], fields["ticket"] = "p1", named
        entry.response.response_code.value = 503
    return message.SerializeToString()


async def test_forged_log_entries_eject_nothing(stack: Stack, clients, strangers) -> None:
    """Even from an Envoy's own certificate: no entry has the tag of this picker's run."""
    state = await stack.picker_state()
    endpoints = state["router"]["pools"]["llm"]["endpoints"]
    tickets = ("", "0-", "1-", "p1-", "00000000-")
    forged = [
        entries(ticket, endpoint["http"]) for ticket in tickets for endpoint in endpoints.values()
    ]
    before = state["feedback"]["entries"].get("foreign", 0)
    assert await send(stack.picker, clients["envoy"], LOGS, forged) is grpc.StatusCode.OK
    others = [clients[role] for role in ROLES if role != "envoy"]
    tries = [send(stack.picker, who, LOGS, forged[:1]) for who in (*others, *strangers)]
    assert grpc.StatusCode.OK not in await asyncio.gather(*tries)
    state = await stack.picker_state()
    assert state["feedback"]["entries"]["foreign"] == before + ENTRIES * len(forged)
    for endpoint in state["router"]["pools"]["llm"]["endpoints"].values():
        assert not endpoint["conditions"]
        assert endpoint["in_flight"] == 0
    assert [await stack.ask() for _ in range(10)] == [200] * 10


async def test_forged_reports_and_findings_have_no_effect(stack, clients, strangers) -> None:
    """A replica is sick only if a picker says so."""
    before = await in_force(stack)
    report = report_pb2.PickerReport(picker_id="p1", group="p1", passes={"no-cluster": 10**9})
    for name in ("u0", "u1"):
        report.endpoints.add(id=name, in_flight=1000)
        report.findings.add(pool="llm", id=name, conditions=["ejected"])
    others = [clients[role] for role in ROLES if role != "picker"]
    forged = [report.SerializeToString()]
    tries = [send(stack.ads, who, REPORTS, forged) for who in (*others, *strangers)]
    assert grpc.StatusCode.OK not in await asyncio.gather(*tries)
    assert await in_force(stack) == before
    async with stack.viewer.channel(stack.admin) as channel:
        fleet = await admin_pb2_grpc.AdminStub(channel).GetFleet(api.GetFleetRequest())
    assert max(fleet.in_flight.values(), default=0) < 1000


async def test_forged_readings_are_not_read(stack: Stack, clients, strangers) -> None:
    """Who is no reporter cannot say how loaded a replica is."""
    reading = telemetry_pb2.EndpointReport(endpoint="u0")
    reading.readings.add(queued=1e6)
    others = [clients[role] for role in ROLES if role != "reporter"]
    forged = [reading.SerializeToString()]
    tries = [send(stack.picker, who, READINGS, forged) for who in (*others, *strangers)]
    assert grpc.StatusCode.OK not in await asyncio.gather(*tries)
    state = await stack.picker_state()
    assert state["router"]["pools"]["llm"]["endpoints"]["u0"]["readings"] == []


SURFACES = {
    (f"{ADMIN}/{method.name}", "admin", "admin"): method.input_type
    for method in api.DESCRIPTOR.services_by_name["Admin"].methods
}
"""Message types by method, port and role."""
MESSAGES: dict[tuple[str, str, str], Any] = {
    **{key: getattr(api, kind.name) for key, kind in SURFACES.items()},
    (
        "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
        "admin",
        "viewer",
    ): csds_pb2.ClientStatusRequest,
    (DELTA, "ads", "envoy"): discovery_pb2.DeltaDiscoveryRequest,
    (WHOLE, "ads", "picker"): discovery_pb2.DiscoveryRequest,
    (REPORTS, "ads", "picker"): report_pb2.PickerReport,
    ("/grpc.health.v1.Health/Check", "ads", "viewer"): health_pb2.HealthCheckRequest,
    ("/grpc.health.v1.Health/Check", "picker", "reporter"): health_pb2.HealthCheckRequest,
    (EXCHANGES, "picker", "envoy"): external_processor_pb2.ProcessingRequest,
    (LOGS, "picker", "envoy"): als_pb2.StreamAccessLogsMessage,
    (READINGS, "picker", "reporter"): telemetry_pb2.EndpointReport,
}
SOUND = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.PERMISSION_DENIED,  # a bent id is another's
}
"""How a call with any bytes may end."""


SPEAKERS = {
    *("tidegate.fleet.v1.PickerReport", "tidegate.fleet.v1.InquiryAnswer"),
    "tidegate.telemetry.v1.EndpointReport",
}


@pytest.mark.parametrize(
    "surface", MESSAGES, ids=lambda each: f"{each[1]}-{each[0].rpartition('/')[2]}"
)
async def test_random_messages_end_nothing(stack: Stack, clients, surface) -> None:
    """Any message of a method's type is answered, over TLS and from a peer that may call it."""
    path, port, role = surface
    rng, address, who = random.Random(path), getattr(stack, port), clients[role]
    made = [speaking(filled(MESSAGES[surface], rng)).SerializeToString() for _ in range(ROUNDS)]
    tries = [send(address, who, path, [each], 3.0) for each in made]
    codes = await asyncio.gather(*tries)
    assert set(codes) <= SOUND, [made[codes.index(each)] for each in set(codes) - SOUND]
    bent = [garbled(each, rng) for each in made] + [rng.randbytes(60) for _ in range(ROUNDS)]
    tries = [send(address, who, path, [each], 3.0) for each in bent]
    assert set(await asyncio.gather(*tries)) <= SOUND
    if port == "admin":
        await restore(stack, clients["admin"])


def speaking(message: Any) -> Any:
    """Return a message with an id that the peer's certificate names: others are refused unread."""
    for name, own in (("picker_id", "p2"), ("group", "p2"), ("endpoint", "u0")):
        if message.DESCRIPTOR.full_name in SPEAKERS and name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, own)
    return message


async def restore(stack: Stack, who: Presented) -> None:
    """Apply the fleet of the start: some random messages are sound changes."""
    change = api.ApplyRequest(fleet=stack.run.path.joinpath("fleet.yaml").read_text())
    change.options.wait, change.options.timeout_seconds = True, WAIT_S
    change.options.force = True  # some of them drain replicas
    async with who.channel(stack.admin) as channel:
        await admin_pb2_grpc.AdminStub(channel).Apply(change)


async def test_bytes_that_are_no_protocol_end_nothing(stack: Stack, clients) -> None:
    """In place of a handshake, within one, and after it; unfinished ones stay open meanwhile."""
    rng = random.Random(7)
    writers = []
    for address in (stack.ads, stack.admin, stack.control_page, stack.picker, stack.picker_page):
        host, _, port = address.rpartition(":")
        context = clients["envoy"].context()
        for protocol in ("h2", "http/1.1"):
            context.set_alpn_protocols([protocol])
            for data in (b"", rng.randbytes(300), b"GET / HTTP/1.1\r\n" * 50, b"\0" * 100):
                _, plain = await asyncio.open_connection(host, int(port))
                plain.write(b"\x16\x03\x01" + data)
                writers.append(plain)
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    _, within = await asyncio.open_connection(host, int(port), ssl=context)
                    within.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + data)
                    writers.append(within)
    assert await stack.ask() == 200
    assert len((await stack.status()).clients) == 2
    assert (await stack.picker_state())["ready"]
    for writer in writers:
        writer.transport.abort()


async def test_random_requests_to_the_pages_end_nothing(stack: Stack, clients) -> None:
    """Odd paths, queries and methods get an answer of HTTP."""
    paths = ("/", "/metrics?x=%00", "/debug/explain?pool=%ff&n=-1", "/debug/../etc", "/%2e%2e/x")
    async with aiohttp.ClientSession() as http:
        for address in (stack.control_page, stack.picker_page):
            for path in paths:
                for method in ("GET", "POST", "BREW"):
                    url = f"https://{address}{path}"
                    async with http.request(
                        method, url, ssl=clients["viewer"].context(), data=b"x"
                    ) as answer:
                        assert answer.status in {200, 400, 403, 404, 405}, path


async def test_nothing_of_it_was_an_error(stack: Stack) -> None:
    """No log has a traceback, the fleet is served, and both clients are there."""
    for name in ("control", "picker"):
        text = stack.run.logs.joinpath(f"{name}.log").read_text()
        assert "Traceback" not in text
        assert "handler_failed" not in text

    async def whole() -> bool:
        found = {each.node: each.quarantine for each in (await stack.status()).clients}
        return found == {"e1": "", "p1": ""}

    assert await eventually(whole)
    assert [await stack.ask() for _ in range(10)] == [200] * 10
