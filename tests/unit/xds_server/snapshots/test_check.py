"""A snapshot with inconsistent resources is not published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.route.v3 import route_pb2

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    SECRET_TYPE,
)
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.resources.routes.weights import layer_of, weight_layer, weights_in
from xds_server.snapshots import build, check, stages
from xds_server.snapshots.check import Inconsistent, hold

Contents = dict[str, dict[str, bytes]]

EVERYTHING = fleet(
    pool(
        default=True,
        variants=[{"name": "stable"}, {"name": "canary", "weight": 0}],
        endpoints=[endpoint(1, zone="b"), endpoint(2, zone="a"), endpoint(3, variant="canary")],
        shadow={"variant": "canary"},
        zones=["a", "b"],
        drop_overload=5,
        upstream_tls={"ca": "/ca.crt", "certificate": "/tls.crt", "key": "/tls.key"},
    ),
    listener={"tls": {"certificate": "/l.crt", "key": "/l.key", "client_ca": "/c.crt"}},
)
CLUSTER = "llm/stable/http"


def contents() -> Contents:
    """Return all resources of a fleet that uses everything."""
    both = {**build.upstream_resources(EVERYTHING), **build.front_resources(EVERYTHING)}
    return {type_url: dict(messages) for type_url, messages in both.items()}


def changed(
    type_url: str, name: str, message: Any, change: Callable[[Any], object]
) -> Callable[[Contents], None]:
    """Return a function that changes one resource."""

    def step(of: Contents) -> None:
        message.ParseFromString(of[type_url][name])
        change(message)
        of[type_url][name] = message.SerializeToString()

    return step


def routes(change: Callable[[Any], object]) -> Callable[[Contents], None]:
    """Return a function that changes the routes of the only host."""
    return changed(
        ROUTE_TYPE,
        ROUTE_CONFIG_NAME,
        route_pb2.RouteConfiguration(),
        lambda message: change(message.virtual_hosts[0].routes),
    )


def endpoints(change: Callable[[Any], object]) -> Callable[[Contents], None]:
    """Return a function that changes an assignment."""
    return changed(ENDPOINT_TYPE, CLUSTER, endpoint_pb2.ClusterLoadAssignment(), change)


def _split(routes: Any, *weights: int) -> None:
    route = routes.add(name="split")
    for weight in weights:
        route.route.weighted_clusters.clusters.add(name=CLUSTER).weight.value = weight


def weights(value: int) -> Callable[[Contents], None]:
    """Return a function that changes all weights of the pool."""
    name = layer_of("llm")

    def step(of: Contents) -> None:
        held = weights_in(of[RUNTIME_TYPE][name])
        of[RUNTIME_TYPE][name] = weight_layer(name, dict.fromkeys(held, value))

    return step


def test_built_resources_are_consistent() -> None:
    """X62: every resource that another one names exists."""
    snapshot = Snapshot.of(contents())
    assert hold(snapshot) is snapshot


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda of: of[ENDPOINT_TYPE].pop(CLUSTER), f"needs ClusterLoadAssignment '{CLUSTER}'"),
        (lambda of: of[CLUSTER_TYPE].pop(CLUSTER), f"needs Cluster '{CLUSTER}'"),
        (lambda of: of[CLUSTER_TYPE].pop("tidegate-picker"), "needs Cluster 'tidegate-picker'"),
        (lambda of: of[EXTENSION_TYPE].clear(), "needs TypedExtensionConfig 'tidegate.strip'"),
        (lambda of: of[ROUTE_TYPE].clear(), "needs RouteConfiguration 'tidegate-routes'"),
        (lambda of: of[SECRET_TYPE].pop("pool/llm/ca"), "needs Secret 'pool/llm/ca'"),
        (lambda of: of[SECRET_TYPE].pop("pool/llm/certificate"), "needs Secret"),
        (lambda of: of[SECRET_TYPE].pop("listener/client-ca"), "needs Secret"),
        (
            lambda of: of[LISTENER_TYPE].update(x=of[LISTENER_TYPE].popitem()[1]),
            "contains the name",
        ),
        (
            changed(CLUSTER_TYPE, CLUSTER, cluster_pb2.Cluster(), lambda c: c.ClearField("name")),
            f"'{CLUSTER}' contains the name ''",
        ),
        (lambda of: of[ENDPOINT_TYPE].update(x=b"\n\x01x"), "assignment 'x' has no cluster"),
        (routes(lambda all_: all_.add(name="no-pool")), "two routes are named 'no-pool'"),
        (routes(lambda all_: _split(all_, 0, 0)), "route 'split' add up to 0"),
        (routes(lambda all_: _split(all_, 2**32 - 1, 1)), "add up to 4294967296"),
        (lambda of: of[RUNTIME_TYPE].pop(layer_of("llm")), "no layer contains 'tidegate.weight."),
        (weights(0), "others add up to 0"),
        (weights(2**31), "others add up to 4294967296"),
        (endpoints(lambda one: one.policy.drop_overloads.add()), "more than one drop category"),
        (
            endpoints(lambda one: setattr(one.endpoints[0], "priority", 4)),
            "have a gap",
        ),
        (
            endpoints(
                lambda one: setattr(
                    one.endpoints[0].lb_endpoints[0].load_balancing_weight, "value", 0
                )
            ),
            "an endpoint of weight 0",
        ),
    ],
)
def test_inconsistent_resources_are_reported(
    step: Callable[[Contents], None], expected: str
) -> None:
    """X33: the error names the place and states that nothing was published."""
    broken = contents()
    step(broken)
    with pytest.raises(Inconsistent, match="nothing was published") as error:
        hold(Snapshot.of(broken))
    assert expected in str(error.value)


def test_a_set_that_was_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of endpoints costs nothing for clusters and routes."""
    before, new = Snapshot.of(contents()), contents()
    endpoints(lambda one: one.endpoints[0].lb_endpoints.pop())(new)
    after, read = Snapshot.of(new, previous=hold(before)), list[bytes]()
    assert after.type_set(ROUTE_TYPE) is before.type_set(ROUTE_TYPE)
    real = check._facts_of
    monkeypatch.setattr(check, "_facts_of", lambda of, one: (read.append(one), real(of, one))[1])
    assert hold(after) is after
    assert len(read) == len(after.resources(ENDPOINT_TYPE))


def test_a_long_list_of_faults_is_truncated() -> None:
    """The error names a bounded number of faults."""
    broken = contents()
    broken[CLUSTER_TYPE].clear()
    with pytest.raises(Inconsistent, match=r"and \d+ more$"):
        hold(Snapshot.of(broken))


def test_a_plan_with_a_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage for Envoys is checked."""
    monkeypatch.setattr(stages, "upstream_contents", lambda *_: {CLUSTER_TYPE: {}})
    with pytest.raises(Inconsistent):
        stages.plan(None, View(fleet()))
