"""A pool that asks for a token is not reached without one, however a request comes to it."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from itertools import product

import grpc
import pytest

from support.edge_stack import CHAT, EdgeStack
from support.in_process_stack import PICKER
from support.sockets import Raw, chunks, h2_request, head
from support.tokens import key_set, token
from support.traffic import eventually

pytestmark = pytest.mark.timeout(240)

INFER = "/v2/models/vision/infer"
GRPC = "/inference.GRPCInferenceService/"
NAMED = b"\n\x06vision"
"""``model_name: vision`` of a ModelInferRequest."""

TOKENS = {
    "none": (),
    "not signed": ("authorization: Bearer " + token().rpartition(".")[0] + ".",),
    "another key": ("authorization: Bearer " + token(b"x" * 32),),
    "another issuer": ("authorization: Bearer " + token(iss="me"),),
    "another audience": ("authorization: Bearer " + token(aud="llm"),),
    "expired": ("authorization: Bearer " + token(exp=int(time.time()) - 3600),),
    "never expires": ("authorization: Bearer " + token(exp=None),),
    "another scheme": ("authorization: Basic " + token(),),
    "another header": ("x-token: " + token(), "cookie: access_token=" + token()),
}
HEADERS = (
    (),
    ("tidegate-model: vision",),
    ("tidegate-model: toy-llm",),
    ("tidegate-pool: vision",),
    ("x-tidegate-pool: vision", "x-tidegate-variant: stable"),
    ("x-tidegate-model: vision", "x-tidegate-unpicked: 1"),
    ("x-session-id: a", "x-pin: yes"),
    ("origin: https://a.example", "access-control-request-method: POST"),
    ("x-envoy-max-retries: 5", "x-envoy-retry-on: 5xx,retriable-4xx"),
)
PATHS = {
    "by path": INFER,
    "about": "/v2/models/vision/config",
    "spelled": "/v2/models/visio%6e/infer",
    "versions": "/v2//models/./vision/versions/1/infer",
    "back": "/v2/models/toy-llm/../vision/generate",
    "escaped": "/v2%2Fmodels%2fvision/infer",
    "query": INFER + "?access_token=" + token(),
    "chat": CHAT,
    "chat with a query": CHAT + "?model=toy-llm",
}
SMALL = json.dumps({"messages": [], "model": "vision"}).encode()
LARGE = json.dumps({"messages": ["a" * 300_000], "model": "vision"}).encode()


@pytest.fixture(scope="module")
async def edge(demo_extra):  # noqa: ARG001 - skips first
    """Run an open pool and one that asks for a token, which share a path."""
    async with EdgeStack(
        listener={
            "jwt": [{"name": "tests", "issuer": "tests", "jwks": key_set()}],
            "client_headers": ["tidegate-model", "tidegate-pool", "x-pin"],
        },
        vision={
            "jwt": {"any_of": ["tests"], "audiences": ["vision"]},
            "variants": [{"name": "stable", "match": {"headers": {"x-pin": "yes"}}}],
        },
    ) as stack:
        yield stack


@pytest.fixture(autouse=True)
def forgotten(edge):
    """Begin each test with nothing seen."""
    edge.forget()


async def ask(stack, path, *lines, body=SMALL, method="POST"):
    """Send one request; return status, headers and body."""
    async with Raw(stack.listener) as raw:
        await raw.send(head(path, f"content-length: {len(body)}", *lines, method=method), body)
        top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
        pairs = (line.partition(":") for line in top.splitlines()[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        text = await raw.reader.readexactly(int(headers.get("content-length", "0")))
        return int(top.split(" ", 2)[1]), headers, text


async def over_http(stack, lines) -> list[int]:
    """Send every path with every set of headers, and the forms of a body; return the statuses."""
    given = (*lines, f"x-gateway-destination-endpoint: {stack.vision.http}")
    given = (*given, f"x-gateway-destination-endpoint-subset: {stack.vision.http}")
    found = []
    for path, more in product(PATHS.values(), HEADERS):
        method = "GET" if path.endswith("/config") else "POST"
        status, _, _ = await ask(stack, path, *given, *more, method=method)
        found.append(status)
    typed = (*given, "content-type: text/plain")
    for body in (SMALL, LARGE):
        found.append((await ask(stack, CHAT, *typed, body=body))[0])
        squeezed = gzip.compress(body)
        found.append((await ask(stack, CHAT, *given, "content-encoding: gzip", body=squeezed))[0])
        async with Raw(stack.listener) as raw:
            await raw.send(head(CHAT, *given, "transfer-encoding: chunked"))
            await raw.send(chunks([body[:7], body[7:]], {"x-trailer": "a"}))
            found.append(await asyncio.wait_for(raw.status(), 30))
    pairs = dict(line.split(": ", 1) for line in given)
    for path in (CHAT, INFER):
        async with Raw(stack.listener) as raw:
            got = await asyncio.wait_for(h2_request(raw, path, [SMALL], headers=pairs), 30)
        found.append(int(got.headers.get(":status", 0)))
    return found


async def over_grpc(stack, lines) -> list[grpc.StatusCode]:
    """Call by the body, by metadata and as a stream; return the codes."""
    given = [tuple(line.split(": ", 1)) for line in lines]
    given.append(("x-gateway-destination-endpoint", stack.vision.grpc))
    found = []
    async with grpc.aio.insecure_channel(stack.listener) as channel:
        for body, more in product(
            (NAMED, NAMED + b"\x1a" + b"\xa0\x8d\x06" + b"a" * 100_000),
            ((), (("tidegate-model", "vision"),), (("x-tidegate-pool", "vision"),)),
        ):
            metadata = grpc.aio.Metadata(*given, *more)
            for method in ("ModelInfer", "ModelReady", "ModelStatistics"):
                call = channel.unary_unary(GRPC + method)(body, metadata=metadata, timeout=20)
                found.append(await call.code())
            stream = channel.stream_stream(GRPC + "ModelStreamInfer")(metadata=metadata, timeout=20)
            try:
                await stream.write(body)
                await stream.write(body)
                await stream.done_writing()
                while await stream.read() is not grpc.aio.EOF:
                    pass
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            found.append(await stream.code())
    return found


@pytest.mark.parametrize("kind", TOKENS)
async def test_no_request_without_a_good_token_reaches_the_pool(edge, kind):
    """By path, header, body, pin or a picker's own headers; over HTTP/1.1, HTTP/2 and gRPC."""
    statuses = await over_http(edge, TOKENS[kind])
    codes = await over_grpc(edge, TOKENS[kind])
    assert edge.vision.seen == []
    assert {401, 403} & set(statuses)
    assert {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED} & set(codes)
    assert set(statuses) <= {200, 400, 401, 403, 404}


