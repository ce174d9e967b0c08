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
from xds_server.protocol.snapshot import Resource
from xds_server.resources.access_log import log_clusters
from xds_server.resources.clusters import picker_cluster
from xds_server.resources.endpoints import picker_assignment
from xds_server.resources.routes.weights import neutral
from xds_server.resources.runtime import weights_of
from xds_server.snapshots.memo import Memo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.view import View
    from xds_server.resources.runtime import Weights

    Resources = Mapping[str, Mapping[str, bytes]]
    Contents = Mapping[str, Mapping[str, bytes | Resource]]

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
        type_url: {
            name: each.message if isinstance(each, Resource) else each
            for name, each in contents.items()
        }
        for type_url, contents in upstream_contents(fleet, memo, sick).items()
    }


def upstream_contents(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Contents:
    """Return ``upstream_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    clusters: dict[str, bytes | Resource] = {}
    assignments: dict[str, bytes | Resource] = {}
    clusters[PICKER_CLUSTER] = memo.recall(PICKER_CLUSTER, None, picker_cluster)
    assignments[PICKER_CLUSTER] = picker_assignment(fleet.pickers.addresses)
    for name, addresses in log_clusters(fleet.pickers.addresses).items():
        clusters[name] = memo.recall(name, None, partial(picker_cluster, name))
        assignments[name] = picker_assignment(addresses, name)
    for pool in fleet.pools:
        upstream = memo.upstream(pool, frozenset(sick.get(pool.name, ())))
        clusters.update(upstream.clusters)
        assignments.update(upstream.assignments)
    return {CLUSTER_TYPE: clusters, ENDPOINT_TYPE: assignments}


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
    return {POOL_TYPE: {pool.name: memo.pool(view, pool) for pool in view.fleet.pools}}
