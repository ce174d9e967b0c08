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
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import aiohttp
import grpc
import yarl

from gateway.merge.answers import Fault, Said
from tidegate_common.upstream.contexts import ReplicaContexts
from tidegate_common.upstream.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from gateway.targets import AskedReplica
    from tidegate_common.upstream.contexts import ReplicaTls

    Far = tuple[str, ReplicaTls | None]
    """``ip:port`` of a replica and its TLS."""

AT_ONCE: Final = 64
MAX_ANSWER: Final = 4 * 2**20
MAX_TOTAL: Final = 32 * 2**20
MAX_CHANNELS: Final = 1024
_CHUNK: Final = 64 * 1024
_OK: Final = 200
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # Channels to one address do not share a connection with those of others in the process.
    ("grpc.use_local_subchannel_pool", 1),
)
_FAULTS: Final[dict[grpc.StatusCode, Fault]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.CANCELLED: "unreachable",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "too-large",
}


class _Kept(NamedTuple):
    channel: grpc.aio.Channel
    tunnel: Tunnel | None

    async def close(self) -> None:
        await self.channel.close(1.0)
        if self.tunnel is not None:
            await self.tunnel.close()


class _Budget:
    """Bytes that the answers to one question may still have."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_TOTAL

    def takes(self, count: int) -> bool:
        """Return whether as many more are allowed, and count them."""
        self._left -= count
        return self._left >= 0


class Asker:
    """Connections to replicas; an async context manager. See the module's rules."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self._channels: dict[Far, _Kept] = {}
        self._contexts = ReplicaContexts()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=5.0)
        self._session = aiohttp.ClientSession(
            connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        self.keep(())
        await asyncio.gather(*self._closing)

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session, while the context is open."""
        if self._session is None:
            raise RuntimeError("enter the asker first")
        return self._session

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

        async def ask(target: AskedReplica) -> Said:
            options = await self._contexts.options(target.tls)
            scheme = "https" if options else "http"
            url = yarl.URL(f"{scheme}://{target.address}{target.path(path)}", encoded=True)
            name = target.key.id
            async with self.session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False, **options
            ) as answer:
                read = bytearray()
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    read += chunk
                    if len(read) > MAX_ANSWER or not left.takes(len(chunk)):
                        return Said(name, fault="too-large")
                kind = answer.headers.get("content-type", "")
                return Said(name, answer.status, bytes(read), kind, good=answer.status == _OK)

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

        async def ask(target: AskedReplica) -> Said:
            name = target.key.id
            if target.tls is not None:
                await self._contexts.of(target.tls, "h2")  # no attempt without files
            call: Any = self._channel((target.address, target.tls)).unary_unary(method)
            try:
                body = await call(target.message(message), timeout=timeout_s)
                if not left.takes(len(body)):
                    return Said(name, fault="too-large")
                return Said(name, 0, body, good=True)
            except grpc.aio.AioRpcError as error:
                fault = _FAULTS.get(error.code())
                details = error.details() or ""
                return Said(name, error.code().value[0], b"", details, fault)

        return await self._all(targets, ask, timeout_s)

    async def _all(
        self,
        targets: Sequence[AskedReplica],
        ask: Callable[[AskedReplica], Awaitable[Said]],
        timeout_s: float,
    ) -> list[Said]:
        async def one(target: AskedReplica) -> Said:
            try:
                async with asyncio.timeout(timeout_s), self._places:
                    return await ask(target)
            except TimeoutError:
                return Said(target.key.id, fault="timeout")
            except aiohttp.ClientSSLError as error:
                self._contexts.failed(target.address, error)
                return Said(target.key.id, fault="unreachable")
            except (aiohttp.ClientError, OSError, ValueError):
                return Said(target.key.id, fault="unreachable")

        return list(await asyncio.gather(*map(one, targets)))

    def _channel(self, far: Far) -> grpc.aio.Channel:
        found = self._channels.pop(far, None)
        if found is None:
            found = self._open(*far)
            while len(self._channels) >= MAX_CHANNELS:
                self._drop(next(iter(self._channels)))
        self._channels[far] = found  # the last one is the last used
        return found.channel

    def _open(self, address: str, tls: ReplicaTls | None) -> _Kept:
        if tls is None:
            return _Kept(grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS), None)

        def failed(error: Exception) -> None:
            if isinstance(error, ssl.SSLError):
                self._contexts.failed(address, error)

        tunnel = Tunnel(address, lambda: self._contexts.of(tls, "h2"), tls.server_name, failed)
        options = (*_CHANNEL_OPTIONS, ("grpc.default_authority", address))
        return _Kept(grpc.aio.insecure_channel(tunnel.open(), options=options), tunnel)

    def _drop(self, far: Far) -> None:
        task = asyncio.create_task(self._channels.pop(far).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