async def test_a_good_token_opens_each_way(edge):
    """The same requests, so none of them was refused for another reason."""
    lines = ("authorization: Bearer " + token(),)
    statuses = await over_http(edge, lines)
    assert {401, 403}.isdisjoint(statuses)
    codes = await over_grpc(edge, lines)
    assert {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}.isdisjoint(codes)
    seen = {path for _, path in edge.vision.seen}
    assert {INFER, CHAT, GRPC + "ModelInfer", GRPC + "ModelReady"} <= seen
    assert len(edge.vision.seen) > 50
    # It is for the gateway, and no replica sees it.
    assert not any("authorization" in map(str.lower, each) for each in edge.vision.headers)


async def test_the_open_pool_asks_for_nothing(edge):
    """Nor does it mind a bad token."""
    for lines in TOKENS.values():
        body = b'{"model": "toy-llm", "messages": []}'
        assert (await ask(edge, CHAT, *lines, body=body))[0] == 200
    assert len(edge.llm.seen) == len(TOKENS)


async def test_refusals_are_in_the_dialect(edge):
    """With a reason: OpenAI's object, Triton's, and a gRPC status."""
    status, headers, body = await ask(edge, CHAT)
    assert (status, headers["x-tidegate-reason"]) == (401, "unauthenticated")
    assert json.loads(body)["error"]["code"] == "unauthenticated"
    assert headers["www-authenticate"].startswith("Bearer")
    status, headers, body = await ask(edge, INFER, *TOKENS["another audience"])
    assert (status, headers["x-tidegate-reason"]) == (403, "forbidden")
    assert isinstance(json.loads(body)["error"], str)
    # Ours are as they were.
    _, headers, _ = await ask(edge, "/v2/repository/index")
    assert headers["x-tidegate-reason"] == "one-replica"


async def test_a_retry_stays_in_its_pool(edge):
    """An open pool without a replica that answers is not served by the other one."""
    fleet = edge.first_fleet()
    fleet["pools"][0]["endpoints"] = [{"id": "gone", "http": "127.0.0.1:1", "grpc": "127.0.0.1:2"}]
    await edge.apply(fleet)
    try:
        for path, body in product((CHAT, "/v2/models/toy-llm/infer"), (b"{}", SMALL)):
            await ask(edge, path, "x-envoy-retry-on: 5xx", "x-envoy-max-retries: 9", body=body)
        assert edge.seen == []
    finally:
        await edge.apply(edge.first_fleet())


async def test_losing_the_picker_opens_nothing(edge):
    """Envoy then reads the model itself, and chooses the route again behind that."""
    await edge.supervisor.kill(PICKER)

    async def lost() -> bool:
        page = await edge.envoy_page("clusters?format=json")
        (picker,) = [one for one in page["cluster_statuses"] if one["name"] == "tidegate-picker"]
        health = picker["host_statuses"][0]["health_status"]
        return bool(health.get("failed_active_health_check"))

    await eventually(lost)
    for kind in ("none", "another key", "another audience"):
        await over_http(edge, TOKENS[kind])
        await over_grpc(edge, TOKENS[kind])
    assert edge.vision.seen == []
    lines = ("authorization: Bearer " + token(),)
    assert (await ask(edge, CHAT, *lines))[0] == 200
    assert edge.vision.seen == [("POST", CHAT)]
