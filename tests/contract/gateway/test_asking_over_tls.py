"""Replicas that take nothing but TLS, asked by the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool
from gateway import asking
from gateway.asking import Asker
from gateway.targets import AskedReplica, replicas_of
from support.certificates import Authority, Pair
from support.tls_replicas import grpc_replica, http_replica
from tidegate_common.upstream.contexts import ReplicaTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.merge.answers import Said

METHOD = "/inference.GRPCInferenceService/ServerLive"
WAIT_S = 20.0


class Lab:
    """A replica's certificate, and who signs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.pair = self.authority.sign("replica", "DNS:triton.test")
        own = self.authority.sign("own", "DNS:gateway.test")
        self.client = {"certificate": str(own.certificate), "key": str(own.key)}

    def tls(self, **more: str | None) -> ReplicaTls:
        """Return settings with the right authority and name."""
        right = ReplicaTls(ca=str(self.authority.own.certificate), server_name="triton.test")
        return right._replace(**more)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Return the certificates of this file's tests."""
    return Lab(tmp_path_factory.mktemp("asking"))


@contextlib.asynccontextmanager
async def over_http(context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Serve a replica over HTTP; yield its address."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"live")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with http_replica(app, context) as address:
        yield address


@contextlib.asynccontextmanager
async def over_grpc(pair: Pair | None, clients: bytes | None = None) -> AsyncIterator[str]:
    """Serve a replica over gRPC, in the clear without a certificate; yield its address."""

    async def answer(_: bytes, __: object) -> bytes:
        return b"live"

    async with grpc_replica(METHOD, answer, pair, clients) as address:
        yield address


def target(number: int, address: str, tls: ReplicaTls | None) -> AskedReplica:
    """Return a replica to ask."""
    return AskedReplica(EndpointKey(f"r{number}", 1), address, frozenset(), tls)


async def ask(asker: Asker, kind: str, *targets: AskedReplica) -> list[Said]:
    """Ask each of these once."""
    if kind == "http":
        return await asker.over_http(targets, "GET", "/v2/health/live", timeout_s=WAIT_S)
    return await asker.over_grpc(targets, METHOD, b"", timeout_s=WAIT_S)


@contextlib.asynccontextmanager
async def serving(kind: str, lab: Lab, *, asks: bool = False) -> AsyncIterator[str]:
    """Serve a replica that takes nothing but TLS."""
    if kind == "http":
        async with over_http(lab.authority.server(lab.pair, ask_clients=asks)) as address:
            yield address
    else:
        clients = lab.authority.own.certificate.read_bytes() if asks else None
        async with over_grpc(lab.pair, clients) as address:
            yield address


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_the_pool_says_what_is_trusted(lab: Lab, kind: str) -> None:
    """A replica of another authority or name is unreachable, and the log says why."""
    settings = [
        lab.tls(),
        lab.tls(ca=None, server_name=None),
        lab.tls(ca=str(lab.other.own.certificate)),
        lab.tls(server_name="other.test"),
    ]
    async with serving(kind, lab) as address, Asker() as asker:
        targets = [target(number, address, tls) for number, tls in enumerate(settings)]
        with capture_logs() as logged:
            said = await ask(asker, kind, *targets)
    assert [each.good for each in said] == [True, True, False, False]
    assert [each.fault for each in said[2:]] == ["unreachable", "unreachable"]
    events = [each for each in logged if each["event"] == "replica_not_trusted"]
    assert [each["address"] for each in events] == [address], "once for an address"
    assert "certificate verify failed" in events[0]["reason"]


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_a_replica_that_demands_a_certificate_gets_the_pool_s(lab: Lab, kind: str) -> None:
    """Without one it takes no question."""
    async with serving(kind, lab, asks=True) as address, Asker() as asker:
        said = await ask(
            asker, kind, target(1, address, lab.tls(**lab.client)), target(2, address, lab.tls())
        )
    assert [each.good for each in said] == [True, False]
    assert said[1].fault == "unreachable"


@pytest.mark.parametrize("kind", ["http", "grpc"])
async def test_files_that_are_not_here_affect_their_pool_only(
    lab: Lab, tmp_path: Path, kind: str
) -> None:
    """Its replicas are unreachable until the files come; nothing is sent to them in the clear."""
    ca = tmp_path / "ca.crt"
    plain = over_http(None) if kind == "http" else over_grpc(None)
    async with serving(kind, lab) as address, plain as other, Asker() as asker:
        targets = (target(1, address, lab.tls(ca=str(ca))), target(2, other, None))
        with capture_logs() as logged:
            said = await ask(asker, kind, *targets)
        assert [each.fault for each in said] == ["unreachable", None]
        (event,) = logged
        assert event["event"] == "replica_files_not_taken"
        assert str(ca) in event["reason"]
        shutil.copy(lab.authority.own.certificate, ca)
        async with asyncio.timeout(60):
            while not all(  # noqa: ASYNC110 - nothing tells of files
                each.good for each in await ask(asker, kind, *targets)
            ):
                await asyncio.sleep(0.05)


async def test_channels_are_closed_with_their_tunnels(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that went, or whose TLS changed, leaves nothing; nor does the bound."""
    monkeypatch.setattr(asking, "MAX_CHANNELS", 2)
    three = [lab.tls(), lab.tls(server_name=None), lab.tls(ca=None)]
    async with over_grpc(lab.pair) as address, Asker() as asker:
        for tls in three:
            (said,) = await ask(asker, "grpc", target(1, address, tls))
            assert said.good
        assert asker.channels == 2
        asker.keep({(address, three[2])})
        assert asker.channels == 1
        asker.keep({(address, None)})
        assert asker.channels == 0


def test_a_replica_is_asked_as_its_pool_says(lab: Lab) -> None:
    """TLS belongs to the pool."""
    one, two = (
        Endpoint(EndpointKey(name, 1), "stable", f"10.0.0.{name[1]}:80", None)
        for name in ("r1", "r2")
    )
    pools = (Pool("a", endpoints=(one,), upstream_tls=lab.tls()), Pool("b", endpoints=(two,)))
    asked = replicas_of(pools, "http").asked
    assert [each.tls for each in asked] == [lab.tls(), None]
