"""Snapshots of Envoys, with a form for those whose bootstrap lacks the layers of weights.

Routes name the weights of variants by runtime keys. An Envoy without these layers would draw by the
neutral weights of the routes, so it gets routes that contain the weights. They are derived from the
routes and layers of the same snapshot, and only if a client needs them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from google.protobuf import any_pb2

from tidegate_api.names import ROUTE_TYPE, RUNTIME_TYPE, WEIGHT_LAYERS
from xds_server.protocol.snapshot import Snapshot
from xds_server.resources.routes.weights import spelled_out
from xds_server.resources.runtime import weights_in

if TYPE_CHECKING:
    from xds_server.protocol.snapshot import Resource
    from xds_server.resources.runtime import Weights
    from xds_server.snapshots.build import Contents, Resources

_REMEMBERED: Final = 8
"""Route configurations that are kept; a plan has at most three."""

_LAYERS_REMEMBERED: Final = 8 * len(WEIGHT_LAYERS)


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
    return {ROUTE_TYPE: {name: _spelled(found, layers) for name, found in routes.items()}}


@functools.lru_cache(maxsize=_REMEMBERED)
def _spelled(routes: Resource, layers: tuple[Resource, ...]) -> bytes:
    values = {key: value for layer in layers for key, value in _values(layer).items()}
    return spelled_out(any_pb2.Any.FromString(routes.any).value, values)


@functools.lru_cache(maxsize=_LAYERS_REMEMBERED)
def _values(layer: Resource) -> dict[str, int]:
    return weights_in(any_pb2.Any.FromString(layer.any).value)
