"""Changes that are documented as free touch neither connections nor running streams."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from support.replicas import Replica, stack_over
from support.traffic import GENERATE, admin, in_force
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("demo_extra")]

# Forced: what an earlier test did to a replica must not refuse a later change.
OPTIONS = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=20, force=True)
BODY = b'{"text_input": "hello", "max_tokens": 1}'
PINS = {"headers": {"x-pin": "canary"}}


class KeepAlive:
    """One HTTP/1.1 connection that is never opened again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, **headers: str) -> None:
        """Send a request."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {GENERATE} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n{lines}\r\n"
        self.writer.write(head.encode() + BODY)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the next answer."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in raw[1:] if line)
        return int(raw[0].split()[1]), headers

    async def ask(self, **headers: str) -> str:
        """Return the name of the replica that answered; Envoy must keep the connection open."""
        await self.send(**headers)
        status, found = await self.head()
        body = await self.reader.readexactly(int(found["content-length"]))
        assert (status, found.get("connection")) == (200, None), (status, found, body)
        return str(orjson.loads(body)["text_output"])

    async def rest(self) -> bytes:
        """Return the rest of a chunked answer."""
        return await self.reader.readuntil(b"0\r\n\r\n")


@asynccontextmanager
async def connected(stack: Any):
    """Connect to Envoy's listener."""
    host, _, port = stack.http_url.rpartition("//")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield KeepAlive(reader, writer)
    finally:
        writer.close()


async def stats(http, stack, *names: str) -> dict[str, int]:
    """Return counters of Envoy by name."""
    async with http.get(f"http://{stack.envoy_admin}/stats?format=json") as answer:
        page = orjson.loads(await answer.read())["stats"]
    found = {one["name"]: one["value"] for one in page if "value" in one}
    return {name: found.get(name, 0) for name in names}


def pool_of(fleet: dict[str, Any]) -> dict[str, Any]:
    """Return the only pool."""
    pool: dict[str, Any] = fleet["pools"][0]
    return pool


def another_pool(fleet: dict[str, Any]) -> None:
    """Add a pool that shares forms with the first."""
    other = {**pool_of(fleet), "name": "other", "match": {"models": ["other"]}, "default": False}
    fleet["pools"].append(other)


def pin_another(fleet: dict[str, Any]) -> None:
    """Pin a header that clients may not send; ``x-pin`` stays allowed."""
    fleet["listener"]["client_headers"] = ["x-pin"]
    pool_of(fleet)["variants"][0]["match"] = {"headers": {"x-closed": "yes"}}


FREE = {
    "a pin": (
        {"ECDS", "RDS", "POOL"},
        lambda fleet: pool_of(fleet)["variants"][1].update(match=PINS),
    ),
    "a session header": (
        {"ECDS", "RDS", "POOL"},
        lambda fleet: pool_of(fleet).setdefault("routing", {}).update(session_header="x-me"),
    ),
    "the pickers' timeout": ({"ECDS"}, lambda fleet: fleet["pickers"].update(timeout="19s")),
    "another picker": (
        {"EDS", "POOL"},
        lambda fleet: fleet["pickers"]["addresses"].append("127.0.0.1:1"),
    ),
    "a picker less": (
        {"EDS", "POOL"},
        lambda fleet: fleet["pickers"]["addresses"].remove("127.0.0.1:1"),
    ),
    "failing closed": (
        {"ECDS", "POOL"},
        lambda fleet: fleet["pickers"].update(fail_open=False),
    ),
    "another pool": ({"CDS", "EDS", "RDS", "RTDS", "POOL"}, another_pool),
    "headers that clients may not send": ({"ECDS", "POOL"}, pin_another),
}


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_free_changes_touch_no_connection(http, protocol):
    """A long stream ends by itself, and a connection is used before, between and after."""
    stable, canary = Replica("stable"), Replica("canary", "canary")
    async with (
        stack_over(stable, canary, protocol=protocol) as stack,
        admin(stack) as operator,
        connected(stack) as streaming,
        connected(stack) as kept,
    ):
        fleet = stack.read_fleet()
        pool_of(fleet)["variants"] = [{"name": "stable"}, {"name": "canary", "weight": 0}]
        await operator.Apply(
            admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
        )
        stable.gaps_s, stable.ends = (0.05,) * 20, asyncio.Event()
        await streaming.send()
        assert (await streaming.head())[0] == 200
        stable.gaps_s = ()
        before = await stats(http, stack, "listener_manager.listener_modified")
        for name, (channels, change) in FREE.items():
            assert await kept.ask() == "stable", name
            change(fleet)
            result = await operator.Apply(
                admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
            )
            await in_force(stack, result)
            # What a late client takes after the change has ended is not counted.
            assert result.problems or set(result.channels) == channels, name
            assert await kept.ask() == "stable", name
            assert await kept.ask(**{"x-pin": "canary"}) == "canary", name
            if "x-closed" in str(fleet):
                assert await kept.ask(**{"x-closed": "yes"}) == "stable"
                assert "x-closed" not in stable.asked[-1]
        stable.ends.set()
        assert (await streaming.rest()).count(b"more") == 20
        assert await stats(http, stack, "listener_manager.listener_modified") == before


@pytest.mark.parametrize("field", ["address", "buffer_bytes"])
async def test_a_stream_outlives_a_change_that_drains(http, field):
    """It ends by itself; its connection serves no further request, a new one does."""
    one = Replica("one")
    one.gaps_s, one.ends = (0.05,) * 20, asyncio.Event()
    with HeldPorts() as ports:
        async with (
            stack_over(one) as stack,
            admin(stack) as operator,
            connected(stack) as streaming,
            connected(stack) as kept,
        ):
            await streaming.send()
            assert (await streaming.head())[0] == 200
            one.gaps_s = ()
            await kept.ask()
            fleet = stack.read_fleet()
            new = {"address": ports.address(), "buffer_bytes": 1 << 20}[field]
            fleet["listener"][field] = new
            result = await operator.Apply(
                admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
            )
            assert f"drains the listener's connections: listener.{field}" in result.changes
            await kept.send()
            status, headers = await kept.head()
            assert (status, headers.get("connection")) == (200, "close")
            url = f"http://{new}" if field == "address" else stack.http_url
            async with http.post(f"{url}{GENERATE}", data=BODY) as answer:
                assert answer.status == 200
            one.ends.set()
            assert (await streaming.rest()).count(b"more") == 20


async def test_the_picker_follows_settings_of_its_filter(http):
    """New settings apply to the next request of the same connection."""
    one = Replica("one")
    name = "extension_config_discovery.http_filter.envoy.filters.http.ext_proc.config_reload"
    async with stack_over(one) as stack, admin(stack) as operator, connected(stack) as kept:
        await kept.ask(**{"tidegate-pool": "absent"})  # stripped, so that it chooses nothing
        assert "tidegate-pool" not in one.asked[-1]
        before = await stats(http, stack, name)
        fleet = stack.read_fleet()
        fleet["listener"]["client_headers"] = ["tidegate-pool"]
        fleet["pickers"]["fail_open"] = False
        await operator.Apply(
            admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
        )
        await kept.ask(**{"tidegate-pool": "llm"})
        assert one.asked[-1]["tidegate-pool"] == "llm"
        assert (await stats(http, stack, name))[name] == before[name] + 1
