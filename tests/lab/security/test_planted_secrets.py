"""Secrets that pass through the system, or that it holds, are shown by no part of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc
import orjson
import pytest
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

from support.identities import Machines
from support.replicas import Replica
from support.secured_stack import GENERATE, SERVERS, Stack, secured_stack
from support.traffic import eventually
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("demo_extra")]

PLANTED: Final = {
    name: f"planted{number}{name}Zq7"
    for number, name in enumerate(
        (
            "bearer",
            "apikey",
            "cookie",
            "session",
            "user",
            "salt",
            "prompt",
            "chat",
            "query",
            "ticket",
            "pick",
            "metadata",
            "tensor",
            "broken",
        )
    )
}
"""What clients send: each value is found nowhere else."""
BREAKS, FAILS = b"break the connection", b"fail with an error"
CHAT = "/v1/chat/completions"
INFER = "/inference.GRPCInferenceService/ModelInfer"
HEADERS = {
    "authorization": f"Bearer {PLANTED['bearer']}",
    "x-api-key": PLANTED["apikey"],
    "cookie": f"sid={PLANTED['cookie']}",
    "x-session-id": PLANTED["session"],
    "x-tidegate-ticket": PLANTED["ticket"],
    "x-gateway-destination-endpoint": PLANTED["pick"],
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


@pytest.fixture(scope="module")
async def stack(tmp_path_factory) -> AsyncIterator[Stack]:
    """Run a stack that logs all it can, over replicas that also fail."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    async with contextlib.AsyncExitStack() as exit_:
        replicas = [Replica(name, breaks_on=BREAKS, fails_on=FAILS) for name in ("u0", "u1")]
        for each in replicas:
            await exit_.enter_async_context(each.serve())
        started = await exit_.enter_async_context(
            secured_stack(
                machines,
                "nghttp2",
                upstreams=[each.address for each in replicas],
                pool={"routing": {"max_body": 4096, "body": "full", "policy": "session-sticky"}},
                log_level="debug",
            )
        )
        yield started


def bodies() -> Iterator[tuple[str, bytes]]:
    """Return paths and bodies of requests that are served, refused and failed."""
    prompt = {"text_input": PLANTED["prompt"] * 20, "max_tokens": 1}
    user = {"user": PLANTED["user"], "cache_salt": PLANTED["salt"]}
    chat = {"model": "toy-llm", "messages": [{"role": "user", "content": PLANTED["chat"]}], **user}
    unknown = f"/v2/models/none/generate?token={PLANTED['query']}"
    yield from ((GENERATE, orjson.dumps(prompt)), (CHAT, orjson.dumps(chat)))
    yield f"{GENERATE}?token={PLANTED['query']}", orjson.dumps(prompt)
    yield unknown, orjson.dumps(prompt)
    yield GENERATE, orjson.dumps({**prompt, "why": FAILS.decode()})
    yield GENERATE, orjson.dumps({**prompt, "why": BREAKS.decode()})
    yield GENERATE, f'{{"text_input": "{PLANTED["broken"]}'.encode()
    yield GENERATE, orjson.dumps({"text_input": [PLANTED["broken"]], "max_tokens": {}})
    yield CHAT, orjson.dumps({**chat, "messages": PLANTED["broken"], "model": 7})
    yield GENERATE, orjson.dumps({**prompt, "text_input": PLANTED["prompt"] * 2000})
    yield "/v2/nowhere", PLANTED["broken"].encode()
    yield "/debug/state", b""


async def send_all(stack: Stack) -> list[str]:
    """Send all requests; return what was answered to those that no replica served."""
    refusals = []
    for path, body in bodies():
        for more in ({}, {"content-encoding": "gzip"}, {"grpc-timeout": PLANTED["metadata"]}):
            url = f"http://{stack.listener}{path}"
            with contextlib.suppress(aiohttp.ClientError):
                async with stack.http.post(url, data=body, headers={**HEADERS, **more}) as answer:
                    refusals.append(f"{answer.headers} {await answer.text()}")
    return refusals


async def call_grpc(stack: Stack) -> list[str]:
    """Make calls whose messages cannot be read; return how they ended."""
    ends = []
    metadata = tuple(HEADERS.items())
    async with grpc.aio.insecure_channel(stack.listener) as channel:
        for data in (PLANTED["tensor"].encode(), b"\x0a\x07toy-llm" + b"\xff" * 40):
            try:
                await channel.unary_unary(INFER)(data, metadata=metadata, timeout=20)
            except grpc.aio.AioRpcError as error:
                ends.append(f"{error.details()} {error.trailing_metadata()}")
    return ends


