"""Snapshots for Envoys whose bootstrap lacks the layers of weights."""

from __future__ import annotations

from envoy.config.route.v3 import route_pb2

from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE, ROUTE_CONFIG_NAME, ROUTE_TYPE, WEIGHT_LAYERS
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.resources.routes.weights import weights_of
from xds_server.snapshots.build import envoy_snapshot, weights_held
from xds_server.snapshots.stages import plan


def target(stable: int, canary: int) -> Snapshot:
    """Return the Envoys' snapshot of a fleet with these weights."""
    variants = [{"name": "stable", "weight": stable}, {"name": "canary", "weight": canary}]
    view = View(fleet(pool(default=True, variants=variants)))
    (found,) = (stage.snapshot for stage in plan(None, view) if stage.audience == "envoy")
    return found


def drawn(snapshot: Snapshot) -> set[tuple[int, ...]]:
    """Return the weights in the routes of a snapshot."""
    message = snapshot.resources(ROUTE_TYPE)[ROUTE_CONFIG_NAME].message
    config = route_pb2.RouteConfiguration.FromString(message)
    return {
        tuple(cluster.weight.value for cluster in route.route.weighted_clusters.clusters)
        for host in config.virtual_hosts
        for route in host.routes
        if route.route.HasField("weighted_clusters")
    }


def test_routes_without_layers_have_the_weights() -> None:
    """All else is the same resources."""
    snapshot = target(80, 20)
    assert (80, 20) not in drawn(snapshot)
    assert drawn(snapshot.plain) == {(80, 20)}
    assert snapshot.plain.resources(CLUSTER_TYPE) == snapshot.resources(CLUSTER_TYPE)
    assert snapshot.plain is snapshot.plain, "it is made once"


def test_another_weight_is_another_form_of_the_same_routes() -> None:
    """The routes themselves stay as they are."""
    first, second = target(80, 20), target(70, 30)
    assert first.resources(ROUTE_TYPE) == second.resources(ROUTE_TYPE)
    assert (drawn(first.plain), drawn(second.plain)) == ({(80, 20)}, {(70, 30)})


def test_the_weights_of_a_snapshot_are_those_of_its_fleet() -> None:
    """A change that is not finished goes on from them; no layers hold no weights."""
    variants = [{"name": "stable", "weight": 80}, {"name": "canary", "weight": 20}]
    held = weights_held(target(80, 20))
    expected = weights_of(fleet(pool(default=True, variants=variants)))
    assert {name: dict(values) for name, values in held.items()} == {
        name: dict(expected.get(name, {})) for name in WEIGHT_LAYERS
    }
    assert weights_held(envoy_snapshot({})) == {name: {} for name in WEIGHT_LAYERS}
