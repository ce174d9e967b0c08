"""A hostile edge: over replicas that answer every path, nothing outside the list is answered."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import product

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamReset

from support.edge_stack import CHAT, GRPC, INFER, EdgeStack, answer, ask, served
from support.sockets import Raw, h2_request, head

CLOSED = (
    "/flush_cache",
    "/update_weights_from_disk",
    "/v1/load_lora_adapter",
    "/v1/completions",
    "/metrics",
    "/v2/models/other/infer",
    "/v2/models/toy-llm/trace/setting",
    "/v2/repository/index",
    "/v2/repository/models/toy-llm/load",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/status",
    "/v2/cudasharedmemory/region/a/register",
    GRPC + "RepositoryModelLoad",
    GRPC + "TraceSetting",
)
SPELLINGS = {
    "plain": lambda path: path,
    "query": lambda path: path + "?x=/v2/models/toy-llm/infer",
    "parameter": lambda path: path + ";/infer",
    "trailing slash": lambda path: path + "/",
    "slashes": lambda path: path.replace("/", "//"),
    "escaped slashes": lambda path: "/" + path[1:].replace("/", "%2F"),
    "twice escaped": lambda path: "/" + path[1:].replace("/", "%252f"),
    "escaped letters": lambda path: path.replace("e", "%65").replace("o", "%6F"),
    "back from a good path": lambda path: INFER + "/../../../.." + path,
    "back, escaped": lambda path: INFER + "/%2e%2e/%2E%2e/.%2e/%2e." + path,
    "back, escaped slashes": lambda path: INFER + "%2f..%2F..%2f..%5c.." + path,
    "dots": lambda path: "/./" + path[1:].replace("/", "/./"),
    "other case": str.upper,
    "absolute": lambda path: "http://test" + path,
    "absolute, a path as its host": lambda path: "http://test" + INFER + "/../../../.." + path,
}
HEADERS = (
    (),
    ("tidegate-pool: llm",),
    ("Tidegate-Pool: vision", "tidegate-model: vision"),
    ("tidegate-model: toy-llm",),
    ("x-tidegate-pool: llm", "x-tidegate-variant: stable"),
    ("x-envoy-original-path: " + INFER, "x-rewrite-url: " + INFER, "x-http-method-override: GET"),
    ("content-type: application/grpc", "te: trailers"),
)


@pytest.fixture(scope="module")
async def edge(demo_extra):  # noqa: ARG001 - skips first
    """Run one stack with the default settings and short names."""
    async with EdgeStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def forgotten(request):
    """Begin each test with nothing seen."""
    if "edge" in request.fixturenames:
        request.getfixturevalue("edge").forget()


# --- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_and_no_header_opens_a_path(edge, spelling):
    """Every closed path, with every set of headers, by three methods: no replica sees any."""
    spell = SPELLINGS[spelling]
    async with Raw(edge.listener) as raw:
        for path, lines, method in product(CLOSED, HEADERS, ("GET", "POST", "OPTIONS")):
            await raw.send(head(spell(path), "content-length: 0", *lines, method=method))
            status, headers, _ = await answer(raw)
            grpc_status = headers.get("grpc-status")
            assert status in {403, 404} or grpc_status in {"7", "12"}, (path, lines, method)
            assert headers["x-tidegate-reason"] in {
                "unknown-path",
                "unknown-model",
                "one-replica",
            }
    assert edge.seen == []


@pytest.mark.parametrize(
    ("method", "path", "served"),
    [
        ("POST", INFER, "llm"),
        ("POST", "/v2/models/toy-llm/versions/1/generate", "llm"),
        ("POST", "/v2//models/./vision/generate_stream?a=b", "vision"),
        ("POST", "/v2/models/x/../vision/infer", "vision"),
        ("GET", "/v2/models/vision", "vision"),
        ("GET", "/v2/models/vision/ready", "vision"),
        ("GET", "/v2/models/toy-llm/versions/2/config", "llm"),
        ("HEAD", "/v2/models/toy-llm/stats", "llm"),
        ("GET", "/v2", "llm"),
        ("GET", "/v2/health/ready", "llm"),
        ("GET", "/v1/models", "llm"),
        ("GET", "/v1/models/org%2Fname", "llm"),
        ("GET", "http://test/v2/models/vision/config", "vision"),
    ],
)
async def test_what_is_on_the_list_reaches_its_pool(edge, method, path, served):
    """In any spelling that normalises to it; the replica sees the normalised path."""
    async with Raw(edge.listener) as raw:
        body = b'{"text_input": "a"}' if method == "POST" else b""
        await raw.send(head(path, f"content-length: {len(body)}", method=method), body)
        assert await raw.status() == 200
    assert len(edge.seen) == 1
    ((_, seen),) = getattr(edge, served).seen
    assert "//" not in seen
    assert "/../" not in seen


@pytest.mark.parametrize(
    ("method", "reaches"),
    [
        *((name, True) for name in ("ModelReady", "ModelMetadata", "ModelConfig", "ServerLive")),
        *((name, True) for name in ("ModelStatistics", "ServerReady", "ServerMetadata")),
        *((name, False) for name in ("RepositoryIndex", "RepositoryModelUnload", "LogSettings")),
        *((name, False) for name in ("TraceSetting", "SystemSharedMemoryStatus", "Nothing")),
    ],
)
async def test_grpc_has_the_same_list(edge, method, reaches):
    """Questions pass, calls that address one replica are refused with text, others are unknown."""
    async with grpc.aio.insecure_channel(edge.listener) as channel:
        call = channel.unary_unary(GRPC + method)(b"\n\x07toy-llm")
        if reaches:
            await call
            assert [path for _, path in edge.seen] == [GRPC + method]
            return
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
    unknown = method == "Nothing"
    expected = grpc.StatusCode.UNIMPLEMENTED if unknown else grpc.StatusCode.PERMISSION_DENIED
    assert error.value.code() is expected
    assert not error.value.details().startswith("{")
    assert edge.seen == []


async def test_a_connection_is_not_turned_into_another(edge):
    """No upgrade, no CONNECT, no TRACE, no request for the server as a whole."""
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    status, headers, _ = await ask(edge, "/v2/models/toy-llm/config", *upgrade, method="GET")
    assert (status, headers["x-tidegate-reason"]) == (403, "not-allowed")
    for method, path in (("CONNECT", "test:80"), ("TRACE", INFER), ("OPTIONS", "*")):
        status, headers, _ = await ask(edge, path, method=method)
        assert (status, headers["x-tidegate-reason"]) == (404, "unknown-path")
    client = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    client.initiate_connection()
    fields = {":method": "CONNECT", ":protocol": "websocket", ":scheme": "http"}
    client.send_headers(1, list({**fields, ":authority": "test", ":path": INFER}.items()))
    async with Raw(edge.listener) as raw:
        await raw.send(client.data_to_send())
        events = []
        while not any(isinstance(event, StreamReset | ResponseReceived) for event in events):
            data = await asyncio.wait_for(raw.reader.read(65_536), 30)
            if not data:
                break
            events += client.receive_data(data)
    assert edge.seen == []


# --- headers that choose ------------------------------------------------------------------------


async def test_a_client_chooses_neither_pool_nor_policy_by_default(edge):
    """The headers are gone before routes match, and no replica sees them."""
    lines = ("tidegate-pool: vision", "tidegate-policy: random")
    status, _, _ = await ask(edge, INFER, *lines, body=b"{}")
    assert status == 200
    (seen,) = edge.llm.headers
    assert not {"tidegate-pool", "tidegate-policy"} & {name.lower() for name in seen}


async def test_a_client_may_name_its_model(edge):
    """Where the path does not; the body is then not needed."""
    status, _, _ = await ask(edge, CHAT, "tidegate-model: vision", body=b'{"messages": []}')
    assert status == 200
    assert edge.vision.seen == [("POST", CHAT)]


async def test_listed_headers_choose(demo_extra):  # noqa: ARG001 - skips first
    """With ``client_headers`` a client names the pool, and what is not listed is stripped."""
    async with EdgeStack(listener={"client_headers": ["tidegate-pool"]}) as stack:
        body = b'{"messages": [], "model": "toy-llm"}'
        await ask(stack, CHAT, "tidegate-pool: vision", body=body)
        assert stack.vision.seen == [("POST", CHAT)]
        stack.forget()
        await ask(stack, CHAT, "tidegate-model: vision", body=body)
        assert stack.llm.seen == [("POST", CHAT)]
        stack.forget()
        for path in CLOSED:
            status, _, _ = await ask(stack, path, "tidegate-pool: vision")
            assert status in {403, 404}
        assert stack.seen == []


# --- smuggling ----------------------------------------------------------------------------------

HIDDEN = b"POST /flush_cache HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n"
SMUGGLED = {
    "length and chunks": (["content-length: 4", "transfer-encoding: chunked"], b"0\r\n\r\n"),
    "two lengths": (["content-length: 0", "content-length: 62"], b""),
    "a list of lengths": (["content-length: 0, 62"], b""),
    "a signed length": (["content-length: +0"], b""),
    "a negative length": (["content-length: -1"], b""),
    "a coding twice": (["transfer-encoding: chunked", "transfer-encoding: identity"], b"0\r\n\r\n"),
    "an unknown coding": (["transfer-encoding: xchunked"], b"0\r\n\r\n"),
    "a tab before the coding": (["transfer-encoding:\tchunked", "content-length: 4"], b"0\r\n\r\n"),
    "a space before the colon": (["transfer-encoding : chunked"], b"0\r\n\r\n"),
    "a folded line": (["x-a: b", " transfer-encoding: chunked"], b"0\r\n\r\n"),
    "a line feed in a value": (["x-a: b\nPOST /flush_cache HTTP/1.1", "content-length: 0"], b""),
    "a zero byte": (["x-a: b\0c", "content-length: 0"], b""),
    "a size with a sign": (["transfer-encoding: chunked"], b"+0\r\n\r\n"),
    "a size with 0x": (["transfer-encoding: chunked"], b"0x0\r\n\r\n"),
    "a huge size": (["transfer-encoding: chunked"], b"fffffffffffffffff\r\n"),
    "an expectation": (["expect: 100-continue", "content-length: 0"], b""),
}


@pytest.mark.parametrize("form", SMUGGLED)
async def test_no_request_hides_in_another(edge, form):
    """Whatever the first request is to Envoy, a second one behind it meets the same list."""
    lines, tail = SMUGGLED[form]
    async with Raw(edge.listener) as raw:
        await raw.send(head(INFER, *lines), tail, HIDDEN)
        got = b""
        with suppress(TimeoutError, OSError):
            while part := await asyncio.wait_for(raw.reader.read(65_536), 1 if got else 60):
                got += part
    assert got.startswith(b"HTTP/1.1 ")
    assert {path for _, path in edge.seen} <= {INFER}


# --- the right words ----------------------------------------------------------------------------


async def test_refusals_are_in_the_callers_dialect(edge):
    """Triton's object, OpenAI's object also under unknown paths, and a JSON type for both."""
    status, headers, body = await ask(edge, "/nothing")
    assert (status, headers["content-type"]) == (404, "application/json")
    assert set(json.loads(body)) == {"error"}
    for path in ("/v1/nothing", "/v1", "/v1/completions?a=b"):
        status, headers, body = await ask(edge, path)
        error = json.loads(body)["error"]
        assert (status, headers["content-type"]) == (404, "application/json")
        assert (error["type"], error["code"]) == ("invalid_request_error", "unknown-path")
        assert error["param"] is None
    # The picker's own refusals are as they were.
    status, headers, body = await ask(edge, CHAT, body=b'{"model": "absent", "messages": []}')
    assert (status, headers["x-tidegate-reason"]) == (404, "unknown-model")
    assert json.loads(body)["error"]["code"] == "unknown-model"
    assert headers["content-type"] == "application/json"


async def test_liveness_is_an_empty_200(edge):
    """Envoy's own good answers are not put into a dialect."""
    status, _, body = await ask(edge, "/v2/health/live", method="GET")
    assert (status, body) == (200, b"")


