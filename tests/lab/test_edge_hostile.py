"""Features of the edge under hostile or broken peers, each through a real Envoy."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from support.edge_stack import CHAT, EdgeStack
from support.in_process_stack import PICKER, SECOND_ENVOY
from support.sockets import Raw, head
from support.tokens import key_set, token
from support.traffic import eventually

pytestmark = pytest.mark.timeout(180)

INFER = "/v2/models/toy-llm/infer"
GUARDED = "/v2/models/vision/infer"
PAGE = "origin: https://a.example"


@pytest.fixture(scope="module")
async def edge(demo_extra):  # noqa: ARG001 - skips first
    """Run an open pool and one that asks for a token."""
    async with EdgeStack(
        listener={
            "jwt": [{"name": "tests", "issuer": "tests", "jwks": key_set()}],
            "cors": {"origins": ["https://a.example"]},
        },
        vision={"jwt": {"any_of": ["tests"]}},
    ) as stack:
        yield stack


async def ask(stack, path, *lines, body=b"{}", method="POST", first=b""):
    """Send one request; return its status and headers, 0 if the connection was closed."""
    async with Raw(stack.listener) as raw:
        with suppress(OSError, asyncio.IncompleteReadError):
            length = f"content-length: {len(body)}"
            await raw.send(first + head(path, length, *lines, method=method), body)
            top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
            pairs = (line.partition(":") for line in top.splitlines()[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            return int(top.split(" ", 2)[1]), headers
    return 0, {}


def part(value):
    """Return a part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def odd(top, body=None):
    """Return a token with these parts and a signature that fits neither."""
    return f"{part(top)}.{part(body or {'iss': 'tests'})}.{part(b'x' * 32)}"


