"""Probes replicas over HTTP for readiness to serve their variant, at a slow rate.

If a pool enables it, replicas' repository indexes are probed as well: an index states for each
model whether it is READY, and if not, why.

Rules:

1. Each target is probed by its own task, at the pool's interval; a target that is not ready is
   probed at least once a second, so that its recovery is seen soon.
2. A readiness probe costs at most ``TIMEOUT_S`` and never reads a body. Only status 200 is ready.
3. An index is read up to ``MAX_BYTES``. One that is larger, missing or invalid changes nothing:
   readiness shows whether the replica is available.
4. A replica that is removed during its probe is not reported.
5. A replica that answers a readiness path of Triton's with 404 is no Triton, which answers 400 for
   models that it does not know. It is then asked by ``ENGINE_PATHS``, the first that is not 404;
   that one is asked first from then on.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from ext_proc.feedback.repository import MAX_BYTES, IndexUnreadableError, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool

TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Maximum seconds to the next probe of a replica that is not ready."""
MAX_CONNECTIONS: Final = 64
"""Maximum open at one time; further probes wait within their own timeout."""
INDEX_PATH: Final = "/v2/repository/index"
ENGINE_PATHS: Final = ("/health", "/health/ready")
"""Readiness of vLLM, SGLang and ``trtllm-serve``, and of Triton's OpenAI server."""
_TRITON: Final = "/v2/"
_OK: Final = 200
_NOT_FOUND: Final = 404
_JITTER: Final = 0.2


class Target(NamedTuple):
    """One URL to probe."""

    pool: str
    key: EndpointKey
    url: str
    interval_s: float
    models: frozenset[str] = frozenset()
    """If not empty, the probe is about the state of these models."""
    version: str | None = None


def targets_of(pools: Mapping[str, Pool]) -> set[Target]:
    """Return the probes of all pools: each HTTP replica with a path to probe."""
    found = set()
    for pool in pools.values():
        variants = {variant.name: variant for variant in pool.variants}
        for endpoint in pool.endpoints:
            variant = variants.get(endpoint.variant)
            if variant is None or endpoint.http is None:
                continue
            about = (pool.name, endpoint.key)
            here, every = f"http://{endpoint.http}", pool.probe_interval_s
            if variant.probe_path:
                found.add(Target(*about, here + variant.probe_path, every))
            if pool.repository and pool.models:
                version = variant.model_version
                found.add(Target(*about, here + INDEX_PATH, every, pool.models, version))
    return found


class Prober:
    """Probes a changing set of replicas.

    Args:
        on_result: Called with pool, replica and whether it is ready, after each probe.
        on_index: Called with pool, replica and the fault in its index, ``None`` = no fault.
        jitter: Returns a number in [0, 1), which spreads probes by a fifth of the interval.
    """

    def __init__(
        self,
        on_result: Callable[[str, EndpointKey, bool], None],
        on_index: Callable[[str, EndpointKey, str | None], None] = lambda *_: None,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._on_result = on_result
        self._on_index = on_index
        self._jitter = jitter
        self._targets: set[Target] = set()
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._other: dict[str, str] = {}
        """The URL that a replica answers instead of a target's (rule 5)."""

    def set_targets(self, targets: set[Target]) -> None:
        """Probe exactly these targets from now on."""
        for gone in self._targets - targets:
            task = self._tasks.pop(gone, None)
            if task is not None:
                task.cancel()
            self._other.pop(gone.url, None)
        added = targets - self._targets
        self._targets = set(targets)
        for target in added:
            self._start(target)

    async def run(self) -> None:
        """Probe until cancelled."""
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

    async def probe(self, session: aiohttp.ClientSession, url: str) -> bool:
        """Probe readiness once."""
        known = self._other.pop(url, None)
        for each in (known, url, *_engine_urls(url)) if known else (url, *_engine_urls(url)):
            status = await self._status(session, each)
            if status == _NOT_FOUND:
                continue
            if each != url and (status == _OK or known == each):
                self._other[url] = each
            return status == _OK
        return False

    async def _status(self, session: aiohttp.ClientSession, url: str) -> int | None:
        try:
            async with session.get(url, allow_redirects=False) as answer:
                return answer.status
        except (aiohttp.ClientError, OSError, ValueError):  # a timeout is an OSError
            return None

    async def probe_index(self, session: aiohttp.ClientSession, target: Target) -> bool:
        """Probe an index once; return whether all models are ready, as far as known."""
        try:
            async with session.post(target.url, data=b"{}", allow_redirects=False) as answer:
                if answer.status != _OK:
                    return True
                body = bytearray()
                async for chunk in answer.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > MAX_BYTES:
                        return True
            why = unavailable(bytes(body), target.models, target.version)
        except (aiohttp.ClientError, OSError, IndexUnreadableError):
            return True
        self._on_index(target.pool, target.key, why)
        return why is None

    def _start(self, target: Target) -> None:
        session = self._session
        if session is not None:
            self._tasks[target] = asyncio.create_task(
                self._loop(session, target), name=f"probe {target.pool} {target.key.id}"
            )

    async def _loop(self, session: aiohttp.ClientSession, target: Target) -> None:
        await asyncio.sleep(min(target.interval_s, AGAIN_S) * self._jitter())
        while True:
            if target.models:
                ready = await self.probe_index(session, target)
            else:
                ready = await self.probe(session, target.url)
                self._on_result(target.pool, target.key, ready)
            pause = target.interval_s if ready else min(target.interval_s, AGAIN_S)
            await asyncio.sleep(pause * (1 + _JITTER * (self._jitter() - 0.5)))


def _engine_urls(url: str) -> list[str]:
    """Return where an engine tells its readiness, if ``url`` is a readiness path of Triton's."""
    parts = urlsplit(url)
    if not parts.path.startswith(_TRITON):
        return []
    return [f"{parts.scheme}://{parts.netloc}{path}" for path in ENGINE_PATHS]
