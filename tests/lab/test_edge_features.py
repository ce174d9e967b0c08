"""What the edge does for clients beside routing, each through a real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json

import pytest

from support.edge_stack import CHAT, EdgeStack
from support.sockets import Raw, head
from support.traffic import eventually

pytestmark = pytest.mark.timeout(180)

INFER = "/v2/models/toy-llm/infer"
PAGE = "origin: https://a.example"
FILTERS = "type.googleapis.com/envoy.extensions.filters.http."
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
ONLY_INSIDE = {
    "policies": {
        "inside": {
            "permissions": [{"any": True}],
            "principals": [{"direct_remote_ip": {"address_prefix": "10.0.0.0", "prefix_len": 8}}],
        }
    }
}


@pytest.fixture(scope="module")
async def edge(demo_extra):  # noqa: ARG001 - skips first
    """Run a stack with web pages, compression, filters and a patch."""
    async with EdgeStack(
        listener={
            "cors": {"origins": ["https://a.example"], "expose": ["x-tidegate-reason"]},
            "compression": {"min_bytes": 30, "algorithms": ["gzip"]},
            "connections": {"max_requests": 3, "tcp_keepalive": "30s", "h2_keepalive": "10s"},
            "http_filters": {
                "before": [
                    {
                        "name": "faults",
                        "config": {
                            "@type": FILTERS + "fault.v3.HTTPFault",
                            "abort": {"header_abort": {}, "percentage": {"numerator": 100}},
                        },
                    }
                ],
                "after": [{"name": "rules", "config": {"@type": FILTERS + "rbac.v3.RBAC"}}],
            },
            "patch": [{"@type": MANAGER, "server_name": "the-edge"}],
        },
        vision={
            "http_filters": {
                "rules": {
                    "@type": FILTERS + "rbac.v3.RBACPerRoute",
                    "rbac": {"rules": ONLY_INSIDE},
                }
            }
        },
    ) as stack:
        yield stack


@pytest.fixture(autouse=True)
def forgotten(edge):
    """Begin each test with nothing seen."""
    edge.forget()


async def answer(raw):
    """Read one response."""
    top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
    pairs = (line.partition(":") for line in top.splitlines()[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await raw.reader.readline(), 16):
            body += (await raw.reader.readexactly(size + 2))[:-2]
        await raw.reader.readline()
    else:
        body = await raw.reader.readexactly(int(headers.get("content-length", "0")))
    return int(top.split(" ", 2)[1]), headers, body


async def ask(stack, path, *lines, body=b"{}", method="POST", first=b""):
    """Send one request on a connection of its own."""
    async with Raw(stack.listener) as raw:
        length = f"content-length: {len(body)}"
        await raw.send(first + head(path, length, *lines, method=method), body)
        return await answer(raw)


async def test_a_page_asks_first_and_reads_the_answer(edge):
    """The preflight reaches no replica; another origin gets neither."""
    question = ("access-control-request-method: POST",)
    status, headers, _ = await ask(edge, CHAT, PAGE, *question, method="OPTIONS", body=b"")
    assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
    assert headers["access-control-allow-methods"] == "GET, POST"
    assert edge.seen == []
    for path in (CHAT, INFER, "/v2/repository/index", "/nothing"):
        other = ("origin: https://b.example", *question, "x-tidegate-sent: llm/stable/http")
        _, headers, _ = await ask(edge, path, *other, method="OPTIONS", body=b"")
        assert "access-control-allow-origin" not in headers
    assert edge.seen == []
    _, headers, _ = await ask(edge, INFER, PAGE)
    assert headers["access-control-allow-origin"] == "https://a.example"


async def test_a_page_reads_refusals_too(edge):
    """Those of the picker, and those of a filter behind it."""
    vision = b'{"messages": [], "model": "vision"}'
    for expected, body in ((404, b'{"model": "absent"}'), (403, vision)):
        status, headers, _ = await ask(edge, CHAT, PAGE, body=body)
        assert status == expected
        assert headers["access-control-allow-origin"] == "https://a.example"
        assert headers["access-control-expose-headers"] == "x-tidegate-reason"


async def test_json_is_compressed_for_those_who_accept_it(edge):
    """Others get it as it is."""
    long = INFER + "?" + "a" * 200
    _, headers, body = await ask(edge, long, "accept-encoding: gzip")
    assert headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["reached"].startswith(INFER)
    _, headers, body = await ask(edge, long)
    assert "content-encoding" not in headers
    assert json.loads(body)["reached"].startswith(INFER)


async def test_a_connection_ends_after_its_requests(edge):
    """With the last answer, which is complete; a new connection goes on."""
    async with Raw(edge.listener) as raw:
        for number in range(3):
            await raw.send(head(INFER, "content-length: 2"), b"{}")
            status, headers, _ = await answer(raw)
            assert (status, headers.get("connection")) == (200, "close" if number == 2 else None)
        assert await asyncio.wait_for(raw.reader.read(), 30) == b""


async def test_a_filter_before_the_picker_sees_every_request(edge):
    """Also one whose body names the pool; its refusals have a dialect."""
    for path in (INFER, CHAT, "/v2/models/vision/infer"):
        status, headers, _ = await ask(edge, path, "x-envoy-fault-abort-request: 401")
        assert (status, headers["x-tidegate-reason"]) == (401, "unauthenticated")
    assert edge.seen == []


async def test_a_filter_after_the_picker_guards_a_pool(edge):
    """However the pool is named; other pools do not know it."""
    named = b'{"messages": [], "model": "vision"}'
    for path, lines, body in (
        ("/v2/models/vision/infer", (), b"{}"),
        (CHAT, (), named),
        (CHAT, ("tidegate-model: vision",), named),
    ):
        status, headers, _ = await ask(edge, path, *lines, body=body)
        assert (status, headers["x-tidegate-reason"]) == (403, "forbidden")
    assert edge.vision.seen == []
    assert (await ask(edge, INFER))[0] == 200


async def test_a_patch_is_in_force(edge):
    """The name of the server is Envoy's own otherwise."""
    _, headers, _ = await ask(edge, "/nothing")
    assert headers["server"] == "the-edge"


