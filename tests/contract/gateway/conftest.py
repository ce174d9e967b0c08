"""Replicas on loopback that answer as a test says, and what asks them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from gateway.asking import AT_ONCE, Asker
from gateway.changes import ModelDrains, ReplicaChanges
from gateway.grpc_answers import GrpcAnswers
from gateway.http_answers import HttpAnswers
from gateway.ports import GatewayCalls, serve_grpc
from gateway.questions import Questions
from gateway.streams.watches import StreamAnswers
from support.time import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Act = Callable[[str, asyncio.StreamWriter], Awaitable[None]]

ANSWER_S = 50.0
"""Seconds for a replica's answer: passed only by the clock that a test moves."""


def saying(status: int = 200, body: Any = None, raw: bytes | None = None) -> Act:
    """Return a replica that answers every request with this."""

    async def act(_: str, writer: asyncio.StreamWriter) -> None:
        data = orjson.dumps(body) if raw is None else raw
        head = f"HTTP/1.1 {status} said\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    return act


class Lab:
    """Replicas ``r1``, ``r2``, ... of one pool, and a gateway's answers over them."""

    def __init__(self, stack: AsyncExitStack, asker: Asker) -> None:
        self._stack = stack
        self.now = 0.0
        self.questions = Questions(asker, 50.0, lambda: self.now)
        self.changes = ReplicaChanges(self.questions, ModelDrains(None))
        self.calls = GatewayCalls(
            HttpAnswers(self.questions),
            GrpcAnswers(self.questions),
            self.changes,
            StreamAnswers(self.questions, ANSWER_S, self.pause),
            timeout_s=ANSWER_S,
            change_timeout_s=ANSWER_S,
        )
        self._asker, self._clock = asker, Clock()
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        """Lets a watch look once more, for each entry."""
        self.asked: list[tuple[str, str]] = []
        """Replica and request line of each request."""
        self.endpoints: list[Endpoint] = []

    async def asked_of(self, count: int) -> None:
        """Wait until replicas have so many requests."""
        await self._clock.until(lambda: len(self.asked) == count)

    async def let_answers_be_late(self, count: int) -> None:
        """Let the time for answers pass once exactly ``count`` of them are missing."""
        await self._clock.until(lambda: AT_ONCE - self._asker.places._value == count)
        self._clock.advance(ANSWER_S)

    async def pause(self, seconds: float) -> None:
        """Wait until a test lets a watch go on; the time has then passed."""
        await self.looks.get()
        self.now += seconds

    async def replicas(self, *acts: Act, **more: Any) -> None:
        """Start replicas and put them in force as the pool ``p``."""
        for number, act in enumerate(acts, len(self.endpoints) + 1):
            address = await self._serve(f"r{number}", act)
            key = EndpointKey(f"r{number}", 1)
            self.endpoints.append(Endpoint(key, "stable", address, None))
        self.put(**more)

    def put(self, **more: Any) -> None:
        """Put the replicas in force."""
        variants = (Variant("stable", 1, probe_path="/v2/models/m/ready"),)
        given = {"models": frozenset({"m"}), "variants": variants, **more}
        self.questions.set_pools({"p": Pool("p", endpoints=tuple(self.endpoints), **given)})

    async def _serve(self, name: str, act: Act) -> str:
        tasks: set[asyncio.Task[Any]] = set()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                tasks.add(task)
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    self.asked.append((name, head.split(b"\r\n")[0].decode()))
                    length = [
                        int(line.split(b":")[1])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ]
                    await reader.readexactly(length[0] if length else 0)
                    await act(name, writer)
                    await writer.drain()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)

        async def stop() -> None:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._stack.push_async_callback(stop)
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"


@asynccontextmanager
async def channel(lab: Lab, *, admin: bool = False, **more: Any) -> AsyncIterator[Any]:
    """Serve the gateway over gRPC; return a channel to it."""
    given = {"secured": None, "on_refused": lambda *_: None, "option": "grpc", **more}
    async with (
        serve_grpc(lab.calls, "127.0.0.1:0", admin=admin, **given) as address,
        grpc.aio.insecure_channel(address) as made,
    ):
        yield made


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """Return an empty laboratory."""
    async with AsyncExitStack() as stack:
        yield Lab(stack, await stack.enter_async_context(Asker()))
