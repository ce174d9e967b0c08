"""Models listed for replicas, as state beside the revision."""

from __future__ import annotations

from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import ENDPOINT_TYPE, LB_NAMESPACE, PLACED_KEY
from xds_server.fleet.diff import diff
from xds_server.fleet.members.members import placing
from xds_server.resources.endpoints import with_drop
from xds_server.snapshots.build import Memo, upstream_resources

FLEET = fleet(
    pool("a", endpoints=[endpoint(1), endpoint(2), endpoint(3, variant="canary")]),
    pool("b", endpoints=[endpoint(11), endpoint(12, variant="canary")]),
)
PLACED = (("a", (("r1", ("m1", "m2")),)), ("gone", (("r1", ("m1",)),)))


def listed(data: bytes) -> list[list[str]]:
    """Return the models of each host of an assignment."""
    return [
        list(host.metadata.filter_metadata[LB_NAMESPACE][PLACED_KEY])
        if LB_NAMESPACE in host.metadata.filter_metadata
        else []
        for locality in ClusterLoadAssignment.FromString(data).endpoints
        for host in locality.lb_endpoints
    ]


def test_only_the_named_pool_changes() -> None:
    """Others are the same objects, and so is the result for equal input."""
    found = placing(FLEET, PLACED)
    assert [each.listed for each in found.pools[0].endpoints] == [("m1", "m2"), (), ()]
    assert found.pools[1] is FLEET.pools[1]
    assert placing(FLEET, PLACED) is found
    assert placing(FLEET, ()) is FLEET
    other = placing(FLEET, (*PLACED, ("b", (("r11", ("m1",)),))))
    assert other.pools[0] is found.pools[0]


def test_operators_see_no_difference() -> None:
    """It is observed, and no part of the desired state."""
    assert not list(diff(FLEET, placing(FLEET, PLACED)))
    assert placing(FLEET, PLACED).model_dump() == FLEET.model_dump()


def test_replicas_carry_their_models_to_envoys() -> None:
    """Those of the cluster alone change: no cluster, and no other assignment."""
    memo = Memo()
    before = upstream_resources(FLEET, memo)
    after = upstream_resources(placing(FLEET, PLACED), memo)
    changed = {
        (url, name)
        for url, each in after.items()
        for name in each
        if before[url][name] != each[name]
    }
    assert changed == {(ENDPOINT_TYPE, f"a/stable/{protocol}") for protocol in ("http", "grpc")}
    assert listed(after[ENDPOINT_TYPE]["a/stable/http"]) == [["m1", "m2"], []]
    assert upstream_resources(FLEET, memo) == before


def test_the_brake_keeps_the_models() -> None:
    """A share of load to shed is told by metadata of the hosts, too."""
    data = upstream_resources(placing(FLEET, PLACED))[ENDPOINT_TYPE]["a/stable/http"]
    braked = with_drop(data, 25.0)
    assert braked != data
    assert listed(braked) == listed(data)
    assert with_drop(braked, 0.0) == data
