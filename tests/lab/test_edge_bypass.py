"""Ways that an attacker would try into a pool that is guarded, each through a real Envoy.

A row is one connection's bytes. Without a good token none reaches the pool that asks for one; on an
address or under a host name that the pool is not reached by, none reaches it even with a token; and
together they reach a pool with a limit no more often than its limit says.
"""

from __future__ import annotations

import asyncio
import gzip
from contextlib import suppress
from typing import NamedTuple

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from support.edge_stack import CHAT, EdgeStack
from support.sockets import Raw
from support.tokens import key_set, token
from tidegate.stack.processes.ports import HeldPorts

pytestmark = pytest.mark.timeout(240)

INFER = "/v2/models/{}/infer"
CALL = "/inference.GRPCInferenceService/"
NAMED = b'{"model": "vision", "messages": []}'
OTHER = b'{"model": "toy-llm", "messages": []}'
GOOD = "x-token: " + token()
PREFLIGHT = ("origin: https://a.example", "access-control-request-method: POST")


class Row(NamedTuple):
    """One attempt."""

    data: bytes
    """What the connection sends."""
    good: bytes
    """The same with a good token."""
    opens: bool
    """Whether it reaches the pool with a good token, so that the token is what it lacks."""


def row(path, body=NAMED, *lines, method="POST", host="test", opens=True, version="1.1"):
    """Return an attempt over HTTP/1."""
    lines = (f"content-length: {len(body)}", *lines)
    start = (f"{method} {path} HTTP/{version}", f"host: {host}")
    bare, good = ("\r\n".join((*start, *more, *lines, "", "")) for more in ((), (GOOD,)))
    return Row(bare.encode() + body, good.encode() + body, opens)


def frame(*messages, flag=0):
    """Return gRPC messages."""
    return b"".join(bytes((flag,)) + len(one).to_bytes(4, "big") + one for one in messages)


def h2(fields, data=b"", *, opens=True):
    """Return an attempt over HTTP/2 in clear text."""
    usual = {":method": "POST", ":scheme": "http", ":authority": "test", ":path": CHAT, **fields}
    name, _, value = GOOD.partition(": ")
    return Row(_h2(usual, data), _h2({**usual, name: value}, data), opens)


def _h2(fields, data):
    client = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    client.initiate_connection()
    client.send_headers(1, [each for each in fields.items() if each[1] is not None])
    if data:
        client.send_data(1, data)
    client.end_stream(1)
    return client.data_to_send()


def infer(name, *more):
    """Return a ModelInferRequest of a model, with further fields."""
    return b"\n" + bytes((len(name),)) + name.encode() + b"".join(more)


def chat(body, *lines, opens):
    """Return a question about a chat with this body."""
    return row(CHAT, body, *lines, opens=opens)