async def test_rates_are_limited_for_all_and_for_a_pool(edge):
    """Before the picker is asked, and once it has chosen; 429 says when to try again."""
    fleet = edge.first_fleet()
    fleet["pools"][0]["rate_limit"] = {"requests": 2, "per": "1h"}
    del fleet["pools"][1]["http_filters"]
    await edge.apply(fleet)
    try:
        named = b'{"messages": [], "model": "%s"}'
        statuses = []
        for path, body in ((INFER, b"{}"), (CHAT, named % b"toy-llm")) * 2:
            status, headers, _ = await ask(edge, path, body=body)
            statuses.append(status)
        assert statuses == [200, 200, 429, 429]
        assert (headers["x-tidegate-reason"], headers["retry-after"]) == ("saturated", "1")
        assert len(edge.llm.seen) == 2
        assert (await ask(edge, CHAT, body=named % b"vision"))[0] == 200
        fleet["listener"]["rate_limit"] = {"requests": 1, "per": "1h"}
        await edge.apply(fleet)
        assert [(await ask(edge, "/v2/models/vision/infer"))[0] for _ in range(2)] == [200, 429]
    finally:
        await edge.apply(edge.first_fleet())


async def test_a_load_balancer_says_who_the_client_is(edge):
    """A connection without the header is closed, and its request reaches no replica."""
    fleet = edge.first_fleet()
    fleet["listener"]["proxy_protocol"] = True
    await edge.apply(fleet)
    try:
        said = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"

        async def told() -> bool:
            edge.forget()
            status, _, _ = await ask(edge, INFER, first=said)
            return status == 200

        assert await eventually(told)
        assert edge.llm.headers[-1]["X-Forwarded-For"] == "192.0.2.7"
        edge.forget()
        async with Raw(edge.listener) as raw:
            with contextlib.suppress(ConnectionResetError):
                await raw.send(head(INFER, "content-length: 2"), b"{}")
                assert await asyncio.wait_for(raw.reader.read(), 30) == b""
        assert edge.seen == []
    finally:
        await edge.apply(edge.first_fleet())


async def test_an_old_connection_takes_no_further_requests(edge):
    """It is told by a header with its last answer, so that nothing is cut."""
    fleet = edge.first_fleet()
    fleet["listener"]["connections"] = {"max_duration": "500ms"}
    await edge.apply(fleet)

    async def told() -> bool:
        served = False
        try:
            async with Raw(edge.listener) as raw:
                said = None
                while said != "close":
                    await raw.send(head(INFER, "content-length: 2"), b"{}")
                    status, headers, _ = await answer(raw)
                    assert status == 200
                    served, said = True, headers.get("connection")
                    await asyncio.sleep(0.05)
                assert await asyncio.wait_for(raw.reader.read(), 30) == b""
                return True
        except (ConnectionError, asyncio.IncompleteReadError):
            assert not served  # the kernel resets what arrives while the socket is replaced
            return False

    try:
        assert await eventually(told)
    finally:
        await edge.apply(edge.first_fleet())
