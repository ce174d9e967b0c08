"""Questions about a fleet, and their answers from its replicas.

Rules:

1. Where the replicas that answer well say the very same, that is the answer, byte for byte.
2. A question for one replica (``tidegate-endpoint``) is passed on, and so is its answer.
3. A server is ready if of each pool in sight a share of the replicas that do not drain is usable,
   one at least. A replica is usable if it answers the pool's own probe. The verdict is up to
   ``READY_S`` old, and one that is being made serves all who ask.
4. Replicas that are engines do not count where a call is Triton's, also while they do not answer.
5. A replica that does not answer is named in the note; statistics then count it as it was.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gateway.merge.answers import Said, good_of, note, usual_error
from gateway.merge.statistics import StatisticsBook
from gateway.targets import (
    MAX_REPLICAS,
    AskedReplica,
    AskedReplicas,
    UnknownReplicaError,
    about,
    in_sight,
    of_tritons,
    replicas_of,
    says_engine,
)
from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_api.pools import TRITON_PATHS, ready_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from gateway.asking import Asker
    from tidegate_api.names import Protocol

READY_S: Final = 0.5
MAX_SIGHTS: Final = 256
"""Sets of pools whose readiness is remembered."""
TRITON_API: Final = TRITON_PATHS.rstrip("/")
"""Beginning of the paths of Triton's HTTP API; what it says of itself is there."""
SERVICE: Final = "/inference.GRPCInferenceService/"
_NOT_FOUND: Final = 404


class Scope(NamedTuple):
    """Which replicas a question is about."""

    names: frozenset[str] | None
    """The pools in sight; ``None`` = all."""
    endpoint: str = ""
    """One replica's id; empty = all."""
    timeout_s: float = 5.0


class Heard(NamedTuple):
    """What the replicas said, and of which pools they are."""

    said: list[Said]
    targets: AskedReplicas
    pools: tuple[Pool, ...]

    @property
    def good(self) -> list[Said]:
        """The good answers."""
        return good_of(self.said)

    @property
    def error(self) -> Said | None:
        """The error that counts if there is no good answer; ``None`` = no replica answered."""
        return usual_error(self.said)

    def same(self) -> bytes | None:
        """Return the answer that all good ones are; ``None`` if they differ."""
        bodies = {each.body for each in self.good}
        return bodies.pop() if len(bodies) == 1 else None

    def note(self, words: Mapping[str, str] | None = None) -> str:
        """Return the note on these answers."""
        return note(self.said, words or {}, self.targets.unasked)

    def with_malformed(self, replicas: frozenset[str]) -> Heard:
        """Return this with the answers of these replicas as faults."""
        said = [
            Said(each.replica, fault="malformed") if each.replica in replicas else each
            for each in self.said
        ]
        return self._replace(said=said)


class FleetReadiness(NamedTuple):
    """Whether the fleet is ready."""

    ready: bool
    note: str


