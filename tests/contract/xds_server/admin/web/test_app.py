"""The admin API over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from support.operators import calls
from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.access.tokens import Tokens, line_of, new_token
from xds_server.admin.access.trail import CHANGES_NAME
from xds_server.admin.service import AdminService
from xds_server.admin.web import app as module
from xds_server.admin.web.app import WebFace
from xds_server.admin.web.openapi import document, methods, verb_of

POST = {"Content-Type": "application/json"}


class FakeService(AdminService):
    """Answers each call with what it was asked, or with an error."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: tuple[grpc.StatusCode, str] | None = None
        for name in (path.rpartition("/")[2] for path in methods()):
            setattr(self, name, self._answer(name))

    def _answer(self, name: str):
        method = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name[name]

        async def answer(request: Any, context: Any) -> Any:
            self.asked.append(request)
            if self.error is not None:
                await context.abort(*self.error)
            return getattr(admin_pb2, method.output_type.name)()

        return answer


@dataclass
class Face:
    """A served face and its client."""

    url: str
    http: aiohttp.ClientSession
    service: FakeService = field(default_factory=FakeService)

    async def call(self, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Make a call; return status and JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        verb = "GET" if body is None else "POST"
        more = {"headers": POST, **more} if body is not None else more
        async with self.http.request(verb, f"{self.url}{path}", data=body, **more) as answer:
            assert answer.content_type == "application/json"
            assert "Access-Control-Allow-Origin" not in answer.headers
            return answer.status, await answer.json()


@contextlib.asynccontextmanager
async def faced(address: str = "127.0.0.1:0", **more: Any):
    """Serve a face at an address."""
    service = FakeService()
    face = WebFace(service, calls(**more))
    async with face.serve(address) as bound:
        path = bound.removeprefix("unix:")
        connector = None if path == bound else aiohttp.UnixConnector(path)
        host = bound if path == bound else "localhost"
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Face(f"http://{host}", http, service)


@pytest.fixture
async def face(tmp_path: Path):
    """Return a face at a port without tokens."""
    async with faced(folder=tmp_path) as made:
        yield made


async def test_each_call_is_served_as_the_document_says(face: Face) -> None:
    """By its method alone."""
    for path, rpc in methods().items():
        body = {} if verb_of(rpc) == "POST" else None
        assert (await face.call(path, body))[0] == 200
        status, error = await face.call(path, None if body == {} else {})
        assert (status, error["code"]) == (405, "UNIMPLEMENTED")
    assert await face.call("/openapi.json") == (200, document())
    assert (await face.call("/v1/Nothing"))[1]["code"] == "NOT_FOUND"
    assert (await face.call("/"))[0] == 404


async def test_a_body_is_the_message(face: Face) -> None:
    """With the names of the protos; the author is the caller."""
    body = {"pool": "llm", "weights": {"canary": 20}, "options": {"author": "x", "wait": True}}
    status, answer = await face.call("/v1/SetWeights", body)
    assert status == 200
    assert answer["revision"] == "0"
    assert face.service.asked == [
        admin_pb2.SetWeightsRequest(
            pool="llm",
            weights={"canary": 20},
            options=admin_pb2.ChangeOptions(author="anonymous (x)", wait=True),
        )
    ]


async def test_a_query_is_the_message(face: Face) -> None:
    """Of calls that read."""
    assert (await face.call("/v1/GetReplicas?pool=llm"))[0] == 200
    assert (await face.call("/v1/ListRevisions?limit=7"))[0] == 200
    assert face.service.asked[0].pool == "llm"
    assert face.service.asked[1].limit == 7
    for wrong in ("limit=x", "limit=-1", "nothing=1", "limit=1&limit=2"):
        status, error = await face.call(f"/v1/ListRevisions?{wrong}")
        assert (status, error["code"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.FAILED_PRECONDITION, 400),
        (grpc.StatusCode.NOT_FOUND, 404),
        (grpc.StatusCode.ABORTED, 409),
        (grpc.StatusCode.INTERNAL, 500),
    ],
)
async def test_errors_are_those_of_the_service(
    face: Face, code: grpc.StatusCode, status: int
) -> None:
    """With the text that gRPC's callers get."""
    face.service.error = (code, "no pool")
    found = await face.call("/v1/SetWeights", {})
    assert found == (status, {"code": code.name, "message": "no pool"})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff",
        b'{"pool": 1}',
        b'{"pool": "a", "pool": "b"}',
        b'{"unknown": 1}',
        b'{"weights": {"a": -1}}',
        b'{"weights": {"a": 1e400}}',
        b'{"pool": "\\ud800"}',
        b"[" * 100_000,
        b'{"options":' * 5000,
        b'{"weights": {"a": ' + b"9" * 5000 + b"}}",
    ],
)
async def test_a_body_that_is_no_message_is_refused(face: Face, body: bytes) -> None:
    """With a reason of bounded length, and nothing is asked of the service."""
    status, error = await face.call("/v1/SetWeights", body)
    assert (status, error["code"]) == (400, "INVALID_ARGUMENT")
    assert len(error["message"]) < 2000
    assert not face.service.asked


