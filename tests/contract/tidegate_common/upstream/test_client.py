"""Requests to replicas: what is read, what is bounded, and what each fault is called."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from aiohttp import web

from tidegate_common.upstream.client import AskError, AskFault, ReplicaClient, url_at
from tidegate_common.upstream.contexts import ReplicaTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LONG_S = 60.0


@asynccontextmanager
async def replica() -> AsyncIterator[tuple[str, list[web.Request]]]:
    """Run a replica with a page, a redirect and a path that never answers."""
    seen: list[web.Request] = []
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        seen.append(request)
        if request.path == "/moved":
            raise web.HTTPFound("/page")
        if request.path == "/never":
            await over.wait()
        return web.Response(body=b"x" * 100, headers={"set-cookie": "a=b"})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        over.set()
        await runner.cleanup()


async def fault_of(
    client: ReplicaClient,
    url: str,
    *,
    timeout_s: float = LONG_S,
    max_bytes: int = 0,
    tls: ReplicaTls | None = None,
) -> AskFault:
    """Return what a replica does in place of an answer."""
    with pytest.raises(AskError) as error:
        async with client.turn(timeout_s) as turn:
            await turn.http("GET", url, tls=tls, max_bytes=max_bytes)
    return error.value.fault


@contextmanager
def one_answer(goes_on: threading.Event) -> Iterator[tuple[str, threading.Event]]:
    """Run a replica in a thread that answers once, when told to; yield when it was asked, too."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                asked.set()
                goes_on.wait()
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join()


@pytest.mark.parametrize("answers", [True, False])
async def test_an_answer_that_came_while_this_process_did_not_run_is_in_time(answers: bool) -> None:
    """It lies in the socket when the limit is noticed; without one the replica is late."""
    goes_on = threading.Event()
    with one_answer(goes_on) as (address, asked):
        async with ReplicaClient(1) as client:

            async def ask() -> int | AskFault:
                try:
                    async with client.turn(1.0) as turn:
                        return (await turn.http("GET", url_at(address, "/", None))).status
                except AskError as error:
                    return error.fault

            asking = asyncio.create_task(ask())
            while not asked.is_set():  # noqa: ASYNC110 - an event of another thread
                await asyncio.sleep(0)
            if answers:
                goes_on.set()
            time.sleep(1.5)  # noqa: ASYNC251 - this process stands still
            assert await asking == (200 if answers else AskFault.LATE)
        goes_on.set()


async def test_an_answer_is_read_up_to_its_bound_and_nothing_is_followed() -> None:
    """Neither redirects, nor cookies, nor codings of the content."""
    async with replica() as (address, seen), ReplicaClient(2) as client:
        page, moved = url_at(address, "/page", None), url_at(address, "/moved", None)
        async with client.turn(LONG_S) as turn:
            assert (await turn.http("GET", page)).body == b""
            assert (await turn.http("GET", page, max_bytes=100)).body == b"x" * 100
            assert (await turn.http("GET", moved)).status == 302
        assert await fault_of(client, page, max_bytes=99) is AskFault.TOO_LARGE
        assert all(each.headers["accept-encoding"] == "identity" for each in seen)
        assert not any(each.cookies for each in seen)
        assert [each.path for each in seen] == ["/page", "/page", "/moved", "/page"]


async def test_each_fault_has_its_name() -> None:
    """A closed port, silence, plain text where TLS is due, and files that are not there."""
    async with replica() as (address, _), ReplicaClient(2) as client:
        assert await fault_of(client, "http://127.0.0.1:1/") is AskFault.REFUSED
        never = url_at(address, "/never", None)
        assert await fault_of(client, never, timeout_s=0.05) is AskFault.LATE
        secure, tls = url_at(address, "/page", ReplicaTls()), ReplicaTls()
        assert await fault_of(client, secure, tls=tls) is AskFault.UNTRUSTED
        missing = ReplicaTls("/nowhere/ca.crt")
        assert await fault_of(client, secure, tls=missing) is AskFault.NO_FILES
        with pytest.raises(AskError) as error:
            async with client.turn(LONG_S) as turn, turn.channel("127.0.0.1:1", max_bytes=9) as far:
                await far.call("/a.B/C", b"")
        assert error.value.fault is AskFault.REFUSED


async def test_a_grpc_status_of_the_replica_is_an_answer() -> None:
    """It says what the replica means, so it is no fault."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        ReplicaClient(1) as client,
        client.turn(LONG_S) as turn,
        turn.channel(f"127.0.0.1:{port}", max_bytes=9) as far,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await far.call("/a.B/C", b"")
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_turns_are_bounded_and_waiting_for_one_is_no_time_of_a_replica() -> None:
    """A turn that waits for another keeps its whole time."""
    async with ReplicaClient(1) as client:
        open_ = asyncio.Event()

        async def second() -> None:
            async with client.turn(LONG_S):
                open_.set()

        async with client.turn(LONG_S):
            waiting = asyncio.create_task(second())
            await asyncio.sleep(0)
            assert not open_.is_set()
        await waiting
        assert open_.is_set()
