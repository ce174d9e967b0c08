"""Questions for readiness: over HTTP and gRPC, in the clear and over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from support.certificates import Authority
from support.fleets import pool
from xds_server.applications.discovery.readiness import (
    AT_ONCE,
    MAX_SAID,
    Question,
    Readiness,
    question_of,
)
from xds_server.fleet.model.fields import UpstreamTls
from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

PATH = "/v2/models/m/ready"
READY, NOT_READY = b"\x08\x01", b""


def asked(
    http: str | None = None, rpc: str | None = None, tls: dict[str, Any] | None = None, **more: Any
) -> Question:
    """Return a question."""
    made = None if tls is None else UpstreamTls.model_validate(tls)
    return Question(http, rpc, PATH, "m", "1", made, 20.0)._replace(**more)


@asynccontextmanager
async def web_server(answers: dict[str, int], tls: Any = None) -> AsyncIterator[str]:
    """Answer paths with statuses, others with 404."""

    async def answer(request: web.Request) -> web.Response:
        status = answers.get(request.path, 404)
        headers = {"location": "/elsewhere"} if status == 302 else {}
        return web.Response(status=status, headers=headers)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Methods(grpc.GenericRpcHandler):
    """Answers by method: bytes, or a status."""

    def __init__(self, answers: dict[str, bytes | grpc.StatusCode]) -> None:
        self.answers = answers
        self.seen: list[tuple[str, bytes]] = []

    def service(self, details: Any) -> Any:
        """Return the handler of a method."""
        method = details.method.rpartition("/")[2]

        async def answer(message: bytes, context: Any) -> bytes:
            self.seen.append((method, message))
            said = self.answers.get(method, grpc.StatusCode.UNIMPLEMENTED)
            if isinstance(said, bytes):
                return said
            await context.abort(said, "no")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(answer)


@asynccontextmanager
async def rpc_server(methods: Methods, tls: Any = None) -> AsyncIterator[str]:
    """Serve these methods."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((methods,))
    port = (
        server.add_insecure_port("127.0.0.1:0")
        if tls is None
        else server.add_secure_port("127.0.0.1:0", tls)
    )
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def test_what_is_asked_is_the_model_of_the_replica_s_variant() -> None:
    """With the pool's files and its time."""
    spec = PoolSpec.model_validate(
        pool(upstream_tls={"ca": "/ca.crt"}, health={"timeout": "3s", "interval": "5s"})
    )
    replica = EndpointSpec.model_validate({"id": "a", "http": "10.0.0.1:80", "variant": "canary"})
    question = question_of(spec, replica)
    assert question.path == "/v2/models/llm-model/versions/2/ready"
    assert (question.model, question.version, question.timeout_s) == ("llm-model", "2", 3.0)
    assert (question.http, question.grpc) == ("10.0.0.1:80", None)
    assert question.tls == UpstreamTls(ca="/ca.crt")


@pytest.mark.parametrize(
    ("answers", "ready"),
    [
        ({PATH: 200}, True),
        ({PATH: 400}, False),
        ({PATH: 302, "/elsewhere": 200}, False),
        ({"/health": 200}, True),
        ({"/health/ready": 200}, True),
        ({"/health": 503, "/health/ready": 200}, False),
        ({}, False),
    ],
)
async def test_an_http_replica_says_so_by_its_status(answers: dict[str, int], ready: bool) -> None:
    """An engine without Triton's API is asked by its own path, and redirects are not followed."""
    async with web_server(answers) as address, Readiness() as is_ready:
        assert await is_ready(asked(address)) is ready


async def test_an_operator_s_path_is_asked_alone() -> None:
    """One that is not Triton's says what is meant."""
    async with web_server({"/health": 200}) as address, Readiness() as is_ready:
        assert not await is_ready(asked(address, path="/alive"))


@pytest.mark.parametrize(
    ("answers", "ready", "methods"),
    [
        ({"ModelReady": READY}, True, ["ModelReady"]),
        ({"ModelReady": NOT_READY, "Check": READY}, False, ["ModelReady"]),
        ({"ModelReady": grpc.StatusCode.NOT_FOUND, "Check": READY}, False, ["ModelReady"]),
        ({"Check": READY}, True, ["ModelReady", "Check"]),
        ({"Check": b"\x08\x02"}, False, ["ModelReady", "Check"]),
        ({}, False, ["ModelReady", "Check"]),
    ],
)
async def test_a_replica_of_grpc_alone_is_asked_for_its_model(
    answers: dict[str, bytes | grpc.StatusCode], ready: bool, methods: list[str]
) -> None:
    """With name and version; where that is not implemented, for its health."""
    served = Methods(answers)
    async with rpc_server(served) as address, Readiness() as is_ready:
        assert await is_ready(asked(rpc=address)) is ready
    assert [method for method, _ in served.seen] == methods
    assert served.seen[0][1] == b"\x0a\x01m\x12\x011"


