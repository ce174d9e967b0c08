"""Peers at the picker's own port that send too much: memory stays bounded, others are served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import ngh2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.server.h2.held import MIN_LIMIT
from ext_proc.server.service import FIRST_BODY_BYTES
from ext_proc.server.wire import METHOD, SERVICE
from support.control_process import logged, piped
from support.h2peer import HEADERS
from tidegate_common.children import module_command

pytestmark = pytest.mark.timeout(180)

PATH = f"/{SERVICE}/{METHOD}"
MIB = 2**20
SLACK = 64 * MIB
"""Allowed growth beside what is counted: arenas that gRPC and Python keep for reuse."""
FACTOR = 1.5
"""Memory of held bytes by their count: buffers grow ahead, and freed ones leave gaps."""
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass
class Alone:
    """A picker in a process of its own, without a control server."""

    address: str
    pid: int

    def rss(self) -> int:
        """Return its resident memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096

    async def health(self) -> Any:
        """Return the answer to a health check on a new connection."""
        pool = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.address, options=pool) as channel:
            request = health_pb2.HealthCheckRequest(service="liveness")
            return (await health_pb2_grpc.HealthStub(channel).Check(request)).status


@pytest.fixture(params=["grpc", "nghttp2"])
async def picker(request: pytest.FixtureRequest) -> AsyncIterator[Alone]:
    """Run a picker over each transport."""
    free = [word for name in ("listen", "metrics") for word in (f"--{name}", "127.0.0.1:0")]
    options = ("--transport", request.param, "--xds", "127.0.0.1:9", "--log-format", "json")
    process, lines = await piped(module_command("ext_proc", *options, *free))
    started = await logged(lines, "picker_started")
    reading = asyncio.create_task(lines.read())
    yield Alone(started["listen"], process.pid)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await reading


async def unfinished(address: str, size: int) -> asyncio.StreamWriter:
    """Send ``size`` bytes of a message that has one more, on a connection of its own."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
    client.initiate_connection({})
    number = client.send_request(((b":path", PATH.encode()), *HEADERS))
    client.send_data(number, b"\0" + (size + 1).to_bytes(4, "big") + bytes(size))
    while True:
        writer.write(client.data_to_send())
        await writer.drain()
        if not client.queued_body_size(number):
            break
        client.receive_data(await reader.read(MIB))
        if any(isinstance(event, ngh2.StreamClosed) for event in client.events()):
            break
    return writer


async def test_messages_above_the_limit(picker: Alone) -> None:
    """Four messages of 250 MiB are refused at their first bytes."""
    before = picker.rss()
    async with grpc.aio.insecure_channel(picker.address, options=ANY_SIZE) as channel:
        for _ in range(4):
            call: Any = channel.stream_stream(PATH)()
            await call.write(bytes(250 * MIB))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert picker.rss() - before < SLACK
    assert await picker.health() == health_pb2.HealthCheckResponse.SERVING


async def test_a_message_that_inflates(picker: Alone) -> None:
    """A compressed message is refused before it is inflated."""
    before = picker.rss()
    async with grpc.aio.insecure_channel(picker.address, options=ANY_SIZE) as channel:
        call: Any = channel.stream_stream(PATH)(compression=grpc.Compression.Gzip)
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may be refused before all is sent
            await call.write(bytes(200 * MIB))
        # grpc.aio may also end it as INTERNAL, where the message came before the refusal was sent.
        assert await call.code() in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL}
    assert picker.rss() - before < SLACK


@pytest.mark.parametrize("picker", ["nghttp2"], indirect=True)
async def test_unfinished_messages_of_many_connections(picker: Alone) -> None:
    """Each is allowed; together they are bounded, and other peers are served."""
    before, most, writers = picker.rss(), 0, []
    try:
        for _ in range(3 * MIN_LIMIT // FIRST_BODY_BYTES):
            writers.append(await unfinished(picker.address, FIRST_BODY_BYTES))
            most = max(most, picker.rss())
        assert most - before < FACTOR * MIN_LIMIT + SLACK
        with contextlib.suppress(
            grpc.aio.AioRpcError
        ):  # refused where there is no room: it makes some
            await picker.health()
        assert await picker.health() == health_pb2.HealthCheckResponse.SERVING
    finally:
        for writer in writers:
            writer.close()


RESETS = int(os.environ.get("TIDEGATE_COST_RESETS", "12000"))
CHECKS = 20
MIN_CHECKS = 2
"""Checks of which more are answered before the end: the first may come before the flood."""


def rapid_resets(count: int) -> bytes:
    """Return the bytes of so many calls, each reset at once, and a PING."""
    client = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
    client.initiate_connection({})
    out = bytearray()
    for _ in range(count):
        number = client.send_request(((b":path", PATH.encode()), *HEADERS))
        out += client.data_to_send()
        client.reset_stream(number, ngh2.ErrorCode.CANCEL)
        out += client.data_to_send()
    client.ping()
    return bytes(out + client.data_to_send())


@pytest.mark.parametrize("picker", ["nghttp2"], indirect=True)
async def test_rapid_resets_delay_no_other_connection(picker: Alone) -> None:
    """Another connection's health checks are answered one after the other before all is read."""
    host, _, port = picker.address.rpartition(":")
    attack = rapid_resets(RESETS)
    ended = asyncio.Event()

    async def flood() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        peer = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration())
        peer.initiate_connection({})
        peer.data_to_send()
        peer.ping()
        peer.data_to_send()
        writer.write(attack)
        while data := await reader.read(MIB):
            peer.receive_data(data)
            if any(isinstance(each, ngh2.PingAcknowledged) for each in peer.events()):
                break
        ended.set()
        writer.close()

    async with grpc.aio.insecure_channel(picker.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest(service="liveness")
        await check(request)
        flooding = asyncio.create_task(flood())
        took, answered = [], 0
        while not ended.is_set() and (len(took) < CHECKS or RESETS > 12_000):
            begun = asyncio.get_running_loop().time()
            await check(request)
            took.append(asyncio.get_running_loop().time() - begun)
            answered += 1
        assert answered > MIN_CHECKS
        await flooding
    said = f"{RESETS} resets: {len(took)} checks, the longest took {max(took) * 1e3:.0f} ms"
    print(said)  # noqa: T201 - shown with -rP