_PATHS = {
    INFER.format("vision"): True,
    "/v2/models/vision/versions/1/infer": True,
    "//v2/models/vision/infer": True,
    "/v2/models/./vision/infer": True,
    "/v2/models/toy-llm/../vision/infer": True,
    "/v2/models/toy-llm/%2e%2e/vision/infer": True,
    "/v2/models/toy-llm%2f..%2fvision/infer": True,
    "/v2/models/%76ision/infer": True,
    "/v2/models/vision%2Finfer": True,
    "\\v2\\models\\vision\\infer": False,
    "/v2/models\\vision\\infer": True,
    "/v2/models/toy-llm\\..\\vision/infer": True,
    "/v2/models/vision%5cinfer": True,
    "/v2/models/vision/infer?/../../toy-llm/infer": True,
    "http://test" + INFER.format("vision"): True,
    "/v2/models/Vision/infer": False,
    "/V2/models/vision/infer": False,
    "/v2/models/vision/infer/": False,
    "/v2/models/vision;/infer": False,
    "/v2/models/vision/infer;x": False,
    "/v2/models/vision/infer%20": False,
    "/v2/models/vision%20/infer": False,
    "/v2/models/vision%00/infer": False,
    "/v2/models/vision%252finfer": False,
    "/v2/models/%2576ision/infer": False,
    "/v2/models/toy-llm/infer?/../../vision/infer": False,
    "/v2/models/toy-llm/infer#/../../vision/infer": False,
    "/v2/models/toy-llm/infer%3f/../../vision/infer": True,
}
_BODIES = {
    "plain": (NAMED, (), True),
    "the model last, in no chat": (
        b'{"messages": ["' + b"a" * 200_000 + b'"], "model": "vision"}',
        (),
        False,
    ),
    "an escape": (b'{"model": "\\u0076ision"}', (), True),
    "twice": (b'{"model": "toy-llm", "model": "vision"}', (), True),
    "twice, turned": (b'{"model": "vision", "model": "toy-llm"}', (), False),
    "another case": (b'{"Model": "vision", "model": "toy-llm"}', (), False),
    "nested": (b'{"messages": [{"model": "vision"}]}', (), False),
    "a list": (b'{"model": ["vision"]}', (), False),
    "a zero byte": (b'{"model": "vision\\u0000"}', (), False),
    "a space": (b'{"model": "vision "}', (), False),
    "a byte order mark": (b"\xef\xbb\xbf" + NAMED, (), True),  # Python's json skips it
    "UTF-16": (NAMED.decode().encode("utf-16"), (), False),
    "much space": (b" " * 100_000 + NAMED, (), True),
    "garbage behind": (NAMED + b"}", (), False),
    "a form": (b"model=vision", ("content-type: application/x-www-form-urlencoded",), False),
    "compressed": (gzip.compress(NAMED), ("content-encoding: gzip",), True),
    "said to be compressed": (NAMED, ("content-encoding: gzip",), False),
    "compressed in secret": (gzip.compress(NAMED), (), False),
}
_HEADERS = {
    "a pool": ("tidegate-pool: vision",),
    "the picker's choice": ("x-tidegate-pool: vision", "x-tidegate-variant: stable"),
    "the picker's choice, nominated": (
        "connection: x-tidegate-model",
        "x-tidegate-pool: vision",
        "x-tidegate-variant: stable",
    ),
    "Envoy's reading": ("x-tidegate-model: vision", "x-tidegate-unpicked: 1"),
    "the preflight's cluster": ("x-tidegate-sent: vision/stable/http",),
    "underscores": ("x_tidegate_pool: vision", "x_tidegate_variant: stable"),
    "a rewritten path": ("x-envoy-original-path: " + INFER.format("vision"),),
    "an original URL": ("x-original-url: " + INFER.format("vision"),),
    "a method": ("x-http-method-override: GET",),
    "a host": ("x-forwarded-host: inner", "forwarded: host=inner", "x-envoy-internal: true"),
    "a client inside": ("x-forwarded-for: 127.0.0.1", "x-real-ip: 127.0.0.1"),
    "a session": ("x-session-id: a",),
    "retries": ("x-envoy-retry-on: 4xx,retriable-4xx", "x-envoy-max-retries: 9"),
    "an expectation": ("expect: 100-continue",),
    "two tokens": ("authorization: Basic eDp4", "proxy-authorization: Bearer x"),
}
_AUTHORITIES = ("test:80", "TEST", "test.", "llm.test", "LLM.test:9", "[::1]", "127.0.0.1", "a b")
ROWS: dict[str, Row] = {
    **{f"path {path}": row(path, opens=opens) for path, opens in _PATHS.items()},
    **{
        f"body {name}": chat(body, *lines, opens=opens)
        for name, (body, lines, opens) in _BODIES.items()
    },
    **{f"header {name}": row(CHAT, NAMED, *lines) for name, lines in _HEADERS.items()},
    **{f"header {name}, open": row(CHAT, OTHER, *x, opens=False) for name, x in _HEADERS.items()},
    "the model in a header": row(CHAT, OTHER, "tidegate-model: vision"),
    "the model in a header, twice": row(
        CHAT, OTHER, "tidegate-model: toy-llm", "tidegate-model: vision", opens=False
    ),
    **{
        f"authority {name}": row(
            CHAT, host=name, opens="llm" not in name.lower() and " " not in name
        )
        for name in _AUTHORITIES
    },
    "a host in the line": row("http://llm.test" + CHAT, opens=False),
    "HTTP/1.0": row(CHAT, version="1.0"),
    "a question": row("/v2/models/vision/config", b"", method="GET"),
    "a question's head": row("/v2/models/vision", b"", method="HEAD"),
    "another method": row(INFER.format("vision"), method="PUT", opens=False),
    "a preflight": row(CHAT, b"", *PREFLIGHT, method="OPTIONS", opens=False),
    "a preflight by path": row(
        INFER.format("vision"), b"", *PREFLIGHT, method="OPTIONS", opens=False
    ),
    "a preflight without origin": row(
        CHAT, b"", "origin: ", PREFLIGHT[1], method="OPTIONS", opens=False
    ),
    "a preflight with a body": row(CHAT, NAMED, *PREFLIGHT, method="OPTIONS", opens=False),
    "a websocket": row(
        *("/v2/models/vision/config", b"", "connection: upgrade", "upgrade: websocket"),
        method="GET",
        opens=False,
    ),
    "an upgrade to HTTP/2": row(
        *(CHAT, NAMED, "connection: upgrade, http2-settings", "upgrade: h2c"),
        "http2-settings: AAMAAABkAARAAAAAAAIAAAAA",
    ),
    "CONNECT": row("vision:80", b"", method="CONNECT", opens=False),
    "gRPC over HTTP/1": row(
        *(CALL + "ModelInfer", frame(infer("vision")), "content-type: application/grpc"),
        opens=False,
    ),
    "gRPC's path as JSON": row(CALL + "ModelInfer", NAMED, opens=False),
    "gRPC-Web": row(
        *(CALL + "ModelInfer", frame(infer("vision")), "content-type: application/grpc-web+proto"),
        opens=False,
    ),
}
_GRPC = {":path": CALL + "ModelInfer", "content-type": "application/grpc", "te": "trailers"}
_STREAM = {**_GRPC, ":path": CALL + "ModelStreamInfer"}
ROWS |= {
    f"HTTP/2 {name}": made
    for name, made in {
        "by body": h2({}, NAMED),
        "by path": h2({":path": INFER.format("vision")}, NAMED),
        "another authority": h2({":authority": "llm.test"}, NAMED, opens=False),
        "two hosts": h2({"host": "llm.test"}, NAMED),
        "no authority": h2({":authority": None, "host": "test"}, NAMED),
        "HTTPS": h2({":scheme": "https"}, NAMED),
        "websocket": h2(
            {":method": "CONNECT", ":protocol": "websocket", ":path": INFER.format("vision")},
            opens=False,
        ),
        "CONNECT": h2(
            {":method": "CONNECT", ":path": None, ":scheme": None, ":authority": "vision:80"},
            opens=False,
        ),
        "a fragment": h2({":path": INFER.format("vision") + "#a"}, NAMED, opens=False),
        "gRPC": h2(_GRPC, frame(infer("vision"))),
        "gRPC, the name twice": h2(_GRPC, frame(infer("toy-llm", infer("vision")))),
        "gRPC, the name last": h2(_GRPC, frame(b"\x1a\x03abc" + infer("vision"))),
        "gRPC, two messages": h2(_GRPC, frame(infer("toy-llm"), infer("vision")), opens=False),
        "gRPC, an empty message first": h2(_GRPC, frame(b"", infer("vision")), opens=False),
        "gRPC, compressed": h2(
            {**_GRPC, "grpc-encoding": "gzip"},
            frame(gzip.compress(infer("vision")), flag=1),
        ),
        "gRPC, a header": h2({**_GRPC, "tidegate-model": "vision"}, frame(infer("toy-llm"))),
        "gRPC, the other header": h2(
            {**_GRPC, "tidegate-model": "toy-llm"}, frame(infer("vision")), opens=False
        ),
        "gRPC, ready": h2({**_GRPC, ":path": CALL + "ModelReady"}, frame(infer("vision"))),
        "gRPC, another case": h2({**_GRPC, ":path": CALL.lower() + "modelinfer"}, opens=False),
        "gRPC, slashes": h2({**_GRPC, ":path": "/" + CALL + "ModelInfer"}, frame(infer("vision"))),
        "stream": h2(_STREAM, frame(infer("vision"), infer("vision"))),
        "stream, by header": h2(
            {**_STREAM, "tidegate-model": "vision"}, frame(infer("vision"), infer("vision"))
        ),
        "stream, later": h2(_STREAM, frame(infer("toy-llm"), infer("vision")), opens=False),
    }.items()
}


