"""Who may call what on a picker's port and page: each role, over both transports."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.app import Picker
from ext_proc.feedback import wire as logs_wire
from ext_proc.server import port as port_module
from ext_proc.server.port import LOGS, READINGS
from ext_proc.settings import PickerSettings
from ext_proc.telemetry import push
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
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc
from tidegate_common.tls.files import LOOK_S
from tidegate_common.tls.roles import TRUST_DOMAIN

WAIT_S = 20.0
OPEN_S = 1.0
"""Seconds after which a stream that has not ended is open, where nothing but that is expected."""
READERS = {"viewer", "operator", "admin"}


class Served(NamedTuple):
    """A picker with TLS, in this process."""

    port: str
    page: str
    health: str
    running: Picker


@contextlib.asynccontextmanager
async def picker(machines: Machines, transport: str, **more: Any):
    """Run a picker with the identity of these machines."""
    with HeldPorts() as ports:
        listen, metrics, health, nowhere = (ports.address() for _ in range(4))
        settings = PickerSettings(
            listen=listen,
            metrics=metrics,
            xds=nowhere,
            transport=transport,
            health_port=int(health.rpartition(":")[2]),
            **machines.options,
            **more,
        )
        async with Picker(settings) as started:
            assert started._secured is not None
            following = asyncio.create_task(started._secured.identity.follow())
            try:
                yield Served(listen, metrics, health, started)
            finally:
                following.cancel()


async def stream(stub: Any, method: str, *, taken: bool) -> str:
    """Open a stream and return the verdict; one that stays open is taken.

    Nothing is written: gRPC's client reports a write that meets the refusal as a fault of its own.

    Args:
        stub: The stub.
        method: Its method.
        taken: Whether it is expected to stay open; if not, its end may take ``WAIT_S``.
    """
    call = getattr(stub, method)()
    ended = asyncio.ensure_future(call.code())
    with contextlib.suppress(grpc.aio.AioRpcError):  # its code is the verdict
        await asyncio.wait_for(call.wait_for_connection(), WAIT_S)
    done, _ = await asyncio.wait({ended}, timeout=OPEN_S if taken else WAIT_S)
    verdicts = {grpc.StatusCode.PERMISSION_DENIED: REFUSED, grpc.StatusCode.UNAVAILABLE: CUT}
    return verdicts[done.pop().result()] if done else TAKEN


async def exchange(at: Served, who: Presented, *, taken: bool) -> str:
    """Open an exchange as an Envoy does."""
    async with who.channel(at.port) as channel:
        stub = external_processor_pb2_grpc.ExternalProcessorStub(channel)
        return await stream(stub, "Process", taken=taken)


async def log(at: Served, who: Presented, *, taken: bool) -> str:
    """Open a stream of log entries as an Envoy does."""
    async with who.channel(at.port) as channel:
        call: Any = channel.stream_unary(LOGS)
        made = type("Stub", (), {"StreamAccessLogs": staticmethod(call)})
        return await stream(made, "StreamAccessLogs", taken=taken)


async def reading(at: Served, who: Presented, *, taken: bool) -> str:
    """Report readings as a reporter does."""
    async with who.channel(at.port) as channel:
        stub = telemetry_pb2_grpc.TelemetryStub(channel)
        return await stream(stub, "Report", taken=taken)


async def health(at: Served, who: Presented, **_: bool) -> str:
    """Ask for the health of the process."""
    async with who.channel(at.port) as channel:
        request = health_pb2.HealthCheckRequest(service="liveness")
        try:
            await health_pb2_grpc.HealthStub(channel).Check(request, timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return {
                grpc.StatusCode.PERMISSION_DENIED: REFUSED,
                grpc.StatusCode.UNAVAILABLE: CUT,
            }[error.code()]
        return TAKEN


def page(path: str):
    """Return a function that reads a page."""

    async def read(at: Served, who: Presented, **_: bool) -> str:
        return await page_verdict(f"https://{at.page}{path}", who)

    return read


CALLS = {
    "exchange": (exchange, {"envoy"}),
    "log": (log, {"envoy"}),
    "reading": (reading, {"reporter"}),
    "health": (health, set(ROLES)),
    "/metrics": (page("/metrics"), READERS),
    "/debug/state": (page("/debug/state"), READERS),
    "/debug/explain": (page("/debug/explain"), READERS),
    "/healthz": (page("/healthz"), set(ROLES)),
}
TRANSPORTS = ("grpc", "nghttp2")


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Machines:
    """Return the authority that the pickers trust."""
    return Machines(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def clients(machines: Machines) -> dict[str, Presented]:
    """Return a client of each role, and one whose name has no role."""
    return clients_of(machines)


@pytest.fixture(scope="module")
def invalid(machines: Machines, tmp_path_factory) -> dict[str, dict[str, Presented]]:
    """Return clients whose certificates are not valid, by kind and role."""
    others = Machines(tmp_path_factory.mktemp("theirs"), "other")
    return {kind: machines.invalid(others, kind, ROLES) for kind in KINDS}


@pytest.fixture(scope="module", params=TRANSPORTS)
async def served(machines: Machines, request: pytest.FixtureRequest):
    """Run a picker over each transport."""
    async with picker(machines, request.param) as started:
        yield started


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_taken_from_its_roles_only(served: Served, clients, call: str) -> None:
    """Each call of a picker, by each role."""
    make, allowed = CALLS[call]
    found = await asyncio.gather(
        *(make(served, who, taken=role in allowed) for role, who in clients.items())
    )
    wanted = {role: TAKEN if role in allowed else REFUSED for role in clients}
    assert dict(zip(clients, found, strict=True)) == wanted


PORTS = ("exchange", "log", "reading", "health", "/metrics", "/debug/state")
"""A call of each service and page."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", PORTS)
async def test_a_certificate_that_is_not_valid_reaches_nothing(
    served: Served, invalid: dict[str, dict[str, Presented]], call: str, kind: str
) -> None:
    """Whatever role it names: the connection ends in the handshake."""
    make, _ = CALLS[call]
    verdicts = await asyncio.gather(
        *(make(served, who, taken=False) for who in invalid[kind].values())
    )
    assert dict(zip(invalid[kind], verdicts, strict=True)) == dict.fromkeys(ROLES, CUT)


