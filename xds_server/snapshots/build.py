"""Sets of resources for each audience: type URL -> name -> serialized message.

Routes name the weights of variants by runtime keys. An Envoy whose bootstrap lacks these layers
would draw by the neutral weights of the routes, so it gets routes with literal weights. They are
derived from the routes and layers of the same snapshot, and only if a client needs them.
"""

from __future__ import annotations

import functools
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf import any_pb2

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    PICKER_CLUSTER,
    POOL_TYPE,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    SECRET_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet
from xds_server.resources.access_log import log_clusters
from xds_server.resources.clusters import picker_cluster
from xds_server.resources.edge.request_log import collector_clusters
from xds_server.resources.edge.tokens import keys_clusters
from xds_server.resources.endpoints import picker_assignment
from xds_server.resources.gateway import gateway_assignment, gateway_cluster, gateway_ports
from xds_server.resources.routes.weights import neutral, with_literal_weights
from xds_server.resources.runtime import weights_in, weights_of
from xds_server.snapshots.memo import Memo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.view import View
    from xds_server.resources.runtime import Weights

    Resources = Mapping[str, Mapping[str, bytes]]
    Contents = Mapping[str, Mapping[str, bytes | Resource] | TypeSet]

_REMEMBERED: Final = 8
"""Route configurations with literal weights that are kept; a plan has at most three."""

_LAYERS_REMEMBERED: Final = 8 * len(WEIGHT_LAYERS)

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
    contents = upstream_contents(fleet, memo, sick)
    return {url: _messages(found) for url, found in contents.items()}


def upstream_contents(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Mapping[str, TypeSet]:
    """Return ``upstream_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    pickers = fleet.pickers.addresses
    clusters: dict[str, bytes | Resource] = {}
    assignments: dict[str, bytes | Resource] = {}
    tls = fleet.pickers.tls
    made = partial(picker_cluster, tls=tls)
    clusters[PICKER_CLUSTER] = memo.recall(PICKER_CLUSTER, tls, made)
    assignments[PICKER_CLUSTER] = picker_assignment(pickers)
    for name, addresses in log_clusters(pickers).items():
        clusters[name] = memo.recall(name, tls, partial(made, name))
        assignments[name] = picker_assignment(addresses, name)
    if fleet.gateway is not None:
        to = fleet.gateway.tls
        for name, protocol, addresses in gateway_ports(fleet.gateway):
            clusters[name] = memo.recall(name, to, partial(gateway_cluster, name, protocol, to))
            assignments[name] = gateway_assignment(name, addresses)
    clusters.update(keys_clusters(fleet.listener.jwt))
    clusters.update(collector_clusters(fleet.listener))
    for pool in fleet.pools:
        each = memo.upstream(pool, frozenset(sick.get(pool.name, ())))
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
    contents = front_contents(fleet, retiring, coming, memo, weights)
    return {url: _messages(found) for url, found in contents.items()}


def front_contents(
    fleet: Fleet,
    retiring: Fleet | None = None,
    coming: Fleet | None = None,
    memo: Memo | None = None,
    weights: Weights | None = None,
) -> Mapping[str, TypeSet]:
    """Return ``front_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    layers = weights_of(fleet) if weights is None else weights
    # Nothing else depends on weights, so a change of them builds nothing else.
    bare, other = neutral(fleet), coming or retiring
    beside = None if other is None else neutral(other)
    was = None if retiring is None else neutral(retiring)
    found = {
        SECRET_TYPE: memo.secrets(bare, beside),
        EXTENSION_TYPE: memo.extensions(bare, was),
        LISTENER_TYPE: memo.listeners(fleet),
        ROUTE_TYPE: memo.all_routes(bare, was),
    }
    return {
        RUNTIME_TYPE: memo.runtime_set(bare, beside, layers),
        **{url: memo.type_set(url, each, partial(dict, each)) for url, each in found.items()},
    }


def picker_resources(view: View) -> Resources:
    """Return the pools, for pickers."""
    return {POOL_TYPE: _messages(picker_contents(view)[POOL_TYPE])}


def picker_contents(view: View, memo: Memo | None = None) -> Mapping[str, TypeSet]:
    """Return ``picker_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    return {POOL_TYPE: memo.pool_set(view)}


def _messages(found: TypeSet) -> Mapping[str, bytes]:
    return {name: each.message for name, each in found.resources.items()}


def envoy_snapshot(contents: Contents, previous: Snapshot | None = None) -> Snapshot:
    """Return the snapshot of Envoys with these resources; see ``Snapshot.of``."""
    return Snapshot.of(contents, previous=previous, plain=_plain)


def weights_held(snapshot: Snapshot) -> Weights:
    """Return the weights in the layers of a snapshot."""
    found = snapshot.resources(RUNTIME_TYPE)
    return {name: _values(found[name]) if name in found else {} for name in WEIGHT_LAYERS}


def _plain(snapshot: Snapshot) -> Resources:
    held = snapshot.resources(RUNTIME_TYPE)
    layers = tuple(held[name] for name in WEIGHT_LAYERS if name in held)
    routes = snapshot.resources(ROUTE_TYPE)
    return {ROUTE_TYPE: {name: _literal(found, layers) for name, found in routes.items()}}


@functools.lru_cache(maxsize=_REMEMBERED)
def _literal(routes: Resource, layers: tuple[Resource, ...]) -> bytes:
    values = {key: value for layer in layers for key, value in _values(layer).items()}
    return with_literal_weights(any_pb2.Any.FromString(routes.any).value, values)


@functools.lru_cache(maxsize=_LAYERS_REMEMBERED)
def _values(layer: Resource) -> dict[str, int]:
    return weights_in(any_pb2.Any.FromString(layer.any).value)
