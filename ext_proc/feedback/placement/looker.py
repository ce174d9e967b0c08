"""Asks replicas which models they have, at a bounded rate.

Rules:

1. Each replica is asked by its own task, at the pace of ``pace``; a new one is asked at once.
2. It is asked for Triton's repository index, over HTTP, or over gRPC if it speaks only that. One
   that has no such API is asked for ``/v1/models``.
3. An answer is read up to ``MAX_BYTES`` and awaited for ``TIMEOUT_S``. One that is larger, late, or
   not a list of models changes nothing.
4. A replica that is removed while it is asked is not reported.
5. Where the pool speaks TLS to its replicas, so do looks (``ReplicaContexts``). A replica that is
   not trusted, or cannot be asked because files cannot be used here, changes nothing.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import grpc

from ext_proc.feedback.placement.index import (
    MAX_BYTES,
    IndexUnreadableError,
    read_grpc_index,
    read_index,
    read_models,
)
from ext_proc.feedback.placement.pace import GAP_S, NoListing, Pace
from tidegate_common.upstream.contexts import ReplicaContexts
from tidegate_common.upstream.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.listing import Listing
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_common.upstream.contexts import ReplicaTls

TIMEOUT_S: Final = 2.0
MAX_CONNECTIONS: Final = 64
"""Most replicas that are asked at one time; further ones wait within their own timeout."""
INDEX_PATH: Final = "/v2/repository/index"
MODELS_PATH: Final = "/v1/models"
INDEX_METHOD: Final = "/inference.GRPCInferenceService/RepositoryIndex"
FIRST_S: Final = 0.2
"""Most seconds until a new replica is asked, so that many are not asked at one moment."""
_OK: Final = 200
_NO_API: Final = frozenset({404, 405, 501})
_JITTER: Final = 0.2


class LookTarget(NamedTuple):
    """One replica to ask."""

    key: EndpointKey
    http: str | None
    """``ip:port``."""
    grpc: str | None
    interval_s: float
    tls: ReplicaTls | None = None


def look_targets(pools: Mapping[str, Pool]) -> set[LookTarget]:
    """Return the replicas of all pools that want their placement, each once."""
    found: dict[EndpointKey, LookTarget] = {}
    for pool in pools.values():
        if not pool.repository:
            continue
        for endpoint in pool.endpoints:
            known, interval_s = found.get(endpoint.key), pool.probe_interval_s
            if known is not None:
                interval_s = min(interval_s, known.interval_s)
            found[endpoint.key] = LookTarget(
                endpoint.key, endpoint.http, endpoint.grpc, interval_s, pool.upstream_tls
            )
    return set(found.values())


class Looker:
    """Asks a changing set of replicas.

    Args:
        on_found: Called with a replica and its listing, or with ``None`` if the replica is gone;
            returns whether that differs from what was known.
        contexts: TLS contexts of the process; ``None`` = its own.
        jitter: Returns a number in [0, 1), which spreads looks by a fifth of the pause.
    """

    def __init__(
        self,
        on_found: Callable[[EndpointKey, Listing | None], bool],
        *,
        contexts: ReplicaContexts | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._on_found = on_found
        self._contexts = ReplicaContexts() if contexts is None else contexts
        self._jitter = jitter
        self._targets: set[LookTarget] = set()
        self._tasks: dict[LookTarget, asyncio.Task[None]] = {}
        self._wanted: dict[EndpointKey, asyncio.Event] = {}
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self.looks = 0
        """Looks since the start."""

    def set_targets(self, targets: set[LookTarget]) -> None:
        """Ask exactly these replicas from now on."""
        for gone in self._targets - targets:
            task = self._tasks.pop(gone, None)
            if task is not None:
                task.cancel()
            self._wanted.pop(gone.key, None)
        added = targets - self._targets
        self._targets = set(targets)
        for target in added:
            self._start(target)

    def look(self, key: EndpointKey) -> None:
        """Ask a replica at once; one that is not a target is ignored."""
        wanted = self._wanted.get(key)
        if wanted is not None:
            wanted.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            self._session = session
            try:
                for target in self._targets:
                    self._start(target)
                await asyncio.get_running_loop().create_future()
            finally:
                self._session = None
                tasks = list(self._tasks.values())
                self._tasks.clear()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, target: LookTarget) -> None:
        session = self._session
        if session is not None:
            wanted = self._wanted[target.key] = asyncio.Event()
            self._tasks[target] = asyncio.create_task(
                self._loop(session, target, wanted), name=f"look {target.key.id}"
            )

    async def _loop(
        self, session: aiohttp.ClientSession, target: LookTarget, wanted: asyncio.Event
    ) -> None:
        pace = Pace(target.interval_s)
        await asyncio.sleep(FIRST_S * self._jitter())
        while True:
            wanted.clear()
            async with self._places:
                found = await self.ask(session, target)
            changed = False
            if not isinstance(found, NoListing):
                changed = self._on_found(target.key, found)
            elif found is NoListing.GONE:
                changed = self._on_found(target.key, None)
            pause = pace.pause(found, time.monotonic(), changed=changed)
            pause *= 1 + _JITTER * (self._jitter() - 0.5)
            await asyncio.sleep(min(GAP_S, pause))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause - min(GAP_S, pause)):
                    await wanted.wait()

    async def ask(self, session: aiohttp.ClientSession, target: LookTarget) -> Listing | NoListing:
        """Ask a replica once."""
        self.looks += 1
        at = time.monotonic()
        try:
            if target.http is None:
                return await self._over_grpc(target, at)
            return await self._over_http(session, target, at)
        except aiohttp.ClientSSLError as error:
            self._contexts.failed(target.http or "", error)
            return NoListing.FAILED
        except aiohttp.ClientConnectorError:
            return NoListing.GONE
        except (aiohttp.ClientError, OSError, ValueError):  # a timeout is an OSError
            return NoListing.FAILED

    async def _over_http(
        self, session: aiohttp.ClientSession, target: LookTarget, at: float
    ) -> Listing | NoListing:
        options = await self._contexts.options(target.tls)
        here = f"{'https' if options else 'http'}://{target.http}"
        status, body = await _http(session, "POST", here + INDEX_PATH, options)
        if status in _NO_API:
            status, body = await _http(session, "GET", here + MODELS_PATH, options)
            if status in _NO_API:
                return NoListing.SILENT
            return read_models(body, at) if status == _OK else NoListing.FAILED
        return read_index(body, at) if status == _OK else NoListing.FAILED

    async def _over_grpc(self, target: LookTarget, at: float) -> Listing | NoListing:
        address, tls = target.grpc, target.tls
        if address is None:
            return NoListing.SILENT
        if tls is None:
            return await _call(address, at)
        await self._contexts.of(tls, "h2")  # files that cannot be used are no closed port
        async with Tunnel(address, lambda: self._contexts.of(tls, "h2"), tls.server_name) as tunnel:
            found = await _call(tunnel.target, at, address)
            if isinstance(tunnel.fault, ssl.SSLError):
                self._contexts.failed(address, tunnel.fault)
            refused = isinstance(tunnel.fault, ConnectionRefusedError)
            return found if found is not NoListing.GONE or refused else NoListing.FAILED


async def _http(
    session: aiohttp.ClientSession, method: str, url: str, options: dict[str, Any]
) -> tuple[int, bytes]:
    """Send a request and return status and body.

    Raises:
        IndexUnreadableError: The body is too large.
    """
    sent = b"{}" if method == "POST" else None
    async with session.request(method, url, data=sent, allow_redirects=False, **options) as answer:
        body = bytearray()
        if answer.status == _OK:
            async for chunk in answer.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > MAX_BYTES:
                    raise IndexUnreadableError("too large")
        return answer.status, bytes(body)


async def _call(target: str, at: float, authority: str = "") -> Listing | NoListing:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_BYTES),
        ("grpc.enable_retries", 0),
    ]
    if authority:
        options.append(("grpc.default_authority", authority))
    async with grpc.aio.insecure_channel(target, options) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(INDEX_METHOD)
        try:
            return read_grpc_index(await method(b"", timeout=TIMEOUT_S), at)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return NoListing.SILENT
            gone = error.code() is grpc.StatusCode.UNAVAILABLE
            return NoListing.GONE if gone else NoListing.FAILED
