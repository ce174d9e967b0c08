"""Withdrawn clusters, kept for clients that reconnect with routes to them.

A client that was disconnected while a cluster was withdrawn still routes to it, and on reconnection
its clusters are updated before its routes. Such a client first gets a *bridge*: the newest snapshot
together with the withdrawn clusters that it may still use. These are removed once its routes have
been updated. This is make-before-break for a single client.

Rules:

1. The last ``MAX_RETIRED`` withdrawn clusters are kept, with their assignments, for the lifetime of
   the server, and those that clients may have from an earlier one. A cluster that comes into force
   again is removed.
2. A client gets a bridge only if its request states that it holds another state. New clients and
   clients that are up to date get none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.protocol.messages import DeltaRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.protocol.messages import SotwRequest
    from xds_server.protocol.snapshot import Resource, Snapshot

MAX_RETIRED: Final = 256


class Retired:
    """The withdrawn clusters; see the module's rules."""

    def __init__(self) -> None:
        self._clusters: dict[str, tuple[Resource, Resource | None]] = {}

    def withdraw(self, before: Snapshot, after: Snapshot) -> None:
        """Record that the snapshot ``after`` replaces ``before``."""
        here = after.resources(CLUSTER_TYPE)
        assignments = before.resources(ENDPOINT_TYPE)
        for name, cluster in before.resources(CLUSTER_TYPE).items():
            if name not in here:
                self._clusters[name] = (cluster, assignments.get(before.eds_name(name)))
        for name in here:
            self._clusters.pop(name, None)
        while len(self._clusters) > MAX_RETIRED:
            del self._clusters[next(iter(self._clusters))]

    def replaced(self, earlier: Iterable[Snapshot], after: Snapshot) -> None:
        """Record that ``after`` replaces each of the snapshots, oldest first."""
        for before in earlier:
            self.withdraw(before, after)

    def bridge(self, request: SotwRequest | DeltaRequest, target: Snapshot) -> Snapshot | None:
        """Return the snapshot that a client needs before ``target``.

        Args:
            request: The client's first CDS request.
            target: The newest snapshot.

        Returns:
            ``target`` with the withdrawn clusters that the client may hold; ``None`` if the client
            can get ``target`` at once.
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
