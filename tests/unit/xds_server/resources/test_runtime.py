"""Limits and slow-start settings over RTDS."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.service.runtime.v3 import rtds_pb2

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import CLUSTER_TYPE, RUNTIME_TYPE
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.resources.runtime import runtime
from xds_server.snapshots.build import upstream_resources
from xds_server.snapshots.stages import plan


def values(data: bytes) -> dict[str, float]:
    """Return a layer's keys and values."""
    return dict(rtds_pb2.Runtime.FromString(data).layer.items())


def tight(requests: int = 7) -> Fleet:
    """Return a fleet whose pool has limits and a slow start of its own."""
    return fleet(
        pool(
            circuit_breaker={
                "max_requests": requests,
                "max_connections": 8,
                "max_pending": 9,
                "retry_budget_percent": 25,
                "min_retries": 3,
            },
            slow_start={"aggression": 2.5},
        )
    )


def test_each_cluster_has_its_limits() -> None:
    """The layer contains every limit with a runtime key, and the pool's aggression."""
    layer = values(runtime(tight()))
    prefix = "circuit_breakers.llm/canary/grpc.default."
    assert {k.removeprefix(prefix): v for k, v in layer.items() if k.startswith(prefix)} == {
        "max_connections": 8,
        "max_pending_requests": 9,
        "max_requests": 7,
        "retry_budget.budget_percent": 25,
        "retry_budget.min_retry_concurrency": 3,
    }
    assert layer["tidegate.slow_start.llm.aggression"] == 2.5


def test_requests_without_a_pick_are_bounded_by_themselves() -> None:
    """The bound is that of the priority *high*, and never above the cluster's own."""
    layer = values(runtime(tight(), unpicked={"llm/stable/http": 4, "llm/stable/grpc": 90}))
    most = {
        (protocol, priority): layer[
            f"circuit_breakers.llm/stable/{protocol}.{priority}.max_requests"
        ]
        for protocol in ("http", "grpc")
        for priority in ("default", "high")
    }
    assert most == {
        ("http", "default"): 7,
        ("http", "high"): 4,
        ("grpc", "default"): 7,
        ("grpc", "high"): 7,
    }


@pytest.mark.parametrize("new", [tight(), fleet(pool()).bounding((("llm/stable/http", 4),))])
def test_limits_change_one_type(new: Fleet) -> None:
    """In each stage: those that are learned change often, and no route is made anew for them."""
    old = fleet(pool())
    force = {stage.audience: stage.snapshot for stage in plan(None, View(old))}["envoy"]
    for stage in plan(View(old), View(new)):
        if stage.audience == "envoy":
            urls = stage.snapshot.type_urls
            changed = {url for url in urls if stage.snapshot.version(url) != force.version(url)}
            assert changed <= {RUNTIME_TYPE}
    assert changed == {RUNTIME_TYPE}


def test_patterns_of_many_paths_are_accepted() -> None:
    """Envoy refuses routes with a compiled pattern above 100, which six paths exceed."""
    assert values(runtime(fleet()))["re2.max_program_size.error_level"] >= 1000


def test_limits_and_ramps_leave_the_clusters_as_they_are() -> None:
    """A changed cluster would be warmed again and lose its connections."""
    assert upstream_resources(tight()) == upstream_resources(fleet(pool()))


def test_the_ramp_reads_the_key_that_the_layer_sets() -> None:
    """Cluster and layer must use the same key."""
    data = upstream_resources(fleet())[CLUSTER_TYPE]["llm/stable/http"]
    policy = cluster_pb2.Cluster.FromString(data).load_balancing_policy.policies[0]
    assert b"tidegate.slow_start.llm.aggression" in policy.typed_extension_config.typed_config.value


def test_while_two_fleets_live_both_have_their_limits() -> None:
    """New clusters start with their limits, retiring ones keep theirs."""
    old = tight(5)
    new = fleet(pool("b", endpoints=[endpoint(5), endpoint(6, variant="canary")]), pool())
    both = values(runtime(old, also=new))
    assert both["circuit_breakers.llm/stable/http.default.max_requests"] == 5
    assert both["circuit_breakers.b/stable/http.default.max_requests"] == 1024
