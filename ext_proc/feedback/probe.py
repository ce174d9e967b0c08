"""Probes replicas over HTTP for readiness to serve their variant, at a slow rate.

Rules:

1. Each target is probed by its own task, at the pool's interval; a target that is not ready is
   probed at least once a second, so that its recovery is seen soon.
2. A readiness probe costs at most ``TIMEOUT_S`` and never reads a body. Only status 200 is ready.
3. A replica that is removed during its probe is not reported.
4. It is asked by ``ready_paths``; one that is answered in place of the first is asked first from
   then on.
5. Of a replica that is not ready the fault says what it did. Where a version of a model is missing,
   the model is asked without it, so that a missing version is told from a missing model.
6. Where the pool speaks TLS to its replicas, so do probes (``ReplicaContexts``). A replica that
   cannot be asked because files cannot be used here counts as ready: Envoys' health checks see it.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tidegate_api.pools import ready_paths
from tidegate_common.upstream.client import (
    NOT_FOUND,
    OK,
    AskError,
    AskFault,
    ReplicaClient,
    url_at,
)
from tidegate_common.upstream.rounds import TargetTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Maximum seconds to the next probe of a replica that is not ready."""
AT_ONCE: Final = 64
"""Most probes at one time; further ones wait."""
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
                tls = pool.upstream_tls
                url = url_at(endpoint.http, variant.probe_path, tls)
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
        self._jitter = jitter
        self._tasks = TargetTasks(self._loop)
        self._other: dict[str, str] = {}
        """The URL that a replica answers instead of a target's (rule 4)."""
        self.client = ReplicaClient(AT_ONCE, contexts)

    def set_targets(self, targets: set[Target]) -> None:
        """Probe exactly these targets from now on."""
        for gone in self._tasks.keep(targets):
            self._other.pop(gone.url, None)

    async def run(self) -> None:
        """Probe until cancelled."""
        async with self.client:
            await self._tasks.run()

    async def probe(self, url: str, tls: ReplicaTls | None = None) -> str | None:
        """Probe readiness once, while the client is open.

        Returns:
            ``None`` if the replica is ready, else what it did, as a clause without its subject.
        """
        parts = urlsplit(url)
        urls = [parts._replace(path=path).geturl() for path in ready_paths(parts.path)]
        known = self._other.pop(url, None)
        for each in urls if known is None else (known, *urls):
            status = await self._status(each, tls)
            if status == NOT_FOUND:
                continue
            if each != url and (status == OK or known == each):
                self._other[url] = each
            if status in {OK, AskFault.NO_FILES}:
                return None
            if status is AskFault.LATE:
                return f"does not answer within {TIMEOUT_S:g} s"
            return status if isinstance(status, str) else await self._fault(each, tls)
        return f"answers 404 at {parts.path}"

    async def _fault(self, url: str, tls: ReplicaTls | None) -> str:
        """Return what a replica that answers and is not ready lacks."""
        parts = urlsplit(url)
        model = _MODEL.fullmatch(parts.path)
        if model is None:
            return f"is not ready by {parts.path}"
        name, version = unquote(model["model"]), model["version"]
        if version is None:
            return f"has no model {name} that is ready"
        any_version = f"{parts.scheme}://{parts.netloc}/v2/models/{model['model']}/ready"
        if await self._status(any_version, tls) == OK:
            return f"serves another version of {name} than {version}"
        return f"has no version {version} of {name} that is ready"

    async def _status(self, url: str, tls: ReplicaTls | None) -> int | AskFault:
        """Return the status, or what the replica did in place of an answer."""
        try:
            async with self.client.turn(TIMEOUT_S) as turn:
                return (await turn.http("GET", url, tls=tls)).status
        except AskError as error:
            return error.fault

    async def _loop(self, target: Target) -> None:
        await asyncio.sleep(min(target.interval_s, AGAIN_S) * self._jitter())
        while True:
            fault = await self.probe(target.url, target.tls)
            self._on_result(target.pool, target.key, fault is None, fault or "")
            pause = target.interval_s if fault is None else min(target.interval_s, AGAIN_S)
            await asyncio.sleep(pause * (1 + _JITTER * (self._jitter() - 0.5)))
