"""Snapshots for older builds of Envoy and for Envoys with own pickers, shared by all alike.

Rules:

1. A resource that contains nothing of what is edited is the same object, with the same version.
2. Clients that lack the same features and name the same pickers share one snapshot, and thus the
   same bytes.
3. A resource is edited once as long as it stays in the snapshots. At most ``MAX_KEPT`` snapshots
   are kept for clients that are alike, and none longer than these are connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from google.protobuf.any_pb2 import Any as AnyMessage

from xds_server.builds.edit import edited
from xds_server.builds.features import lacking
from xds_server.builds.own_pickers import own_pickers_first
from xds_server.protocol.snapshot import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.builds.features import Build, Feature
    from xds_server.protocol.snapshot import Snapshot

MAX_KEPT: Final = 16


class Builds:
    """Makes the snapshots that some Envoys are sent; see the module's rules."""

    def __init__(self) -> None:
        self._shared: WeakValueDictionary[tuple[object, ...], _Adapter] = WeakValueDictionary()

    def adapter(
        self, build: Build | None, pickers: frozenset[str] = frozenset()
    ) -> Callable[[Snapshot], Snapshot] | None:
        """Return what turns a snapshot into that of a client; ``None`` if it gets all as it is.

        Args:
            build: Its build; ``None`` = not known, and thus new.
            pickers: Addresses of the pickers that it asks before others.
        """
        lost = lacking(build)
        if not lost and not pickers:
            return None
        key = (pickers, *(each.lost for each in lost))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = _Adapter(lost, pickers)
        return found.adapt


class _Adapter:
    def __init__(self, lost: tuple[Feature, ...], pickers: frozenset[str]) -> None:
        self._pickers = pickers
        self._lost: dict[str, list[Feature]] = {}
        for each in lost:
            self._lost.setdefault(each.type_url, []).append(each)
        self._snapshots: dict[Snapshot, Snapshot] = {}
        self._edited: dict[str, dict[str, Resource]] = {}
        """By type and the version of the original: the resources of the newest snapshot."""
        self._newest: Snapshot | None = None

    def adapt(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot without what is lacking; the same object for an equal snapshot."""
        known = self._snapshots.get(snapshot)
        if known is None:
            known = self._snapshots[snapshot] = self._adapted(snapshot)
            if len(self._snapshots) > MAX_KEPT:
                del self._snapshots[next(iter(self._snapshots))]
        return known

    def _adapted(self, snapshot: Snapshot) -> Snapshot:
        new = snapshot
        for type_url, features in self._lost.items():
            if not snapshot.serves(type_url):
                continue
            before = self._edited.get(type_url, {})
            now: dict[str, Resource] = {}
            for resource in snapshot.resources(type_url).values():
                done = before.get(resource.version)
                now[resource.version] = done or _without(resource, type_url, features)
            self._edited[type_url] = now
            found = {r.name: now[r.version] for r in snapshot.resources(type_url).values()}
            new = new.with_resources(type_url, found, self._newest)
        self._newest = new
        return own_pickers_first(new, self._pickers) if self._pickers else new


def _without(resource: Resource, type_url: str, features: list[Feature]) -> Resource:
    message: bytes = AnyMessage.FromString(resource.any).value
    body = message
    for feature in features:
        body = edited(body, feature.path, feature.drop)
    return resource if body == message else Resource.of(type_url, resource.name, body)