@pytest.fixture(scope="module")
async def edge(demo_extra):  # noqa: ARG001 - skips first
    """Run an open pool and a guarded one, several addresses and host names."""
    with HeldPorts() as ports:
        outer, inner = ports.address(), ports.address()
        async with EdgeStack(
            listener={
                "jwt": [
                    {"name": "tests", "issuer": "tests", "jwks": key_set(), "header": "x-token"}
                ],
                "cors": {"origins": ["https://a.example"]},
                "hosts": [{"names": ["llm.test"], "pools": ["llm"]}],
                "further": [
                    {"name": "outer", "address": outer, "pools": ["llm"]},
                    {"name": "inner", "address": inner},
                ],
            },
            vision={"jwt": {"any_of": ["tests"]}},
        ) as stack:
            stack.outer, stack.inner = outer, inner
            yield stack


async def attempt(address, data):
    """Send a row; return what came back."""
    got = b""
    with suppress(OSError, TimeoutError):
        async with Raw(address) as raw:
            await raw.send(data)
            async with asyncio.timeout(5):
                while part := await raw.reader.read(65_536):
                    got += part
                    plain = got.startswith(b"HTTP/1.")
                    if answered(got) if plain else ended(got):
                        break
    return got


def answered(data):
    """Return whether HTTP/1 bytes hold the head of an answer, after any that says to go on."""
    first, _, rest = data.partition(b"\r\n\r\n")
    return b"\r\n\r\n" in (rest if b" 100 Con" in first else data)