async def test_faults_of_http_have_words(edge):
    """Envoy's own 400 has no body, and its 431 comes before the path is known."""
    async with Raw(edge.listener) as raw:
        await raw.send(f"GET {CHAT} HTTP/1.1\r\n\r\n".encode())
        status, headers, body = await answer(raw)
    assert (status, headers["x-tidegate-reason"]) == (400, "bad-request")
    assert json.loads(body)["error"]
    for lines in ([f"x-a: {'b' * 40_000}"], [f"x-{n}: b" for n in range(120)]):
        status, headers, body = await ask(edge, CHAT, *lines)
        assert (status, headers["x-tidegate-reason"]) == (431, "too-large")
        assert set(json.loads(body)) == {"error"}


async def test_http_1_0_is_served(edge):
    """With and without a host; the connection ends with the answer."""
    for host in ("", "host: test\r\n"):
        async with Raw(edge.listener) as raw:
            await raw.send(f"GET /v2/models/vision/ready HTTP/1.0\r\n{host}\r\n".encode())
            got = await asyncio.wait_for(raw.reader.read(), 30)
        assert got.startswith(b"HTTP/1.0 200")


async def test_large_headers_reset_an_http_2_stream(edge):
    """Here Envoy has no answer in words, and the connection's other streams go on."""
    async with Raw(edge.listener) as raw:
        large = {f"x-{number}": "a" * 3000 for number in range(15)}
        got = await asyncio.wait_for(h2_request(raw, CHAT, [b"{}"], headers=large), 30)
    assert got.reset or got.headers.get(":status") == "431"
    assert edge.seen == []


# --- floods -------------------------------------------------------------------------------------


async def test_resets_without_end_close_the_connection(edge):
    """HTTP/2 streams that are opened and reset at once; others are served meanwhile."""
    client = H2Connection(H2Configuration(header_encoding="utf-8"))
    client.initiate_connection()
    fields = [
        (":method", "POST"),
        (":path", INFER),
        (":scheme", "http"),
        (":authority", "test"),
    ]
    async with Raw(edge.listener) as raw:
        closed = False
        for _ in range(200):
            for _ in range(50):
                stream = client.get_next_available_stream_id()
                client.send_headers(stream, fields)
                client.reset_stream(stream)
            try:
                await raw.send(client.data_to_send())
                await asyncio.wait_for(raw.reader.read(65_536), 0.01)
            except TimeoutError:
                pass
            except OSError:
                closed = True
            if closed or raw.reader.at_eof():
                closed = True
                break
        assert closed
    assert await served(edge)
