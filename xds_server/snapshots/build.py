"""Sets of resources for each audience: type URL -> name -> serialized message."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_NAME,
    LISTENER_TYPE,
    PICKER_CLUSTER,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_NAME,
    RUNTIME_TYPE,
    SECRET_TYPE,
)
from xds_server.protocol.snapshot import Resource, TypeSet
from xds_server.resources.access_log import log_clusters
from xds_server.resources.clusters import picker_cluster
from xds_server.resources.endpoints import picker_assignment
from xds_server.resources.routes.weights import neutral
from xds_server.resources.runtime import weights_of
from xds_server.snapshots.memo import Memo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.view import View
    from xds_server.resources.runtime import Weights
    from xds_server.snapshots.memo import Upstream

    Resources = Mapping[str, Mapping[str, bytes]]
    Contents = Mapping[str, Mapping[str, bytes | Resource] | TypeSet]

_NONE_SICK: Final[PublishedSick] = MappingProxyType({})


def upstream_resources(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Resources:
    """Return clusters and assignments: the upstream hosts of Envoy.

    Args:
        fleet: The fleet.
        memo: Cache of built resources.
        sick: Replicas published as sick.
    """
    return {
        type_url: {name: each.message for name, each in sent.resources.items()}
        for type_url, sent in upstream_contents(fleet, memo, sick).items()
    }


def upstream_contents(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Mapping[str, TypeSet]:
    """Return ``upstream_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    upstream = [memo.upstream(pool, frozenset(sick.get(pool.name, ()))) for pool in fleet.pools]
    # Equal parts are the same objects, which are compared in no time.
    subject = (fleet.pickers.addresses, upstream)
    return memo.recall("upstream", subject, lambda: _upstream_sets(*subject, memo))


def _upstream_sets(
    pickers: Sequence[str], upstream: Iterable[Upstream], memo: Memo
) -> Mapping[str, TypeSet]:
    clusters: dict[str, bytes | Resource] = {}
    assignments: dict[str, bytes | Resource] = {}
    clusters[PICKER_CLUSTER] = memo.recall(PICKER_CLUSTER, None, picker_cluster)
    assignments[PICKER_CLUSTER] = picker_assignment(pickers)
    for name, addresses in log_clusters(pickers).items():
        clusters[name] = memo.recall(name, None, partial(picker_cluster, name))
        assignments[name] = picker_assignment(addresses, name)
    for each in upstream:
        clusters.update(each.clusters)
        assignments.update(each.assignments)
    before = memo.target
    return {
        url: TypeSet.of(url, messages, None if before is None else before.type_set(url))
        for url, messages in ((CLUSTER_TYPE, clusters), (ENDPOINT_TYPE, assignments))
    }


def front_resources(
    fleet: Fleet,
    retiring: Fleet | None = None,
    coming: Fleet | None = None,
    memo: Memo | None = None,
    weights: Weights | None = None,
) -> Resources:
    """Return listener, filters, routes, limits, weights and secrets: Envoy's downstream side.

    Args:
        fleet: The fleet whose routes and limits are in force.
        retiring: The previous fleet. Pickers may choose its variants for a short time, so the
            routes to these variants and their limits remain.
        coming: The next fleet. Its new clusters have their limits from the start.
        memo: Cache of built resources.
        weights: The weights in force; those of ``fleet`` by default.
    """
    memo = memo or Memo()
    layers = weights_of(fleet) if weights is None else weights
    # Nothing else depends on weights, so a change of them builds nothing else.
    bare, other = neutral(fleet), coming or retiring
    beside = None if other is None else neutral(other)
    was = None if retiring is None else neutral(retiring)
    return {
        RUNTIME_TYPE: {
            RUNTIME_NAME: memo.runtime(bare, beside),
            **{name: memo.weight_layer(name, values) for name, values in layers.items()},
        },
        SECRET_TYPE: memo.secrets(bare, beside),
        EXTENSION_TYPE: memo.extensions(bare),
        LISTENER_TYPE: {LISTENER_NAME: memo.listener(fleet)},
        ROUTE_TYPE: {ROUTE_CONFIG_NAME: memo.routes(bare, was)},
    }


def picker_resources(view: View) -> Resources:
    """Return the pools, for pickers."""
    return {
        POOL_TYPE: {name: each.message for name, each in picker_contents(view)[POOL_TYPE].items()}
    }


def picker_contents(view: View, memo: Memo | None = None) -> Mapping[str, Mapping[str, Resource]]:
    """Return ``picker_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    return {POOL_TYPE: memo.pools_of(view)}