async def test_a_pool_without_a_model_asks_for_health() -> None:
    """And a long name is encoded as protobuf wants it."""
    served = Methods({"Check": READY, "ModelReady": READY})
    async with rpc_server(served) as address, Readiness() as is_ready:
        assert await is_ready(asked(rpc=address, model=""))
        assert await is_ready(asked(rpc=address, model="x" * 300, version=""))
    assert served.seen == [("Check", b""), ("ModelReady", b"\x0a\xac\x02" + b"x" * 300)]


@pytest.mark.parametrize(
    ("tls", "ready"),
    [
        ({}, True),
        ({"ca": "ca.crt"}, True),
        ({"ca": "ca.crt", "server_name": "triton.test"}, True),
        ({"ca": "ca.crt", "server_name": "other.test"}, False),
        ({"ca": "other.crt"}, False),
        ({"server_name": "other.test"}, True),
    ],
)
async def test_tls_checks_what_the_pool_asks_for(
    tmp_path: Path, tls: dict[str, str], ready: bool
) -> None:
    """Over HTTP and gRPC alike: nothing without `ca`, the name only with `server_name`."""
    authority = Authority(tmp_path, "ca")
    Authority(tmp_path, "other")
    pair = authority.sign("triton", "DNS:triton.test")
    files = {k: str(tmp_path / v) if k == "ca" else v for k, v in tls.items()}
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())]
    )
    context = authority.server(pair, ask_clients=False)
    async with (
        web_server({PATH: 200}, context) as http,
        rpc_server(Methods({"ModelReady": READY}), credentials) as rpc,
        Readiness() as is_ready,
    ):
        assert await is_ready(asked(http, tls=files)) is ready
        assert await is_ready(asked(rpc=rpc, tls=files, timeout_s=20.0 if ready else 3.0)) is ready
        if ready:
            assert not await is_ready(asked(rpc, tls=files)), "HTTP to a gRPC port"


async def test_replicas_that_ask_for_a_certificate_get_the_pool_s(tmp_path: Path) -> None:
    """Without one they refuse the question."""
    authority = Authority(tmp_path, "ca")
    pair, own = authority.sign("triton", "DNS:triton.test"), authority.sign("envoy", "DNS:e.test")
    context = authority.server(pair, ask_clients=True)
    ca = {"ca": str(tmp_path / "ca.crt")}
    mine = {"certificate": str(own.certificate), "key": str(own.key)}
    async with web_server({PATH: 200}, context) as address, Readiness() as is_ready:
        assert await is_ready(asked(address, tls={**ca, **mine}))
        assert not await is_ready(asked(address, tls=ca))


async def test_files_that_are_not_here_ask_nothing() -> None:
    """They are Envoys' files; what follows is told once per reason, within a bound."""
    async with web_server({PATH: 503}) as address, Readiness() as is_ready:
        with capture_logs() as logged:
            for number in (0, 0, *range(MAX_SAID + 9)):
                assert await is_ready(asked(address, tls={"ca": f"/nowhere/{number}.crt"}))
    unasked = [each for each in logged if each["event"] == "readiness_not_asked"]
    assert len(unasked) == MAX_SAID
    assert "No such file" in unasked[0]["files"]


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("tls", [None, {}])
async def test_what_does_not_answer_is_not_ready(kind: str, tls: dict[str, str] | None) -> None:
    """Neither a port that is closed nor one that says nothing; each costs its time at most."""
    closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    dead = f"127.0.0.1:{closed.sockets[0].getsockname()[1]}"
    closed.close()
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, w: held.append(w), "127.0.0.1", 0)
    mute = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with Readiness() as is_ready:
        for address in (dead, mute):
            http, rpc = (address, None) if kind == "http" else (None, address)
            async with asyncio.timeout(60):
                assert not await is_ready(asked(http, rpc, tls=tls, timeout_s=0.3))
    for writer in held:
        writer.close()
    silent.close()


async def test_questions_at_one_time_are_bounded() -> None:
    """Further ones wait for their turn, without a limit of time."""
    open_, most, gate = 0, 0, asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        if open_ == AT_ONCE:
            gate.set()
        await gate.wait()
        open_ -= 1
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    async with Readiness() as is_ready:
        found = await asyncio.gather(*(is_ready(asked(address)) for _ in range(3 * AT_ONCE)))
    await runner.cleanup()
    assert all(found)
    assert most == AT_ONCE


async def test_it_asks_only_while_it_is_open() -> None:
    """A mistake in the order of a start is said."""
    with pytest.raises(RuntimeError, match="enter the client"):
        await Readiness()(asked("127.0.0.1:1"))
    never = Readiness()
    await never.__aexit__(None, None, None)