async def test_health_alone_is_plain_on_its_own_port(served: Served) -> None:
    """A kubelet has no certificate; it learns nothing else there."""
    async with aiohttp.ClientSession() as http:
        async with http.get(f"http://{served.health}/healthz") as answer:
            assert (answer.status, await answer.text()) == (503, "not ready\n")
        async with http.get(f"http://{served.health}/debug/state") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_reporter_speaks_for_its_replica_only(machines: Machines, transport: str) -> None:
    """Who could speak for others could draw all requests to itself."""

    async def reported(at: Served, who: Presented, replica: str) -> grpc.StatusCode:
        async with who.channel(at.port) as channel:
            call = telemetry_pb2_grpc.TelemetryStub(channel).Report()
            try:
                async with asyncio.timeout(WAIT_S):
                    await call.write(telemetry_pb2.EndpointReport(endpoint=replica))
                    await call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the status says it
            return await call.code()

    speaks = (f"{TRUST_DOMAIN}/reporter=r7",)
    async with picker(machines, transport, speaks=speaks) as at:
        one, bare = machines.client("reporter", "r1"), machines.bare("reporter")
        verdicts = [
            await reported(at, who, replica)
            for who, replica in ((one, "r1"), (one, "r2"), (bare, "r7"), (bare, "r1"))
        ]
    ok, denied = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
    assert verdicts == [ok, denied, ok, denied]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_is_known_when_a_reporters_certificate_ends(
    machines: Machines, transport: str
) -> None:
    """While it reports; only the picker sees it."""
    async with picker(machines, transport) as at:
        known = at.running._telemetry.push.certificates

        async def ends() -> bool:
            return bool(known) and known["r1"].ends > time.time()

        async def forgotten() -> bool:
            return not known

        async with machines.client("reporter", "r1").channel(at.port) as channel:
            call = telemetry_pb2_grpc.TelemetryStub(channel).Report()
            await call.write(telemetry_pb2.EndpointReport(endpoint="r1"))
            assert await eventually(ends)
        assert await eventually(forgotten)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_gateways_without_certificates_may_be_envoys_only(
    machines: Machines, transport: str
) -> None:
    """With ``--tls-client optional`` they are served; reporters and readers are not."""
    async with picker(machines, transport, tls_client="optional") as at:
        taken = {"exchange", "log", "health"}
        verdicts = {
            name: await make(at, machines.nameless, taken=name in taken)
            for name, (make, _) in CALLS.items()
        }
    assert verdicts == {name: TAKEN if name in taken else REFUSED for name in CALLS}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_rotated_certificate_cuts_no_stream(tmp_path, transport: str) -> None:
    """New connections are verified by the new authority, while an exchange goes on."""
    old, new = Machines(tmp_path, "old"), Machines(tmp_path, "new")
    before, after = ({role: each.client(role) for role in ROLES} for each in (old, new))
    async with picker(old, transport) as at, before["envoy"].channel(at.port) as channel:
        call = external_processor_pb2_grpc.ExternalProcessorStub(channel).Process()
        await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders()))
        first = await call.read()
        old.renew_server(signer=new)
        async with asyncio.timeout(WAIT_S):
            while await exchange(at, after["envoy"], taken=True) != TAKEN:  # noqa: ASYNC110 - files raise no event
                await asyncio.sleep(LOOK_S / 4)
        assert first is not grpc.aio.EOF
        assert not call.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        of = [(call, role) for call in PORTS for role in ROLES]
        wanted = {(call, role) for call, role in of if role in CALLS[call][1]}
        new_ones = await asyncio.gather(
            *(CALLS[c][0](at, after[role], taken=(c, role) in wanted) for c, role in of)
        )
        taken = {pair for pair, verdict in zip(of, new_ones, strict=True) if verdict == TAKEN}
        assert taken == wanted
        old_ones = await asyncio.gather(
            *(CALLS[call][0](at, before[role], taken=False) for call, role in of)
        )
        assert set(old_ones) == {CUT}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_exchange_outlives_the_maximum_age_and_a_log_stream_does_not(
    tmp_path, transport: str
) -> None:
    """A request is never cut for it; endless streams begin again with a fresh certificate."""
    own = Machines(tmp_path, "own")
    envoy = own.client("envoy")
    async with picker(own, transport, tls_max_age=1) as at, envoy.channel(at.port) as channel:
        call = external_processor_pb2_grpc.ExternalProcessorStub(channel).Process()
        await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders()))
        await call.read()
        entries = channel.stream_unary(LOGS)()
        await entries.write(b"")
        async with asyncio.timeout(WAIT_S):
            assert await entries.code() is not grpc.StatusCode.OK
        assert not call.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert await exchange(at, envoy, taken=True) == TAKEN


def test_the_methods_are_those_that_are_served() -> None:
    """The table of roles names methods of modules that the server's layer may not import."""
    assert f"/{logs_wire.SERVICE}/{logs_wire.METHOD}" == LOGS
    assert f"/{push.SERVICE}/Report" == READINGS
    assert port_module.ACCESS.methods.keys() >= port_module.ENDLESS