HS256 = {"alg": "HS256", "kid": "one"}
BAD_TOKENS = {
    "empty": "",
    "dots": "." * 1000,
    "a part": part(HS256),
    "four parts": token() + ".x",
    "no base64": "!.!.!",
    "not signed": f"{part({'alg': 'none'})}.{part({'iss': 'tests'})}.",
    "another algorithm": odd({"alg": "RS256", "kid": "one"}),
    "an unknown algorithm": odd({"alg": "X" * 5000, "kid": "one"}),
    "a long key id": odd({"alg": "HS256", "kid": "k" * 10_000}),
    "a critical extension": odd({**HS256, "crit": ["x"]}),
    "deep": odd(HS256, b'{"a":' * 2000 + b"1" + b"}" * 2000),
    "deep lists": odd(b'{"alg":"HS256","x":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "many audiences": odd(HS256, {"iss": "tests", "aud": ["a"] * 2000}),
    "numbers": odd(HS256, b'{"iss":"tests","exp":1e999,"nbf":-1e999}'),
    "an early beginning": token(nbf=2**40),
    "no object": odd(HS256, b'"tests"'),
    "zero bytes": odd(HS256, b'{"iss":"tests\\u0000"}'),
    "28 KiB": "a" * 28_000,
}


@pytest.mark.parametrize("kind", BAD_TOKENS)
async def test_an_odd_token_is_refused(edge, kind):
    """In words, and Envoy serves on."""
    edge.forget()
    # Not under /v2, where headers are bounded by what Triton takes.
    line, body = f"authorization: Bearer {BAD_TOKENS[kind]}", b'{"model": "vision"}'
    status, headers = await ask(edge, CHAT, line, body=body)
    assert (status, headers["x-tidegate-reason"]) == (401, "unauthenticated")
    assert edge.vision.seen == []
    assert (await ask(edge, INFER))[0] == 200


async def test_a_token_beyond_the_bound_of_headers_is_431(edge):
    """With the bound of all headers, 32 KiB."""
    status, headers = await ask(edge, GUARDED, f"authorization: Bearer {'a' * 40_000}")
    assert (status, headers["x-tidegate-reason"]) == (431, "too-large")


async def test_a_page_learns_that_it_needs_a_token(edge):
    """The preflight needs none, and the refusal can be read by the page."""
    edge.forget()
    asks = ("access-control-request-method: POST", "access-control-request-headers: authorization")
    for path in (GUARDED, CHAT):
        status, headers = await ask(edge, path, PAGE, *asks, method="OPTIONS", body=b"")
        assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert "authorization" in headers["access-control-allow-headers"]
        status, headers = await ask(edge, path, PAGE, body=b'{"model": "vision"}')
        assert (status, headers["access-control-allow-origin"]) == (401, "https://a.example")
    assert edge.seen == []


def rss(stack, name):
    """Return the resident memory of a process of the stack, bytes."""
    return int(Path(f"/proc/{stack.supervisor.pid(name)}/statm").read_text().split()[1]) * 4096


async def test_a_bomb_is_not_inflated(edge):
    """100 MB that are sent as 100 KB: neither Envoy nor the picker grows by what they would be."""
    zeros = b'{"model": "toy-llm", "messages": ["' + b"a" * 100_000_000 + b'"]}'
    bombs = {"gzip": gzip.compress(zeros, 9), "deflate": zlib.compress(zeros, 9)}
    bombs["gzip, gzip"] = gzip.compress(bombs["gzip"], 9)
    del zeros
    before = edge.envoy_rss(), rss(edge, PICKER)
    for coding, body in bombs.items():
        for path in (CHAT, INFER):
            lines = (f"content-encoding: {coding}", "content-type: application/json")
            status, _ = await ask(edge, path, *lines, body=body)
            assert status in {200, 400, 413}, coding
    assert edge.envoy_rss() - before[0] < 60e6
    assert rss(edge, PICKER) - before[1] < 60e6
    assert (await ask(edge, INFER))[0] == 200


async def test_each_envoy_counts_by_itself(edge):
    """Two on one address let twice as many requests through, and no more."""
    fleet = edge.first_fleet()
    del fleet["pools"][1]["jwt"]
    fleet["pools"][1]["rate_limit"] = {"requests": 3, "per": "1h"}
    try:
        await edge.start_second_envoy()
        await edge.apply(fleet)
        edge.forget()

        async def used_up() -> bool:
            answers = [(await ask(edge, GUARDED))[0] for _ in range(20)]
            assert set(answers) <= {200, 429}
            return len(edge.vision.seen) >= 6

        assert await eventually(used_up)
        assert [(await ask(edge, GUARDED))[0] for _ in range(30)] == [429] * 30
        assert len(edge.vision.seen) == 6
    finally:
        await edge.supervisor.kill(SECOND_ENVOY)
        await edge.apply(edge.first_fleet())


SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
SAID = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"
NO_PROXY = {
    "none": b"",
    "another word": b"PROXI TCP4 192.0.2.7 192.0.2.1 4711 80\r\n",
    "no addresses": b"PROXY TCP4\r\n",
    "no address": b"PROXY TCP4 a b 1 2\r\n",
    "a large octet": b"PROXY TCP4 999.0.2.7 192.0.2.1 4711 80\r\n",
    "a large port": b"PROXY TCP4 192.0.2.7 192.0.2.1 99999 80\r\n",
    "another family": b"PROXY TCP6 192.0.2.7 192.0.2.1 4711 80\r\n",
    "too long": b"PROXY TCP4 " + b"1" * 200 + b"\r\n",
    "version 3": SIGNATURE + b"\x31\x11\x00\x0c" + b"\xc0\0\2\7" * 3,
    "an unknown command": SIGNATURE + b"\x22\x11\x00\x0c" + b"\xc0\0\2\7" * 3,
    "an unknown family": SIGNATURE + b"\x21\x77\x00\x0c" + b"\xc0\0\2\7" * 3,
    "too short": SIGNATURE + b"\x21\x11\x00\x03abc",
    "a signature with a fault": SIGNATURE[:-1] + b"\r\x21\x11\x00\x0c" + b"\xc0\0\2\7" * 3,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 500,
}


async def test_garbage_in_place_of_the_proxy_header(edge):
    """Such connections are closed unanswered, also those that say nothing; good ones are served."""
    fleet = edge.first_fleet()
    fleet["listener"]["proxy_protocol"] = True
    await edge.apply(fleet)
    try:

        async def told() -> bool:
            return (await ask(edge, INFER, first=SAID))[0] == 200

        assert await eventually(told)
        edge.forget()
        silent = [Raw(edge.listener) for _ in range(30)]
        for number, raw in enumerate(silent):
            await raw.__aenter__()
            await raw.send(SAID[: number % len(SAID)])
        answered = {}
        for name, garbage in NO_PROXY.items():
            status, _ = await ask(edge, INFER, first=garbage)
            if status:
                answered[name] = status
        assert answered == {}
        assert edge.seen == []
        assert await told()

        async def closed() -> bool:
            return all(raw.reader.at_eof() or raw.reader.exception() for raw in silent)

        assert await eventually(closed)
        assert await told()
        for raw in silent:
            raw.writer.close()
    finally:
        await edge.apply(edge.first_fleet())
