"""Probes replicas over HTTP for readiness to serve their variant, at a slow rate.

Rules:

1. Each target is probed by its own task, at the pool's interval; a target that is not ready is
   probed at least once a second, so that its recovery is seen soon.
2. A readiness probe costs at most ``TIMEOUT_S`` and never reads a body. Only status 200 is ready.
3. A replica that is removed during its probe is not reported.
4. A replica that answers a readiness path of Triton's with 404 is no Triton, which answers 400 for
   models that it does not know. It is then asked by ``ENGINE_READY_PATHS``, the first that is not
   404; that one is asked first from then on.
5. Of a replica that is not ready the fault says what it did. Where a version of a model is missing,
   the model is asked without it, so that a missing version is told from a missing model.
6. Where the pool speaks TLS to its replicas, so do probes (``ReplicaContexts``). A replica that
   cannot be asked because files cannot be used here counts as ready: Envoys' health checks see it.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import aiohttp

from tidegate_api.pools import ENGINE_READY_PATHS, TRITON_PATHS
from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTlsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_common.upstream.contexts import ReplicaTls

TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Maximum seconds to the next probe of a replica that is not ready."""
MAX_CONNECTIONS: Final = 64
"""Maximum open at one time; further probes wait within their own timeout."""
_OK: Final = 200
_NOT_FOUND: Final = 404
_JITTER: Final = 0.2
_MODEL: Final = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/ready")


class Target(NamedTuple):
    """One URL to probe."""

    pool: str
    key: EndpointKey
    url: str
    interval_s: float
    tls: ReplicaTls | None = None


def targets_of(pools: Mapping[str, Pool]) -> set[Target]:
    """Return the probes of all pools: each HTTP replica with a path to probe."""
    found = set()
    for pool in pools.values():
        variants = {variant.name: variant for variant in pool.variants}
        for endpoint in pool.endpoints:
            variant = variants.get(endpoint.variant)
            if variant is None or endpoint.http is None:
                continue
            if variant.probe_path:
                scheme, tls = ("https" if pool.upstream_tls else "http"), pool.upstream_tls
                url = f"{scheme}://{endpoint.http}{variant.probe_path}"
                found.add(Target(pool.name, endpoint.key, url, pool.probe_interval_s, tls))
    return found


class Prober:
    """Probes a changing set of replicas.

    Args:
        on_result: Called after each probe with pool, replica, whether it is ready and, where it is
            not, what it did.
        contexts: TLS contexts of the process; ``None`` = its own.
        jitter: Returns a number in [0, 1), which spreads probes by a fifth of the interval.
    """

    def __init__(
        self,
        on_result: Callable[[str, EndpointKey, bool, str], None],
        *,
        contexts: ReplicaContexts | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._on_result = on_result
        self._contexts = ReplicaContexts() if contexts is None else contexts
        self._jitter = jitter
        self._targets: set[Target] = set()
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._other: dict[str, str] = {}
        """The URL that a replica answers instead of a target's (rule 4)."""

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

    async def probe(
        self, session: aiohttp.ClientSession, url: str, tls: ReplicaTls | None = None
    ) -> str | None:
        """Probe readiness once.

        Returns:
            ``None`` if the replica is ready, else what it did, as a clause without its subject.
        """
        try:
            options = await self._contexts.options(tls)
        except ReplicaTlsError:
            return None
        known = self._other.pop(url, None)
        for each in (known, url, *_engine_urls(url)) if known else (url, *_engine_urls(url)):
            status = await self._status(session, each, options)
            if status == _NOT_FOUND:
                continue
            if each != url and (status == _OK or known == each):
                self._other[url] = each
            if status == _OK:
                return None
            return status if isinstance(status, str) else await self._fault(session, each, options)
        return f"answers 404 at {urlsplit(url).path}"

    async def _fault(
        self, session: aiohttp.ClientSession, url: str, options: dict[str, Any]
    ) -> str:
        """Return what a replica that answers and is not ready lacks."""
        parts = urlsplit(url)
        model = _MODEL.fullmatch(parts.path)
        if model is None:
            return f"is not ready by {parts.path}"
        name, version = unquote(model["model"]), model["version"]
        if version is None:
            return f"has no model {name} that is ready"
        any_version = f"{parts.scheme}://{parts.netloc}/v2/models/{model['model']}/ready"
        if await self._status(session, any_version, options) == _OK:
            return f"serves another version of {name} than {version}"
        return f"has no version {version} of {name} that is ready"

    async def _status(
        self, session: aiohttp.ClientSession, url: str, options: dict[str, Any]
    ) -> int | str:
        """Return the status, or what the replica did in place of an answer."""
        try:
            async with session.get(url, allow_redirects=False, **options) as answer:
                return answer.status
        except aiohttp.ClientSSLError as error:
            self._contexts.failed(urlsplit(url).netloc, error)
            return "fails the TLS handshake"
        except TimeoutError:
            return f"does not answer within {TIMEOUT_S:g} s"
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return "refuses connections" if refused else "cannot be reached"
        except (aiohttp.ClientError, OSError, ValueError):
            return "breaks the connection off"

    def _start(self, target: Target) -> None:
        session = self._session
        if session is not None:
            self._tasks[target] = asyncio.create_task(
                self._loop(session, target), name=f"probe {target.pool} {target.key.id}"
            )

    async def _loop(self, session: aiohttp.ClientSession, target: Target) -> None:
        await asyncio.sleep(min(target.interval_s, AGAIN_S) * self._jitter())
        while True:
            fault = await self.probe(session, target.url, target.tls)
            self._on_result(target.pool, target.key, fault is None, fault or "")
            pause = target.interval_s if fault is None else min(target.interval_s, AGAIN_S)
            await asyncio.sleep(pause * (1 + _JITTER * (self._jitter() - 0.5)))


def _engine_urls(url: str) -> list[str]:
    """Return where an engine tells its readiness, if ``url`` is a readiness path of Triton's."""
    parts = urlsplit(url)
    if not parts.path.startswith(TRITON_PATHS):
        return []
    return [f"{parts.scheme}://{parts.netloc}{path}" for path in ENGINE_READY_PATHS]