async def test_only_json_is_taken(face: Face) -> None:
    """A browser sends other types for any page, without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, error = await face.call("/v1/SetWeights", b"{}", headers={"Content-Type": kind})
        assert (status, error["code"]) == (400, "INVALID_ARGUMENT")
    assert not face.service.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_foreign_pages_reach_nothing(face: Face, headers: dict[str, str]) -> None:
    """Neither calls nor the document."""
    for path, body in (("/v1/SetWeights", {}), ("/v1/GetStatus", None), ("/openapi.json", None)):
        status, error = await face.call(path, body, headers={**POST, **headers})
        assert (status, error["code"]) == (403, "PERMISSION_DENIED")
    assert not face.service.asked


async def test_a_preflight_is_not_granted(face: Face) -> None:
    """So that a browser does not send the request of a foreign page."""
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    async with face.http.options(f"{face.url}/v1/SetWeights", headers=asked) as answer:
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_large_bodies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bound."""
    monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", 1000)
    async with faced() as small:
        assert (await small.call("/v1/Apply", {"fleet": "x" * 900}))[0] == 200
        status, error = await small.call("/v1/Apply", {"fleet": "x" * 1000})
        assert (status, error["code"]) == (413, "RESOURCE_EXHAUSTED")
        assert "1000 bytes" in error["message"]


async def test_a_body_that_does_not_come_is_not_awaited(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold one of the places."""
    monkeypatch.setattr(module, "BODY_S", 0.05)
    host, port = face.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/Apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    assert b" 400 " in await reader.readline()
    writer.close()


async def test_calls_at_a_time_are_bounded(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are told so."""
    monkeypatch.setattr(module, "MAX_CONCURRENT_CALLS", 0)
    status, error = await face.call("/v1/GetStatus")
    assert (status, error["code"]) == (429, "RESOURCE_EXHAUSTED")


async def test_an_error_within_is_json_and_says_nothing_of_it(face: Face) -> None:
    """Its text may contain anything."""

    async def broken(_request: Any, _context: Any) -> None:
        raise ZeroDivisionError("planted-secret")

    service = FakeService()
    service.GetStatus = broken  # type: ignore[method-assign,assignment]
    async with WebFace(service, calls()).serve("127.0.0.1:0") as bound:
        status, error = await Face(f"http://{bound}", face.http).call("/v1/GetStatus")
    assert (status, error["code"]) == (500, "INTERNAL")
    assert "planted" not in str(error)


async def test_roles_are_those_of_the_table(tmp_path: Path) -> None:
    """By token; a wrong one is told how it is presented."""
    held = {role: new_token() for role in ("viewer", "operator", "admin")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line_of(role, role, held[role])}\n" for role in held))
    async with faced(tokens=Tokens(file)) as face:

        async def status(path: str, body: Any, token: str | None) -> int:
            headers = {**POST, **({} if token is None else {"Authorization": f"Bearer {token}"})}
            return (await face.call(path, body, headers=headers))[0]

        for path, body, allowed in (
            ("/v1/GetStatus", None, {"viewer", "operator", "admin"}),
            ("/v1/SetWeights", {}, {"operator", "admin"}),
            ("/v1/Apply", {}, {"admin"}),
        ):
            for role, token in held.items():
                assert await status(path, body, token) == (200 if role in allowed else 403)
            assert await status(path, body, None) == 401
            assert await status(path, body, new_token()) == 401
        async with face.http.get(f"{face.url}/v1/GetStatus") as answer:
            assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_socket_tells_the_user(tmp_path: Path) -> None:
    """As that of gRPC does."""
    async with faced(f"unix:{tmp_path}/http.sock", folder=tmp_path) as face:
        assert (await face.call("/v1/SetWeights", {}))[0] == 200
    line = json.loads((tmp_path / CHANGES_NAME).read_text())
    assert line["peer"] == f"http:uid {os.getuid()} pid {os.getpid()}"
    assert (line["by"], line["role"]) == ("user", "admin")
    assert not (tmp_path / "http.sock").exists()


async def test_no_request_breaks_the_face(face: Face) -> None:
    """Random methods, paths, headers and bodies: each has an answer in JSON, none is a 500."""
    rng = random.Random(7)
    paths = [*methods(), "/openapi.json", "/v1/", "/v1/%00", "//", "/v1/Apply/x"]
    pieces = [b"{", b"}", b'"pool"', b":", b"[", b"]", b"1e9", b"null", b",", b'"options"', b"\xff"]
    heads = ["application/json", "text/plain", "application/json; charset=x", ""]
    for _ in range(400):
        path = rng.choice(paths) + rng.choice(["", "?", "?pool=%ff", "?limit=1&pool=", "?a[]=1"])
        body = b"".join(rng.choices(pieces, k=rng.randrange(12)))
        headers = {
            "Content-Type": rng.choice(heads),
            "Authorization": rng.choice(["", "Bearer", "Bearer x", "Basic eDp5", "é"]),
        }
        if rng.random() < 0.5:
            del headers["Authorization"]
        verb = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"])
        async with face.http.request(verb, face.url + path, data=body, headers=headers) as answer:
            assert answer.status < 500
            text = await answer.text()
            assert answer.content_type == "application/json"
            assert verb == "HEAD" or json.loads(text) is not None
