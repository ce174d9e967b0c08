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
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from ext_proc.feedback.placement.index import (
    MAX_BYTES,
    read_grpc_index,
    read_index,
    read_models,
)
from ext_proc.feedback.placement.pace import GAP_S, NoListing, Pace
from tidegate_common.upstream.client import OK, AskError, AskFault, ReplicaClient, url_at
from tidegate_common.upstream.rounds import TargetTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.listing import Listing
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_common.upstream.client import ReplicaTurn
    from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

TIMEOUT_S: Final = 2.0
AT_ONCE: Final = 64
"""Most replicas that are asked at one time; further ones wait."""
INDEX_PATH: Final = "/v2/repository/index"
MODELS_PATH: Final = "/v1/models"
INDEX_METHOD: Final = "/inference.GRPCInferenceService/RepositoryIndex"
FIRST_S: Final = 0.2
"""Most seconds until a new replica is asked, so that many are not asked at one moment."""
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
        self._jitter = jitter
        self._tasks = TargetTasks(self._loop)
        self._wanted: dict[EndpointKey, asyncio.Event] = {}
        self.client = ReplicaClient(AT_ONCE, contexts)
        self.looks = 0
        """Looks since the start."""

    def set_targets(self, targets: set[LookTarget]) -> None:
        """Ask exactly these replicas from now on."""
        self._tasks.keep(targets)
        keys = {target.key for target in targets}
        self._wanted = {key: each for key, each in self._wanted.items() if key in keys}

    def look(self, key: EndpointKey) -> None:
        """Ask a replica at once; one that is not a target is ignored."""
        wanted = self._wanted.get(key)
        if wanted is not None:
            wanted.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with self.client:
            await self._tasks.run()

    async def _loop(self, target: LookTarget) -> None:
        wanted = self._wanted[target.key] = asyncio.Event()
        pace = Pace(target.interval_s)
        await asyncio.sleep(FIRST_S * self._jitter())
        while True:
            wanted.clear()
            found = await self.ask(target)
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

    async def ask(self, target: LookTarget) -> Listing | NoListing:
        """Ask a replica once, while the client is open."""
        self.looks += 1
        at = time.monotonic()
        try:
            async with self.client.turn(TIMEOUT_S) as turn:
                if target.http is None:
                    return await _over_grpc(turn, target, at)
                return await _over_http(turn, target.http, target.tls, at)
        except AskError as error:
            gone = error.fault in {AskFault.REFUSED, AskFault.UNREACHABLE}
            return NoListing.GONE if gone else NoListing.FAILED
        except ValueError:  # no list of models
            return NoListing.FAILED


async def _over_http(
    turn: ReplicaTurn, address: str, tls: ReplicaTls | None, at: float
) -> Listing | NoListing:
    url = url_at(address, INDEX_PATH, tls)
    status, body, _ = await turn.http("POST", url, tls=tls, body=b"{}", max_bytes=MAX_BYTES)
    if status in _NO_API:
        url = url_at(address, MODELS_PATH, tls)
        status, body, _ = await turn.http("GET", url, tls=tls, max_bytes=MAX_BYTES)
        if status in _NO_API:
            return NoListing.SILENT
        return read_models(body, at) if status == OK else NoListing.FAILED
    return read_index(body, at) if status == OK else NoListing.FAILED


async def _over_grpc(turn: ReplicaTurn, target: LookTarget, at: float) -> Listing | NoListing:
    if target.grpc is None:
        return NoListing.SILENT
    async with turn.channel(target.grpc, tls=target.tls, max_bytes=MAX_BYTES) as channel:
        try:
            return read_grpc_index(await channel.call(INDEX_METHOD, b""), at)
        except grpc.aio.AioRpcError as error:
            silent = error.code() is grpc.StatusCode.UNIMPLEMENTED
            return NoListing.SILENT if silent else NoListing.FAILED
