"""The client of a request, as a real Envoy tells it to the picker."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

import grpc
import pytest
from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ext_proc.server.wire import METHOD, SERVICE, event_of
from support.certificates import Authority
from support.sockets import head
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until
from xds_server.fleet.model.fleet import Fleet
from xds_server.snapshots.static import static_bootstrap

MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
LONG = f"x-long: {'x' * 5000}"
"""With it the picker is told the length of the headers too."""


class Heads:
    """A picker that keeps who sent requests, and picks nothing."""

    def __init__(self) -> None:
        self.clients = []
        self.lengths = []

    async def process(self, messages, _):
        """Serve one exchange."""
        async for message in messages:
            made = event_of(message)
            self.clients.append(made.client)
            self.lengths.append(made.header_bytes)
            yield pb.ProcessingResponse(request_headers=pb.HeadersResponse())

    async def serve(self, address, exit_):
        """Serve until the stack ends."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        server = grpc.aio.server()
        handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(address)
        await server.start()
        exit_.push_async_callback(server.stop, 0)


def fleet(picker, replica, listener):
    """Return one pool behind a listener."""
    pool = {
        "name": "llm",
        "default": True,
        "match": {"models": ["toy-llm"]},
        "endpoints": [{"id": "a", "http": replica}],
    }
    pickers = {"addresses": [picker], "timeout": "10s"}
    return Fleet.model_validate({"listener": listener, "pickers": pickers, "pools": [pool]})


async def send(address, *lines, first=b"", tls=None):
    """Send one request and wait for its answer, whatever it is."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        writer.write(first + head("/v2/models/toy-llm/infer", "content-length: 2", *lines) + b"{}")
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    finally:
        writer.close()


@pytest.mark.timeout(120)
async def test_envoy_names_the_client(tmp_path):
    """By its certificate, its address, and what PROXY headers and trusted proxies tell of it."""
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("edge", "DNS:edge.test", "IP:127.0.0.1")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    asking = {**tls, "client_ca": str(authority.own.certificate)}
    heads = Heads()
    async with AsyncExitStack() as exit_:
        ports = exit_.enter_context(HeldPorts())
        picker, replica, plain, certified, proxied, trusting = (ports.address() for _ in range(6))
        await heads.serve(picker, exit_)
        further = [
            {"name": "certified", "address": certified, "tls": asking},
            {"name": "proxied", "address": proxied, "proxy_protocol": True},
        ]
        first = fleet(picker, replica, {"address": plain, "further": further})
        hops = {"@type": MANAGER, "xff_num_trusted_hops": 1}
        second = fleet(picker, replica, {"address": trusting, "patch": [hops]})
        boot, other = (
            bootstrap_pb2.Bootstrap.FromString(static_bootstrap(each)) for each in (first, second)
        )
        for each in other.static_resources.listeners:
            each.name = f"trusting/{each.name}"
            boot.static_resources.listeners.add().CopyFrom(each)
        for cluster in boot.static_resources.clusters:
            cluster.ClearField("health_checks")  # the picker below answers none
        file = tmp_path / "envoy.pb"
        file.write_bytes(boot.SerializeToString())
        supervisor = Supervisor(tmp_path)
        exit_.push_async_callback(supervisor.stop)
        command = envoy_command(envoy_binary(), file, 1)
        await supervisor.start("envoy", command, envoy_environment())

        async def named() -> str | None:
            try:
                await send(plain)
            except OSError as error:
                return str(error)
            return None if heads.clients else "no pick"

        await wait_until(named, "Envoy", timeout_s=60, supervisors=(supervisor,))

        def as_client(name, *names) -> ssl.SSLContext:
            made, own = authority.client(), authority.sign(name, *names)
            made.load_cert_chain(own.certificate, own.key)
            return made

        forwarded = "x-forwarded-for: 198.51.100.1, 203.0.113.7"
        proxy6 = b"PROXY TCP6 2001:db8:0:7::9 ::1 4000 80\r\n"
        for client, address, lines, first_bytes, context in (
            ("127.0.0.1", plain, (), b"", None),
            ("127.0.0.1", plain, (forwarded, LONG), b"", None),
            ("203.0.113.7", trusting, (forwarded,), b"", None),
            ("127.0.0.1", trusting, (), b"", None),
            ("198.51.100.9", proxied, (), b"PROXY TCP4 198.51.100.9 127.0.0.1 4 80\r\n", None),
            ("2001:db8:0:7::/64", proxied, (LONG,), proxy6, None),
            ("spiffe://test/a", certified, (), b"", as_client("a", "URI:spiffe://test/a")),
            ("CN=b", certified, (LONG,), b"", as_client("b", "DNS:b.test")),
        ):
            heads.clients.clear()
            heads.lengths.clear()
            await send(address, *lines, first=first_bytes, tls=context)
            assert heads.clients == [client]
            assert [length is not None for length in heads.lengths] == [LONG in lines]
