"""Asks many replicas one question at a time, over HTTP or gRPC.

Rules:

1. Each replica has the question's time limit. One that is late, closes the connection or sends more
   than ``MAX_ANSWER`` bytes has a fault; it never delays the others, nor the answer any longer.
   Nor do the answers to one question have more than ``MAX_TOTAL`` bytes together: further ones are
   too large.
2. At most ``AT_ONCE`` replicas are asked at one time by all questions together, over HTTP and over
   gRPC; waiting counts into the time limit.
3. Redirects are answers like others: a replica sends a gateway nowhere.
4. Channels are kept for the replicas of the newest pools, at most ``MAX_CHANNELS``.
5. Replicas of a pool with TLS are asked over TLS (``ReplicaContexts``), over gRPC through a tunnel
   that is kept with the channel. One that is not trusted, or cannot be asked because files cannot
   be used here, is unreachable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc
import yarl

from gateway.merge.answers import Fault, Said
from tidegate_common.upstream.client import (
    OK,
    AskError,
    AskFault,
    ReplicaChannel,
    ReplicaClient,
    url_at,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from gateway.targets import AskedReplica
    from tidegate_common.upstream.client import ReplicaTurn
    from tidegate_common.upstream.contexts import ReplicaTls

    Far = tuple[str, ReplicaTls | None]
    """``ip:port`` of a replica and its TLS."""

AT_ONCE: Final = 64
MAX_ANSWER: Final = 4 * 2**20
MAX_TOTAL: Final = 32 * 2**20
MAX_CHANNELS: Final = 1024
_CODES: Final[dict[grpc.StatusCode, Fault]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.CANCELLED: "unreachable",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too-large",
}
_FAULTS: Final[dict[AskFault, Fault]] = {
    AskFault.LATE: "timeout",
    AskFault.TOO_LARGE: "too-large",
}


class _Budget:
    """Bytes that the answers to one question may still have."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_TOTAL

    def takes(self, count: int) -> bool:
        """Return whether as many more are allowed, and count them."""
        self._left -= count
        return self._left >= 0


class Asker(ReplicaClient):
    """Connections to replicas; an async context manager. See the module's rules."""

    def __init__(self) -> None:
        super().__init__(AT_ONCE, keep_s=5.0)
        self._channels: dict[Far, ReplicaChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *_: object) -> None:
        """Close all connections and channels."""
        await super().__aexit__()
        self.keep(())
        await asyncio.gather(*self._closing)

    @property
    def channels(self) -> int:
        """Number of open gRPC channels."""
        return len(self._channels)

    def keep(self, wanted: Collection[Far]) -> None:
        """Close the channels to all others."""
        for far in [each for each in self._channels if each not in wanted]:
            self._drop(far)

    async def over_http(
        self,
        targets: Sequence[AskedReplica],
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> list[Said]:
        """Send one request to each target and return the answers in the targets' order.

        Args:
            targets: The replicas.
            method: HTTP method.
            path: Path and query as they are to stand in the request.
            body: Body.
            headers: Headers.
            timeout_s: Seconds for each.
        """
        left = _Budget()

        async def ask(target: AskedReplica, turn: ReplicaTurn) -> Said:
            url = url_at(target.address, target.path(path), target.tls)
            status, read, kind = await turn.http(
                method,
                yarl.URL(url, encoded=True),
                tls=target.tls,
                body=body,
                headers=headers,
                max_bytes=MAX_ANSWER,
                takes=left.takes,
            )
            return Said(target.key.id, status, read, kind, good=status == OK)

        return await self._all(targets, ask, timeout_s)

    async def over_grpc(
        self, targets: Sequence[AskedReplica], method: str, message: bytes, *, timeout_s: float
    ) -> list[Said]:
        """Make one unary call to each target and return the answers in the targets' order.

        Args:
            targets: The replicas.
            method: Its path, ``/package.Service/Method``.
            message: The serialized request.
            timeout_s: Seconds for each.
        """
        left = _Budget()

        async def ask(target: AskedReplica, turn: ReplicaTurn) -> Said:
            name = target.key.id
            await turn.check(target.tls)
            channel = self._channel((target.address, target.tls))
            try:
                body = await channel.call(method, target.message(message), timeout_s)
            except grpc.aio.AioRpcError as error:
                fault = _CODES.get(error.code())
                return Said(name, error.code().value[0], b"", error.details() or "", fault)
            if not left.takes(len(body)):
                return Said(name, fault="too-large")
            return Said(name, 0, body, good=True)

        return await self._all(targets, ask, timeout_s)

    async def _all(
        self,
        targets: Sequence[AskedReplica],
        ask: Callable[[AskedReplica, ReplicaTurn], Awaitable[Said]],
        timeout_s: float,
    ) -> list[Said]:
        async def one(target: AskedReplica) -> Said:
            try:
                async with asyncio.timeout(timeout_s), self.turn(timeout_s) as turn:
                    return await ask(target, turn)
            except TimeoutError:  # it waited for its turn, too
                return Said(target.key.id, fault="timeout")
            except AskError as error:
                return Said(target.key.id, fault=_FAULTS.get(error.fault, "unreachable"))

        return list(await asyncio.gather(*map(one, targets)))

    def _channel(self, far: Far) -> ReplicaChannel:
        found = self._channels.pop(far, None)
        if found is None:
            found = ReplicaChannel(*far, self.contexts, MAX_ANSWER)
            while len(self._channels) >= MAX_CHANNELS:
                self._drop(next(iter(self._channels)))
        self._channels[far] = found  # the last one is the last used
        return found

    def _drop(self, far: Far) -> None:
        task = asyncio.create_task(self._channels.pop(far).close(1.0))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
