"""Channels whose certificate is renewed."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.identities import Machines
from tidegate_common.health import HealthService
from tidegate_common.tls.channel import RenewedChannel, open_channel
from tidegate_common.tls.files import Identity, TlsFiles
from tidegate_common.tls.roles import HEALTH, CallPolicy, MethodRoles, table
from tidegate_common.tls.rpc import ClientTls, GuardedServer, credentials


@pytest.fixture
async def server(tmp_path):
    """Serve health over TLS to each role; return the authority, the address and the callers."""
    machines, seen = Machines(tmp_path), []
    made = grpc.aio.server()
    policy = CallPolicy(
        MethodRoles(HEALTH), table(["viewer=first.example", "admin=second.example"])
    )
    health = HealthService()
    health.set("", serving=True)
    guarded = GuardedServer(made, policy, lambda *refused: seen.append(refused))
    health_pb2_grpc.add_HealthServicer_to_server(health, guarded)
    port = made.add_secure_port("127.0.0.1:0", credentials(Identity(machines.files), "required"))
    await made.start()
    yield machines, f"127.0.0.1:{port}", seen
    await made.stop(0)


def renew(machines: Machines, name: str) -> TlsFiles:
    """Put a certificate with this DNS name in the client's place."""
    own = TlsFiles(machines.folder / "c.crt", machines.folder / "c.key", machines.files.ca)
    pair = machines.authority.sign("new-client", f"DNS:{name}")
    pair.certificate.replace(own.certificate)
    pair.key.replace(own.key)
    return own


async def test_a_call_that_begins_presents_what_is_in_force_of_the_files(server) -> None:
    """A channel fixes its certificate, so another one takes its place."""
    machines, address, refused = server
    identity = Identity(renew(machines, "unknown.example"))
    async with open_channel(address, ClientTls(identity, "localhost")) as channel:
        assert isinstance(channel, RenewedChannel)
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="have no role"):
            await stub.Check(health_pb2.HealthCheckRequest())
        renew(machines, "first.example")
        identity.look()
        assert identity.look()
        answer = await stub.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    ((_, peer, _),) = refused
    assert peer.dns == ("unknown.example",)


async def test_a_call_under_way_outlives_the_renewal(server) -> None:
    """Its channel is closed when it has ended."""
    machines, address, _ = server
    identity = Identity(renew(machines, "first.example"))
    async with open_channel(address, ClientTls(identity)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        renew(machines, "second.example")
        identity.look()
        assert identity.look()
        await stub.Check(health_pb2.HealthCheckRequest())
        assert not watch.done()


async def test_a_server_with_another_name_is_not_reached(server) -> None:
    """Any certificate of the authority would do else."""
    machines, address, _ = server
    identity = Identity(renew(machines, "first.example"))
    async with open_channel(address, ClientTls(identity, "control.tidegate")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
