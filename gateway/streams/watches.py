"""Watches of the gateway's readiness (``grpc.health.v1.Health/Watch``), and streams of reflection.

Rules:

1. A watcher gets the readiness of the pools in its sight at once, and then what ``Check`` says anew
   each ``LOOK_S`` seconds if that has changed. If it has not for ``REPEAT_S`` seconds it is said
   again, so that no proxy takes the stream for dead, and one that is dead ends.
2. Nothing is queued: while a watcher does not read, no look is made for it, and it then gets the
   newest. Watchers of the same pools share their looks (``Questions.ready``).
3. At most ``MAX_WATCHES`` watches and ``MAX_REFLECTIONS`` reflections are open at one time, of all
   ports together; further ones are refused at once with RESOURCE_EXHAUSTED.
4. A reflection ends after ``MAX_REQUESTS`` requests, or ``IDLE_S`` seconds without one. A peer that
   does not take a message for ``IDLE_S`` seconds loses its stream.

Source: grpc ``doc/health-checking.md`` and ``doc/server-reflection.md``. As in Triton's ``Check``
the name of a service makes no difference; the gateway's own is always served.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gateway.streams.reflection import VERSIONS, Reflection
from tidegate_api.names import GATEWAY_SERVICE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from gateway.questions import Questions, Scope

MAX_WATCHES: Final = 256
MAX_REFLECTIONS: Final = 32
MAX_REQUESTS: Final = 1_000
LOOK_S: Final = 1.0
REPEAT_S: Final = 60.0
IDLE_S: Final = 60.0
WATCH: Final = "/grpc.health.v1.Health/Watch"
REFLECTIONS: Final = {
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo": version
    for version in VERSIONS
}
STREAMS: Final = (WATCH, *REFLECTIONS)
"""Paths of the calls that are streams."""
_DESCRIPTORS: Final = Path(__file__).with_name("services.binpb")
_STATUS: Final = health_pb2.HealthCheckResponse


class StreamAnswers:
    """Answers the calls that are streams.

    Args:
        questions: Knows the readiness.
        timeout_s: Seconds that a look waits for replicas.
        sleep: Waits for seconds.
    """

    def __init__(
        self,
        questions: Questions,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._questions = questions
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._reflections: dict[str, Reflection] = {}
        self.open = {"watch": 0, "reflection": 0}
        """Open streams by kind."""

    async def watch(self, message: bytes, context: Any, scope: Scope) -> None:
        """Tell a watcher the readiness until its call ends."""
        with _place(self.open, "watch", MAX_WATCHES) as free:
            if not free:
                await _abort_full(context, f"{MAX_WATCHES} watches are open already; use Check")
            try:
                service = health_pb2.HealthCheckRequest.FromString(message).service
            except DecodeError:
                service = ""
            async with contextlib.aclosing(self.readiness(service, scope)) as changes:
                async for serving in changes:
                    status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
                    await _send(context, _STATUS(status=status).SerializeToString())

    async def readiness(self, service: str, scope: Scope) -> AsyncGenerator[bool, None]:
        """Yield whether the fleet is ready: at once, when it changes, and each ``REPEAT_S``."""
        given = scope._replace(endpoint="", timeout_s=self._timeout_s)
        told: bool | None = None
        since_s = 0.0
        while True:
            serving = service == GATEWAY_SERVICE or (await self._questions.ready(given)).ready
            if serving != told or since_s >= REPEAT_S:
                yield serving
                told, since_s = serving, 0.0
            await self._sleep(LOOK_S)
            since_s += LOOK_S

    async def reflect(self, path: str, context: Any) -> None:
        """Answer the requests of one of ``REFLECTIONS`` until its call ends."""
        with _place(self.open, "reflection", MAX_REFLECTIONS) as free:
            if not free:
                await _abort_full(context, f"{MAX_REFLECTIONS} reflections are open already")
            reflection = self._reflection(REFLECTIONS[path])
            for _ in range(MAX_REQUESTS):
                try:
                    async with asyncio.timeout(IDLE_S):
                        message = await context.read()
                except TimeoutError:
                    await context.abort(
                        grpc.StatusCode.DEADLINE_EXCEEDED, f"no request for {IDLE_S:.0f} s"
                    )
                if message is grpc.aio.EOF:
                    return
                await _send(context, reflection.answer(message))
            await _abort_full(context, f"{MAX_REQUESTS} requests are answered; open another stream")

    def _reflection(self, version: str) -> Reflection:
        made = self._reflections.get(version)
        if made is None:
            made = self._reflections[version] = Reflection(_DESCRIPTORS.read_bytes(), version)
        return made


@contextlib.contextmanager
def _place(taken: dict[str, int], kind: str, most: int) -> Iterator[bool]:
    """Yield whether a place is free, and hold it."""
    if taken[kind] >= most:
        yield False
        return
    taken[kind] += 1
    try:
        yield True
    finally:
        taken[kind] -= 1


async def _send(context: Any, message: bytes) -> None:
    try:
        async with asyncio.timeout(IDLE_S):
            await context.write(message)
    except TimeoutError:
        await _abort_full(context, f"no message was taken for {IDLE_S:.0f} s")


async def _abort_full(context: Any, text: str) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
