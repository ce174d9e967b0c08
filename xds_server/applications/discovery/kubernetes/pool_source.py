"""The source ``inference_pool``: the pods that an InferencePool selects, at its ports.

Rules:

1. The InferencePool is followed by its name, and its pods by its selector. Another selector begins
   another list of pods; what was found stays until that is whole.
2. What an edit or the deletion of the InferencePool takes out leaves without a hold: it was an
   operator's word. Pods that vanish otherwise are held as all replicas are.
3. An InferencePool whose ``appProtocol`` is not the pool's ``protocol``, or that cannot be read,
   changes nothing, and is told.
4. With ``objectives`` the InferenceObjectives of the namespace that name the InferencePool are
   followed too. Until they are known, and where they cannot be read, no request is lowered.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate_api.pools import MAX_LOW_OBJECTIVES
from xds_server.applications.discovery.kubernetes.access import AccessFiles
from xds_server.applications.discovery.kubernetes.following import (
    SETTLE_S,
    FollowedObjects,
    ObjectFollower,
)
from xds_server.applications.discovery.kubernetes.mirror import MirrorBounds, ObjectMirror
from xds_server.applications.discovery.kubernetes.pods import (
    OBJECTIVES,
    PODS,
    POOLS,
    InferencePool,
    Pod,
    endpoints_of,
    low_of,
    read_objective,
    read_pod,
    read_pool,
)
from xds_server.applications.discovery.kubernetes.slices import TooManyError
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.kubernetes import InferencePoolSpec

_ABOUT: Final = ("asking for the pool", "pool", "asking for pods", "found", "objectives")
"""What troubles are about, the first that counts first."""

_log = structlog.get_logger(__name__)


class InferencePoolSource:
    """Looks for the pods of an InferencePool; see the module's rules.

    Args:
        spec: The pool's settings.
        files: Where the API server and the credentials are found; by default by ``spec.api``.
        jitter: Returns a number in [0, 1).
        settle_s: Seconds in which changes are collected.
    """

    def __init__(
        self,
        spec: InferencePoolSpec,
        files: AccessFiles | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._spec = spec
        self._files = files or AccessFiles(spec.api)
        self._jitter = jitter
        self._settle_s = settle_s
        self._pool: InferencePool | None = None
        self._pods: ObjectMirror[Pod] | None = None
        """Of the selector in force; ``None`` = there is no InferencePool."""
        self._selected = asyncio.Event()
        """The selector is another one."""
        self._objectives: ObjectMirror[int] = ObjectMirror(
            {},
            lambda found: read_objective(found, spec.name),
            MirrorBounds(
                MAX_LOW_OBJECTIVES,
                MAX_LOW_OBJECTIVES,
                f"more than {MAX_LOW_OBJECTIVES} InferenceObjectives in the namespace "
                f"{spec.namespace!r} name the InferencePool {spec.name!r}: remove some",
            ),
        )
        self._shown: InferencePool | None = None
        """The InferencePool of the last report."""
        self._reported: Observation | None = None
        self._troubles = dict.fromkeys(_ABOUT, "")
        self._trouble = ""
        self._found: Callable[[Observation], None] = lambda _: None
        self._on_trouble: Callable[[str], None] = lambda _: None

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Look until cancelled; both functions are called from the event loop."""
        self._found, self._on_trouble = found, trouble
        spec = self._spec
        pools: ObjectMirror[InferencePool] = ObjectMirror(
            {"fieldSelector": f"metadata.name={spec.name}"},
            read_pool,
            MirrorBounds(1, 1, f"the API server has several InferencePools named {spec.name!r}"),
        )
        pool = self._follower(
            FollowedObjects(POOLS, spec.namespace, self._files),
            pools,
            lambda _: self._pool_told(pools.items.get(spec.name)),
            "asking for the pool",
        )
        self._pool = self._pods = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pool.run())
            tasks.create_task(self._follow_pods())
            if spec.objectives:
                objectives = self._follower(
                    FollowedObjects(OBJECTIVES, spec.namespace, self._files),
                    self._objectives,
                    lambda _: self._report(again=False),
                    "objectives",
                )
                tasks.create_task(objectives.run())

    def _follower(
        self,
        asked: FollowedObjects,
        mirror: ObjectMirror[Any],
        told: Callable[[bool], None],
        about: str,
    ) -> ObjectFollower:
        def say(text: str) -> None:
            self._say(about, text)

        def answered(again: bool) -> None:
            follower.say("")
            told(again)

        follower = ObjectFollower(
            asked, mirror, answered, say, jitter=self._jitter, settle_s=self._settle_s
        )
        return follower

    async def _follow_pods(self) -> None:
        """Follow the pods of the selector in force, for ever."""
        while True:
            await self._selected.wait()
            self._selected.clear()
            pool, mirror = self._pool, self._pods
            if pool is None or mirror is None:
                continue
            asked = FollowedObjects(PODS, self._spec.namespace, self._files)
            pods = self._follower(
                asked, mirror, lambda again: self._report(again=again), "asking for pods"
            )
            following = asyncio.create_task(pods.run())
            changed = asyncio.create_task(self._selected.wait())
            try:
                await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            finally:
                for task in (following, changed):
                    task.cancel()
                # Nothing is suppressed: a cancellation that comes now is the source's own.
                await asyncio.gather(following, changed, return_exceptions=True)

    def _pool_told(self, pool: InferencePool | None) -> None:
        spec = self._spec
        if pool is None:
            self._say(
                "pool",
                f"the namespace {spec.namespace!r} has no InferencePool {spec.name!r}: create it, "
                "or correct `inference_pool`",
            )
            self._pool = self._pods = self._shown = None
            self._selected.set()
            self._say("asking for pods", "")
            self._say("found", "")
            self._show(Observation((), final=True), again=False)
            return
        if pool.protocol != spec.protocol:
            self._say(
                "pool",
                f"the InferencePool {spec.name!r} speaks {pool.protocol} by its appProtocol: write "
                f"`protocol: {pool.protocol}` in `inference_pool`",
            )
            return
        self._say("pool", "")
        if pool != self._pool:
            _log.info(
                "inference_pool_followed",
                namespace=spec.namespace,
                name=spec.name,
                selector=pool.selector,
                ports=pool.ports,
                failure_mode=pool.failure_mode,
            )
        before, self._pool = self._pool, pool
        if self._pods is None or before is None or before.selector != pool.selector:
            self._pods = ObjectMirror(
                {"labelSelector": pool.selector},
                lambda found: read_pod(found, spec),
                MirrorBounds(
                    MAX_ENDPOINTS,
                    MAX_ENDPOINTS,
                    f"the selector {pool.selector!r} matches more than {MAX_ENDPOINTS} pods in the "
                    f"namespace {spec.namespace!r}: narrow it",
                ),
            )
            self._selected.set()
        else:
            self._report(again=False)

    def _report(self, *, again: bool) -> None:
        """Report the pods of the pool; an equal observation only if ``again``."""
        pool, pods = self._pool, self._pods
        if pool is None or pods is None or not pods.whole:
            return
        try:
            endpoints = endpoints_of(pool, pods.items)
        except TooManyError as error:
            self._say("found", str(error))
            return
        self._say("found", "")
        edited = self._shown is not None and self._shown[:2] != pool[:2]
        self._shown = pool
        low = low_of(self._objectives.items)
        self._show(Observation(endpoints, final=edited, low_objectives=low), again=again)

    def _show(self, observation: Observation, *, again: bool) -> None:
        if again or observation != self._reported:
            self._reported = observation
            self._found(observation)

    def _say(self, about: str, text: str) -> None:
        self._troubles[about] = text
        first = next((each for each in self._troubles.values() if each), "")
        if first != self._trouble:
            self._trouble = first
            self._on_trouble(first)
