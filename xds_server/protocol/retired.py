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
   clients that are up to date get none. It keeps the bridge when a newer state comes meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE
from xds_server.protocol.messages import DeltaRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.protocol.messages import SotwRequest
    from xds_server.protocol.snapshot import Resource, Snapshot

MAX_RETIRED: Final = 256
Kept: TypeAlias = "tuple[Resource, Resource | None]"
"""A withdrawn cluster and its assignment."""


class Retired:
    """The withdrawn clusters; see the module's rules."""

    def __init__(self) -> None:
        self._clusters: dict[str, Kept] = {}

    def withdraw(self, before: Snapshot, after: Snapshot) -> None:
        """Record that the snapshot ``after`` replaces ``before``."""
        was, here = before.resources(CLUSTER_TYPE), after.resources(CLUSTER_TYPE)
        assignments = before.resources(ENDPOINT_TYPE)
        for name in () if was.keys() <= here.keys() else [n for n in was if n not in here]:
            self._clusters[name] = (was[name], assignments.get(before.eds_name(name)))
        for name in [name for name in self._clusters if name in here]:
            del self._clusters[name]
        while len(self._clusters) > MAX_RETIRED:
            del self._clusters[next(iter(self._clusters))]

    def replaced(self, earlier: Iterable[Snapshot], after: Snapshot) -> None:
        """Record that ``after`` replaces each of the snapshots, oldest first."""
        for before in earlier:
            self.withdraw(before, after)

    def needed(self, request: SotwRequest | DeltaRequest, target: Snapshot) -> tuple[Kept, ...]:
        """Return the withdrawn clusters that a client may hold, with their assignments.

        Args:
            request: The client's first CDS request.
            target: The newest snapshot.

        Returns:
            Empty if the client can get ``target`` at once, without a bridge.
        """
        if request.type_url != CLUSTER_TYPE:
            return ()
        names = set(self._clusters)
        if isinstance(request, DeltaRequest):
            names &= request.initial_versions.keys()
        elif request.version in {"", target.version(CLUSTER_TYPE)}:
            return ()
        return tuple(self._clusters[name] for name in names)


def bridged(target: Snapshot, kept: Iterable[Kept]) -> Snapshot:
    """Return ``target`` with withdrawn clusters that are not part of it."""
    here = target.resources(CLUSTER_TYPE)
    more = [(cluster, found) for cluster, found in kept if cluster.name not in here]
    return target.joined(
        {
            CLUSTER_TYPE: [cluster for cluster, _ in more],
            ENDPOINT_TYPE: [found for _, found in more if found is not None],
        }
    )
