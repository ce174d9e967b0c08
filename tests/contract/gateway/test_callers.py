"""Clients that may send changes, themselves and by way of an Envoy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2 as pb

from gateway.callers import MAX_NAMES_BYTES, NAMES_HEADER, client_of
from gateway.ports import serve_grpc, serve_http
from gateway.settings import GatewaySettings
from support.identities import Machines
from tidegate_common.tls.settings import secured

from .conftest import saying

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Lab

OPERATOR = "URI=spiffe://tidegate/operator/ann"
LOAD = "/v2/repository/models/m/load"


@pytest.mark.parametrize(
    ("named", "uris", "dns"),
    [
        ("URI=spiffe://a/b", ("spiffe://a/b",), ()),
        ("By=spiffe://envoy;Hash=ab;URI=spiffe://a;DNS=x.y;DNS=z", ("spiffe://a",), ("x.y", "z")),
        ('Subject="CN=a, URI=spiffe://b;x=\\"";URI=spiffe://a', ("spiffe://a",), ()),
        ('URI="spiffe://a;b,c"', ("spiffe://a;b,c",), ()),
    ],
)
def test_an_envoys_client_is_read_from_its_header(named, uris, dns):
    """One element; what is quoted is no part of the form."""
    assert client_of(named) == (uris, dns)


@pytest.mark.parametrize(
    "named",
    [
        None,
        "",
        "Hash=ab",
        "URI=",
        "nothing",
        "URI=spiffe://a,URI=spiffe://b",
        'URI="spiffe://a',
        '"URI=spiffe://a"',
        "URI=spiffe://a;;URI=spiffe://b",
        "URI=" + "a" * MAX_NAMES_BYTES,
    ],
)
def test_a_header_that_names_not_exactly_one_client_names_none(named):
    """Such as one to which another proxy has added its client."""
    assert client_of(named) is None


CASES = [
    ("operator", False, None, True),
    ("operator", True, None, True),
    ("viewer", True, OPERATOR, False),
    ("envoy", False, OPERATOR, False),
    ("envoy", True, OPERATOR, True),
    ("envoy", True, "URI=spiffe://tidegate/admin", True),
    ("envoy", True, "URI=spiffe://tidegate/viewer", False),
    ("envoy", True, "URI=spiffe://tidegate/envoy", False),
    ("envoy", True, "DNS=operator", False),
    ("envoy", True, None, False),
]


@pytest.mark.parametrize(("role", "by_envoy", "named", "good"), CASES)
async def test_changes_are_taken_from_operators_also_by_an_envoy(
    lab: Lab, tmp_path: Path, role: str, by_envoy: bool, named: str | None, good: bool
):
    """Over HTTP and gRPC; only where it is asked for, and only for a client that is named."""
    machines = Machines(tmp_path)
    made = secured(GatewaySettings.model_validate({**machines.options, "id": "g"}))
    refused: list[Any] = []
    await lab.replicas(saying(raw=b""))
    given: dict[str, Any] = {"admin": True, "option": "admin", "by_envoy": by_envoy}
    told = (lambda *each: refused.append(each),)
    async with (
        serve_http(lab.calls, "127.0.0.1:0", made, *told, **given) as http,
        serve_grpc(lab.calls, "127.0.0.1:0", made, *told, **given) as rpc,
        aiohttp.ClientSession() as session,
    ):
        client = machines.client(role)
        headers = {} if named is None else {NAMES_HEADER: named}
        url = f"https://localhost:{http.rpartition(':')[2]}{LOAD}"
        async with session.post(url, ssl=client.context(), headers=headers) as answer:
            assert answer.status == (200 if good else 403)
        async with grpc.aio.secure_channel(
            f"localhost:{rpc.rpartition(':')[2]}", client.channel_credentials()
        ) as channel:
            method = "/inference.GRPCInferenceService/RepositoryIndex"
            call = channel.unary_unary(method)
            asked = pb.RepositoryIndexRequest().SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call(asked, metadata=tuple(headers.items()), timeout=10)
            # The replica speaks no gRPC.
            wanted = "UNAVAILABLE" if good else "PERMISSION_DENIED"
            assert error.value.code().name == wanted
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            own = health_pb2.HealthCheckRequest(service="tidegate.gateway").SerializeToString()
            if role == "envoy" and by_envoy:
                await health(own, timeout=10)
    assert bool(refused) == (not good)