async def call_admin(stack: Stack) -> list[str]:
    """Make admin calls with a token that nothing asks for; return their errors."""
    ends = []
    metadata = (("authorization", f"Bearer {PLANTED['metadata']}"),)
    for role in ("admin", "reporter"):
        async with stack.machines.client(role).channel(stack.admin) as channel:
            for data in (b"", PLANTED["broken"].encode()):
                path = "/tidegate.admin.v1.Admin/Apply"
                try:
                    await channel.unary_unary(path)(data, metadata=metadata, timeout=20)
                except grpc.aio.AioRpcError as error:
                    ends.append(str(error.details()))
    return ends


async def pages(stack: Stack) -> dict[str, str]:
    """Return every page and dump of the system."""
    found = {}
    context = stack.viewer.context()
    for address, path in (
        (stack.picker_page, "/debug/state"),
        (stack.picker_page, "/debug/explain"),
        (stack.picker_page, "/metrics"),
        (stack.control_page, "/metrics"),
    ):
        async with stack.http.get(f"https://{address}{path}", ssl=context) as answer:
            found[f"{address}{path}"] = await answer.text()
    for path in ("config_dump?include_eds", "clusters", "stats", "certs", "server_info", "runtime"):
        async with stack.http.get(f"http://{stack.envoy_admin}/{path}") as answer:
            found[path] = await answer.text()
    return found


async def answers(stack: Stack) -> dict[str, str]:
    """Return what the admin API tells a reader."""
    found: dict[str, str] = {}
    async with stack.viewer.channel(stack.admin) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        asked: dict[str, Any] = {
            "GetStatus": api.GetStatusRequest(),
            "GetFleet": api.GetFleetRequest(),
            "GetReplicas": api.GetReplicasRequest(),
            "GetTraffic": api.GetTrafficRequest(),
            "GetConfig": api.GetConfigRequest(content=True),
            "Diff": api.DiffRequest(old_revision=1, new_revision=1),
            "ListRevisions": api.ListRevisionsRequest(),
        }
        for name, request in asked.items():
            found[name] = str(await getattr(admin, name)(request))
        status = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel)
        found["CSDS"] = str(await status.FetchClientStatus(csds_pb2.ClientStatusRequest()))
    return found


def files(stack: Stack) -> dict[str, str]:
    """Return what the system has written: logs, revisions, Envoy's bootstrap and secrets."""
    return {
        str(path): path.read_bytes().decode("latin-1")
        for path in stack.run.path.rglob("*")
        if path.is_file()
    }


def keys(stack: Stack) -> set[str]:
    """Return the lines of all private keys."""
    found = [stack.machines.folder.joinpath(name, "tls.key").read_text() for name in SERVERS]
    found.append(stack.machines.authority.own.key.read_text())
    return {line for key in found for line in key.splitlines() if "-----" not in line}


async def test_planted_secrets_are_shown_nowhere(stack: Stack) -> None:
    """Neither in a log or error, nor on a page, in a dump of the configuration or in a revision."""
    before = (await stack.picker_state())["feedback"]["entries"].get("good", 0)
    refusals = await send_all(stack)
    refusals += await call_grpc(stack)
    refusals += await call_admin(stack)

    async def told() -> bool:
        return bool((await stack.picker_state())["feedback"]["entries"].get("good", 0) > before)

    assert await eventually(told)
    await asyncio.sleep(1.5)  # the last log entries and reports of the picker
    shown = {**await pages(stack), **await answers(stack), **files(stack)}
    shown |= {f"answer {number}": text for number, text in enumerate(refusals)}
    assert len(shown) > 30
    secrets = {*PLANTED.values(), *keys(stack)}
    leaks = {(name, each) for name, text in shown.items() for each in secrets if each in text}
    assert not leaks


async def test_a_secret_would_be_found(stack: Stack) -> None:
    """What is no secret is in what was searched: the search finds what is there."""
    shown = {**await pages(stack), **await answers(stack), **files(stack)}
    for name in ("toy-llm", "spiffe://tidegate/envoy", stack.picker):
        assert any(name in text for text in shown.values()), name