class Questions:
    """Asks the replicas of the newest pools.

    Args:
        asker: Connections to replicas.
        ready_percent: Least share of usable replicas.
        clock: Monotonic seconds.
    """

    def __init__(self, asker: Asker, ready_percent: float, clock: Callable[[], float]) -> None:
        self._asker = asker
        self._ready_percent = ready_percent
        self._clock = clock
        self._pools: Mapping[str, Pool] = {}
        self._keys: frozenset[EndpointKey] = frozenset()
        self._engines: set[EndpointKey] = set()
        """Replicas in force whose newest answer was that of an engine."""
        self._verdicts: dict[frozenset[str] | None, tuple[float, asyncio.Task[FleetReadiness]]] = {}
        self.statistics = StatisticsBook()

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Ask the replicas of these pools from now on."""
        self._pools = pools
        every = [(pool, each) for pool in pools.values() for each in pool.endpoints]
        self._keys = frozenset(each.key for _, each in every)
        self._engines &= self._keys
        self._asker.keep(
            {(each.grpc, pool.upstream_tls) for pool, each in every if each.grpc is not None}
        )
        self._verdicts.clear()

    def in_sight(self, scope: Scope) -> tuple[Pool, ...]:
        """Return the pools of a question's sight."""
        return in_sight(self._pools, scope.names)

    def pools_about(self, scope: Scope, model: str) -> tuple[Pool, ...]:
        """Return the pools that a question about a model is for; an empty name = all."""
        pools = self.in_sight(scope)
        return about(pools, model) if model else pools

    async def http(
        self,
        pools: tuple[Pool, ...],
        scope: Scope,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        unversioned: str = "",
        without: Collection[str] = (),
    ) -> Heard:
        """Send an HTTP request to the replicas of these pools.

        Args:
            pools: The pools.
            scope: Which of their replicas.
            method: HTTP method.
            path: Path and query.
            body: Body.
            headers: Headers.
            unversioned: The model that it is about and names no version of; empty = none.
            without: Ids of replicas that are left out.

        Raises:
            UnknownReplicaError: The one replica that is asked for is not there.
        """
        of_triton = path.startswith(TRITON_API) and not scope.endpoint
        asked = of_tritons(pools) if of_triton else pools
        targets = replicas_of(asked, "http", scope.endpoint, unversioned).without(without)
        said = await self._asker.over_http(
            targets.asked, method, path, body=body, headers=headers, timeout_s=scope.timeout_s
        )
        heard = Heard(said, targets, pools)
        return self._without_engines(heard) if of_triton else heard

    def _without_engines(self, heard: Heard) -> Heard:
        """Return this without the replicas that are engines (rule 4); as it is if all are."""
        asked, said = [], []
        for target, one in zip(heard.targets.asked, heard.said, strict=True):
            if target.may_be_engine and one.fault is None:
                (self._engines.add if says_engine(one) else self._engines.discard)(target.key)
            if target.key not in self._engines or not target.may_be_engine:
                asked.append(target)
                said.append(one)
        if not said:
            return heard
        targets = heard.targets._replace(asked=tuple(asked))
        return heard._replace(said=said, targets=targets)

    async def grpc(
        self,
        pools: tuple[Pool, ...],
        scope: Scope,
        method: str,
        message: bytes,
        unversioned: str = "",
        without: Collection[str] = (),
    ) -> Heard:
        """Make a call to the replicas of these pools; errors as of ``http``."""
        targets = replicas_of(pools, "grpc", scope.endpoint, unversioned).without(without)
        said = await self._asker.over_grpc(
            targets.asked, SERVICE + method, message, timeout_s=scope.timeout_s
        )
        return Heard(said, targets, pools)

    def sums(self, heard: Heard, rows: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Remember statistics and return the sums of the models that they name.

        Args:
            heard: The answers.
            rows: Their rows by replica.
        """
        said: dict[EndpointKey, list[dict[str, Any]]] = {}
        for target in heard.targets.asked:
            if target.key.id in rows:
                said[target.key] = rows[target.key.id]
                self.statistics.take(target.key, target.pools, rows[target.key.id])
        asked = {target.key for target in heard.targets.asked}
        names = {pool.name for pool in heard.pools}

        def counts(replica: EndpointKey, pools: frozenset[str]) -> bool:
            return replica in asked or (replica not in self._keys and not names.isdisjoint(pools))

        return self.statistics.sums(said, counts)

    # --- readiness ------------------------------------------------------------------------------

    async def ready(self, scope: Scope) -> FleetReadiness:
        """Return whether the fleet is ready."""
        known = self._verdicts.get(scope.names)
        now = self._clock()
        if known is None or (known[1].done() and now - known[0] > READY_S):
            task = asyncio.create_task(self._judge(scope))
            while len(self._verdicts) >= MAX_SIGHTS:
                del self._verdicts[next(iter(self._verdicts))]
            known = self._verdicts[scope.names] = (now, task)
        return await asyncio.shield(known[1])

    async def _judge(self, scope: Scope) -> FleetReadiness:
        pools = self.in_sight(scope)
        shares = await asyncio.gather(*(self._usable(pool, scope) for pool in pools))
        lacking, usable, every = [], 0, 0
        for pool, (good, count) in zip(pools, shares, strict=True):
            usable, every = usable + good, every + count
            if not good or 100 * good < self._ready_percent * count:
                lacking.append(f"{pool.name}={good}/{count}")
        text = f"{usable}/{every}" + ("; " + ", ".join(lacking[:32]) if lacking else "")
        return FleetReadiness(bool(pools) and not lacking, text)

    async def _usable(self, pool: Pool, scope: Scope) -> tuple[int, int]:
        """Return how many replicas are usable, and how many there are that do not drain."""
        probes = {variant.name: variant.probe_path for variant in pool.variants}
        asked: dict[tuple[Protocol, str], list[AskedReplica]] = {}
        active = [each for each in pool.endpoints if not each.draining]
        for each in active[:MAX_REPLICAS]:
            path = probes.get(each.variant, "")
            if each.http is not None and path:
                target = AskedReplica(each.key, each.http, frozenset(), pool.upstream_tls)
                asked.setdefault(("http", path), []).append(target)
            elif each.grpc is not None:
                target = AskedReplica(each.key, each.grpc, frozenset(), pool.upstream_tls)
                asked.setdefault(("grpc", min(pool.models, default="")), []).append(target)
        found = await asyncio.gather(
            *(
                self._probe_http(targets, what, scope.timeout_s)
                if protocol == "http"
                else self._probe_grpc(targets, what, scope.timeout_s)
                for (protocol, what), targets in asked.items()
            )
        )
        return sum(found), len(active)

    async def _probe_http(self, targets: list[AskedReplica], path: str, timeout_s: float) -> int:
        good = 0
        for each in ready_paths(path):
            said = await self._asker.over_http(targets, "GET", each, timeout_s=timeout_s)
            good += len(good_of(said))
            # An engine does not know Triton's paths.
            absent = {one.replica for one in said if one.status == _NOT_FOUND}
            targets = [target for target in targets if target.key.id in absent]
            if not targets:
                break
        return good

    async def _probe_grpc(self, targets: list[AskedReplica], model: str, timeout_s: float) -> int:
        message = kserve_pb2.ModelRequest(name=model).SerializeToString()
        method = SERVICE + ("ModelReady" if model else "ServerReady")
        said = await self._asker.over_grpc(
            targets, method, message if model else b"", timeout_s=timeout_s
        )
        yes = kserve_pb2.ReadyResponse(ready=True).SerializeToString()
        return sum(each.body == yes for each in good_of(said))


__all__ = ["FleetReadiness", "Heard", "Questions", "Scope", "UnknownReplicaError"]
