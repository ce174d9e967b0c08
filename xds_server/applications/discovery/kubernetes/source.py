"""The source ``kubernetes``: the replicas in the EndpointSlices that a selector matches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from xds_server.applications.discovery.kubernetes.access import AccessFiles
from xds_server.applications.discovery.kubernetes.answers import SLICES
from xds_server.applications.discovery.kubernetes.following import (
    SETTLE_S,
    FollowedObjects,
    ObjectFollower,
)
from xds_server.applications.discovery.kubernetes.mirror import Mirror
from xds_server.applications.discovery.kubernetes.slices import TooManyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.applications.discovery.values import Observation
    from xds_server.fleet.model.kubernetes import KubernetesSpec


class KubernetesSource:
    """Looks for endpoints in the EndpointSlices that ``spec`` selects.

    Args:
        spec: The pool's settings.
        files: Where the API server and the credentials are found; by default by ``spec.api``.
        jitter: Returns a number in [0, 1).
        settle_s: Seconds in which changes are collected.
    """

    def __init__(
        self,
        spec: KubernetesSpec,
        files: AccessFiles | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._asked = FollowedObjects(SLICES, spec.namespace, files or AccessFiles(spec.api))
        self._mirror = Mirror(spec)
        self._jitter = jitter
        self._settle_s = settle_s

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Look until cancelled; both functions are called from the event loop."""
        mirror = self._mirror
        reported: Observation | None = None

        def told(again: bool) -> None:
            nonlocal reported
            try:
                seen = mirror.seen()
            except TooManyError as error:
                follower.say(str(error))
                return
            if seen.observation is not None and (again or seen.observation != reported):
                reported = seen.observation
                found(seen.observation)
            follower.say(seen.fault)

        follower = ObjectFollower(
            self._asked, mirror, told, trouble, jitter=self._jitter, settle_s=self._settle_s
        )
        await follower.run()