def ended(data):
    """Return whether HTTP/2 frames end stream 1 or the connection."""
    at = 0
    while at + 9 <= len(data):
        length, kind, flags = int.from_bytes(data[at : at + 3], "big"), data[at + 3], data[at + 4]
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        if kind == 7 or (stream == 1 and (kind == 3 or (kind in {0, 1} and flags & 1))):
            return at + 9 + length <= len(data)
        at += 9 + length
    return False


@pytest.mark.parametrize("name", ROWS)
async def test_no_attempt_reaches_the_pool_without_a_token(edge, name):
    """On each address of the fleet."""
    edge.forget()
    for address in (edge.listener, edge.inner, edge.outer):
        await attempt(address, ROWS[name].data)
    assert edge.vision.seen == []


async def test_what_is_said_to_open_opens_with_a_token(edge):
    """Otherwise the rows would show nothing."""
    wrong = {}
    for name, one in ROWS.items():
        edge.forget()
        got = await attempt(edge.listener, one.good)
        if bool(edge.vision.seen) != one.opens:
            wrong[name] = edge.seen or got[:60]
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())


async def test_no_token_opens_an_address_or_host_without_the_pool(edge):
    """There it does not exist."""
    found = []
    for name, one in ROWS.items():
        edge.forget()
        await attempt(edge.outer, one.good)
        named = one.good.replace(b"host: test\r\n", b"host: llm.test\r\n")
        if named != one.good and "http://test" not in name:
            await attempt(edge.listener, named)
        if edge.vision.seen:
            found.append(name)
    assert found == []


@pytest.mark.parametrize("last_first", [False, True])
async def test_no_attempt_gets_round_a_limit(edge, last_first):
    """Requests of every form and protocol count for one bucket of the pool at each address."""
    fleet = edge.first_fleet()
    fleet["pools"][1]["rate_limit"] = {"requests": 3, "per": "1h"}
    await edge.apply(fleet)
    rows = list(ROWS.values())
    if last_first:
        rows.reverse()
    try:
        for address in (edge.listener, edge.inner):
            edge.forget()
            for one in rows:
                await attempt(address, one.good)
            assert len(edge.vision.seen) == 3
    finally:
        await edge.apply(edge.first_fleet())
