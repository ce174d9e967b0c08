"""Clusters that were withdrawn, for clients that come back with routes to them.

A client that was cut off while a cluster was withdrawn still routes to it, and its clusters are
brought up to date before its routes are. So it is first given what it may still use beside what
it should have, and loses that once it follows: the same make before break, for one client alone.

Rules:

1. The last ``MAX_RETIRED`` withdrawn clusters are kept, with their assignments, as long as the
   server lives. One that is in force again is forgotten.
2. A client gets the bridge only if it says that it holds another state: one that is new or
   current gets nothing extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.protocol.messages import DeltaRequest

if TYPE_CHECKING:
    from xds_server.protocol.messages import SotwRequest
    from xds_server.protocol.snapshot import Resource, Snapshot

MAX_RETIRED: Final = 256


class Retired:
    """Keeps withdrawn clusters; see the module's rules."""

    def __init__(self) -> None:
        self._clusters: dict[str, tuple[Resource, Resource | None]] = {}

    def withdraw(self, before: Snapshot, after: Snapshot) -> None:
        """Take note that ``after`` is in force in place of ``before``."""
        here = after.resources(CLUSTER_TYPE)
        assignments = before.resources(ENDPOINT_TYPE)
        for name, cluster in before.resources(CLUSTER_TYPE).items():
            if name not in here:
                self._clusters[name] = (cluster, assignments.get(before.eds_name(name)))
        for name in here:
            self._clusters.pop(name, None)
        while len(self._clusters) > MAX_RETIRED:
            del self._clusters[next(iter(self._clusters))]

    def bridge(self, request: SotwRequest | DeltaRequest, target: Snapshot) -> Snapshot | None:
        """Return what a client that begins with this request is to have before ``target``.

        ``None`` where it can be given ``target`` at once.
        """
        if request.type_url != CLUSTER_TYPE:
            return None
        names = set(self._clusters)
        if isinstance(request, DeltaRequest):
            names &= request.initial_versions.keys()
        elif request.version in {"", target.version(CLUSTER_TYPE)}:
            return None
        if not names:
            return None
        kept = [self._clusters[name] for name in names]
        return target.joined(
            {
                CLUSTER_TYPE: [cluster for cluster, _ in kept],
                ENDPOINT_TYPE: [found for _, found in kept if found is not None],
            }
        )
