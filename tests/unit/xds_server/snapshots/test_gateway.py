"""A gateway that comes and goes, and its place among the clients."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from support.fleets import fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    GATEWAY_CLUSTERS,
    GATEWAY_NODE_CLUSTER,
    GATEWAY_OPERATOR_CLUSTERS,
    PICKER_NODE_CLUSTER,
    ROUTE_TYPE,
)
from xds_server.fleet.diff import diff
from xds_server.fleet.view import View
from xds_server.protocol import wire
from xds_server.snapshots.stages import plan

GATEWAY = {"http": ["127.0.0.1:1"], "grpc": ["127.0.0.1:2"]}
CLUSTERS = set(GATEWAY_CLUSTERS.values())


def stages(old, new):
    """Return of each stage of Envoys: label, whether it has the clusters, whether routes ask."""
    found = []
    for stage in plan(View(old), View(new)):
        if stage.audience == "envoy":
            has = stage.snapshot.resources(CLUSTER_TYPE).keys() >= CLUSTERS
            assert has == (stage.snapshot.resources(ENDPOINT_TYPE).keys() >= CLUSTERS)
            routes = stage.snapshot.resources(ROUTE_TYPE)
            asks = any(b"tidegate-gateway/http" in each.any for each in routes.values())
            found.append((stage.label, has, asks))
    return found


def test_clusters_come_before_the_routes_and_go_after_them() -> None:
    """At no moment does a route name a cluster that is not there."""
    without, with_one = fleet(pool(default=True)), fleet(pool(default=True), gateway=GATEWAY)
    assert stages(without, with_one) == [
        ("add", True, False),
        ("switch", True, True),
        ("remove", True, True),
    ]
    assert stages(with_one, without) == [
        ("add", True, True),
        ("switch", True, False),
        ("remove", False, False),
    ]


def test_ports_for_operators_come_before_their_routes_and_go_after_them() -> None:
    """At no moment does a listener for operators send a change to a cluster that is not there."""
    ports = {"http": ["127.0.0.1:3"], "grpc": ["127.0.0.1:4"]}
    further = [{"name": "ops", "address": "127.0.0.1:9", "operators": True}]
    without = fleet(pool(default=True), gateway=GATEWAY)
    with_ports = fleet(
        pool(default=True),
        gateway={**GATEWAY, "operators": ports},
        listener={"address": "127.0.0.1:8", "further": further},
    )
    wanted = set(GATEWAY_OPERATOR_CLUSTERS.values())
    for old, new, has in (
        (without, with_ports, [True, True, True]),
        (with_ports, without, [True, True, False]),
    ):
        stages_ = [each for each in plan(View(old), View(new)) if each.audience == "envoy"]
        found = [each.snapshot.resources(CLUSTER_TYPE).keys() >= wanted for each in stages_]
        assert found == has


def test_a_change_of_gateways_is_told_to_operators() -> None:
    """Before it is made."""
    without, with_one = fleet(pool(default=True)), fleet(pool(default=True), gateway=GATEWAY)
    other = fleet(pool(default=True), gateway={**GATEWAY, "http": ["127.0.0.1:9"]})
    assert diff(without, with_one) == ("gateway added",)
    assert diff(with_one, without) == ("gateway removed",)
    assert diff(with_one, other) == ("gateway http +127.0.0.1:9 -127.0.0.1:1",)


@pytest.mark.parametrize(
    ("cluster", "kind", "audience"),
    [
        (GATEWAY_NODE_CLUSTER, "gateway", "picker"),
        (PICKER_NODE_CLUSTER, "picker", "picker"),
        ("edge", "envoy", "envoy"),
    ],
)
def test_a_gateway_is_served_what_pickers_are(cluster: str, kind: str, audience: str) -> None:
    """And is none: it reports no requests in flight, so drains do not wait for it."""
    request = discovery_pb2.DeltaDiscoveryRequest()
    request.node.id, request.node.cluster = "n", cluster
    node = wire.node_of(request)
    assert (node.kind, node.audience) == (kind, audience)
