"""Probes and looks at replicas that take nothing but TLS."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from ext_proc.feedback.placement.looker import INDEX_METHOD, INDEX_PATH, Looker, LookTarget
from ext_proc.feedback.placement.looker import look_targets as looks
from ext_proc.feedback.placement.pace import NoListing
from ext_proc.feedback.probe import Prober, targets_of
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from support.certificates import Authority
from support.tls_replicas import grpc_replica, http_replica
from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_common.upstream.contexts import ReplicaTls

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.certificates import Pair

KEY = EndpointKey("r1", 1)
ROWS = (Row("m", "1", PlacementState.READY),)


class Lab:
    """A replica's certificate, and who signs it."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.pair = self.authority.sign("replica", "DNS:triton.test")

    def tls(self, **more: str | None) -> ReplicaTls:
        """Return settings with the right authority and name."""
        right = ReplicaTls(ca=str(self.authority.own.certificate), server_name="triton.test")
        return right._replace(**more)

    def wrong(self) -> tuple[ReplicaTls, ...]:
        """Return settings that do not trust the replica."""
        other = str(self.other.own.certificate)
        return self.tls(ca=other), self.tls(server_name="other.test")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Return the certificates of this file's tests."""
    return Lab(tmp_path_factory.mktemp("looks"))


@contextlib.asynccontextmanager
async def over_http(context: ssl.SSLContext) -> AsyncIterator[str]:
    """Serve a Triton that is ready and has the model; yield its address."""

    async def index(_: web.Request) -> web.Response:
        return web.json_response([{"name": "m", "version": "1", "state": "READY"}])

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_post(INDEX_PATH, index)
    app.router.add_get("/v2/models/m/ready", ready)
    async with http_replica(app, context) as address:
        yield address


@contextlib.asynccontextmanager
async def over_grpc(pair: Pair) -> AsyncIterator[str]:
    """Serve the index of a Triton without an HTTP port; yield its address."""

    async def index(_: bytes, __: object) -> bytes:
        model = kserve_pb2.ModelIndex(name="m", version="1", state="READY")
        return kserve_pb2.RepositoryIndexResponse(models=[model]).SerializeToString()

    async with grpc_replica(INDEX_METHOD, index, pair) as address:
        yield address


async def look(http: str | None, rpc: str | None, tls: ReplicaTls) -> Listing | NoListing:
    """Look once."""
    looker = Looker(lambda *_: False)
    async with looker.client:
        return await looker.ask(LookTarget(KEY, http, rpc, 1.0, tls))


async def probe(address: str, tls: ReplicaTls) -> bool:
    """Probe once."""
    prober = Prober(lambda *_: None)
    async with prober.client:
        return await prober.probe(f"https://{address}/v2/models/m/ready", tls) is None


def test_questions_speak_what_the_pool_s_replicas_speak(lab: Lab) -> None:
    """A pool with TLS is asked like others, over TLS."""
    pool = Pool(
        "llm",
        variants=(Variant("stable", 1, probe_path="/ready"),),
        endpoints=(Endpoint(KEY, "stable", http="10.0.0.1:8000", grpc=None),),
        upstream_tls=lab.tls(),
    )
    (probed,), (looked,) = targets_of({"llm": pool}), looks({"llm": pool})
    assert (probed.url, probed.tls) == ("https://10.0.0.1:8000/ready", lab.tls())
    assert looked.tls == lab.tls()


async def test_a_replica_over_http_is_looked_at_and_probed(lab: Lab) -> None:
    """One that is not trusted is not ready, but what is known of its models stays."""
    async with over_http(lab.authority.server(lab.pair, ask_clients=False)) as address:
        found = await look(address, None, lab.tls())
        assert isinstance(found, Listing)
        assert found.rows == ROWS
        assert await probe(address, lab.tls())
        for tls in lab.wrong():
            with capture_logs() as logged:
                assert await look(address, None, tls) is NoListing.FAILED
                assert not await probe(address, tls)
            assert {each["event"] for each in logged} == {"replica_not_trusted"}


async def test_a_replica_of_grpc_alone_is_looked_at(lab: Lab) -> None:
    """With the same checks; only a closed port says that the process is gone."""
    async with over_grpc(lab.pair) as address:
        found = await look(None, address, lab.tls())
        assert isinstance(found, Listing)
        assert found.rows == ROWS
        for tls in lab.wrong():
            with capture_logs() as logged:
                assert await look(None, address, tls) is NoListing.FAILED
            assert [each["event"] for each in logged] == ["replica_not_trusted"]
    assert await look(None, "127.0.0.1:1", lab.tls()) is NoListing.GONE
    assert await look("127.0.0.1:1", None, lab.tls()) is NoListing.GONE


async def test_files_that_are_not_here_say_nothing_of_a_replica(lab: Lab) -> None:
    """It may serve well: its models stay unknown, and it is not barred."""
    tls = lab.tls(ca="/nowhere/ca.crt")
    assert await look("127.0.0.1:1", None, tls) is NoListing.FAILED
    assert await look(None, "127.0.0.1:1", tls) is NoListing.FAILED
    assert await probe("127.0.0.1:1", tls)
