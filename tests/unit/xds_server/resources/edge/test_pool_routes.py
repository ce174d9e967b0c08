"""Which routes forward to a pool."""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2

from xds_server.resources.edge.pool_routes import routes_to


def route(*clusters: str, weighted: bool = False) -> route_components_pb2.Route:
    """Return a route to these clusters."""
    made = route_components_pb2.Route()
    made.route.SetInParent()
    if weighted:
        for name in clusters:
            made.route.weighted_clusters.clusters.add(name=name)
    elif clusters:
        made.route.cluster = clusters[0]
    return made


def test_routes_to_the_pools_are_found() -> None:
    """By their cluster, or by the first of their variants."""
    one = route("llm/stable/http")
    two = route("llm/stable/grpc", "llm/canary/grpc", weighted=True)
    other = route("vision/stable/http")
    assert list(routes_to([one, other, two], {"llm": None})) == [(one, "llm"), (two, "llm")]


def test_routes_that_forward_to_no_pool_are_left_out() -> None:
    """Envoy's own answers, clusters that a header names, and clusters of other kinds."""
    answer = route_components_pb2.Route()
    answer.direct_response.status = 404
    by_header = route()
    by_header.route.cluster_header = "x-cluster"
    assert list(routes_to([answer, by_header, route("tidegate-picker")], {"llm", ""})) == []
