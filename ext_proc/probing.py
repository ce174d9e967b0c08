"""Asks replicas whether they are ready and which models they have, for all workers of a picker.

Rules:

1. Only the worker that leads asks; it tells the others what it found, and they apply it as their
   own. What they want to be asked at once, they tell the leader.
2. All workers note a replica that is not ready: it confirms a death, and tells when the replica is
   certainly back (``blame.deaths``, rule 4).
3. A listing is told when it differs from the last one, and again after ``REPEAT_S``. A worker that
   joins is told the latest ones first, so it is ready with them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from ext_proc.feedback.placement.looker import Looker, look_targets
from ext_proc.feedback.probe import Prober, targets_of
from ext_proc.workers.news import Looked, LookWanted, Probed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.health.placement import Placement
    from ext_proc.routing.suspicion import Suspicion
    from ext_proc.routing.values.listing import Listing
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_common.upstream.contexts import ReplicaContexts

REPEAT_S: Final = 10.0


class Probing:
    """The prober and the looker of one worker.

    Args:
        conditions: Take which replicas are ready.
        placement: Takes which models they have, and asks for looks.
        suspicion: Is told of replicas that are not ready.
        members: The registered replicas, for ``state``.
        publish: Tells the other workers.
        contexts: TLS contexts for questions to replicas.
    """

    def __init__(
        self,
        conditions: Conditions,
        placement: Placement,
        suspicion: Suspicion,
        members: Iterable[EndpointKey],
        publish: Callable[[Probed | Looked | LookWanted], None],
        contexts: ReplicaContexts | None = None,
    ) -> None:
        self._conditions = conditions
        self._placement = placement
        self._suspicion = suspicion
        self._members = members
        self._publish = publish
        self._prober = Prober(lambda *found: self._probed(Probed(*found)), contexts=contexts)
        self._looker = Looker(self._looked, contexts=contexts)
        self._told_at: dict[EndpointKey, float] = {}
        """When each listing was last told, monotonic seconds."""
        self._latest: dict[EndpointKey, Looked] = {}
        self._leading = False
        placement.on_look = self._want

    def ask(self, pools: Mapping[str, Pool], *, leading: bool) -> None:
        """Ask the replicas of these pools from now on, if this worker leads."""
        self._leading = leading
        self._prober.set_targets(targets_of(pools) if leading else set())
        targets = look_targets(pools) if leading else set()
        self._looker.set_targets(targets)
        keys = {target.key for target in targets}
        self._told_at = {key: at for key, at in self._told_at.items() if key in keys}
        self._latest = {key: each for key, each in self._latest.items() if key in keys}

    def listings(self) -> Iterable[Looked]:
        """Return the latest listing of each replica that this worker has asked."""
        return self._latest.values()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._prober.run(), name="prober")
            tasks.create_task(self._looker.run(), name="looker")

    def follow(self, news: Probed | Looked | LookWanted) -> None:
        """Take what another worker tells."""
        if isinstance(news, Probed):
            self._take(news)
        elif isinstance(news, Looked):
            news.take(self._placement)
        elif self._leading:
            self._looker.look(news.endpoint)

    def state(self) -> dict[str, object]:
        """Return counters and placement, ready for JSON."""
        placement, now = self._placement, time.monotonic()
        return {
            "looks": self._looker.looks,
            "looks_for_misses": placement.looks,
            "placement": {key.id: placement.of(key, now) for key in self._members},
        }

    def _probed(self, found: Probed) -> None:
        self._take(found)
        self._publish(found)

    def _take(self, found: Probed) -> None:
        found.take(self._conditions)
        if not found.ready:
            self._suspicion.probe_failed(found.endpoint.id, time.monotonic())

    def _looked(self, key: EndpointKey, listing: Listing | None) -> bool:
        found, now = Looked(key, listing), time.monotonic()
        self._latest[key] = found
        changed = found.take(self._placement)
        if changed or now - self._told_at.get(key, now - REPEAT_S) >= REPEAT_S:
            self._told_at[key] = now
            self._publish(found)
        return changed

    def _want(self, key: EndpointKey) -> None:
        if self._leading:
            self._looker.look(key)
        else:
            self._publish(LookWanted(key))
