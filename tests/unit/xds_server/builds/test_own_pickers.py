"""The pickers that an Envoy asks first."""

from __future__ import annotations

from envoy.config.endpoint.v3 import endpoint_pb2

from support.fleets import fleet, pool
from tidegate_api.names import ENDPOINT_TYPE, PICKER_CLUSTER
from xds_server.builds.adapted import Builds
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import upstream_resources

ADDRESSES = ["10.0.0.1:18001", "10.0.0.2:18001", "[fd00::3]:18001"]


def snapshot(addresses: list[str] | None = None) -> Snapshot:
    """Return what all Envoys are sent."""
    pickers = {"addresses": ADDRESSES if addresses is None else addresses}
    return Snapshot.of(upstream_resources(fleet(pool(), pickers=pickers)))


def adapted(*own: str, of: Snapshot | None = None) -> Snapshot:
    """Return what an Envoy is sent that names its own pickers."""
    adapt = Builds().adapter(None, frozenset(own))
    assert adapt is not None
    return adapt(of or snapshot())


def priorities(made: Snapshot) -> dict[str, int]:
    """Return each picker's priority, by its host."""
    message = made.resources(ENDPOINT_TYPE)[PICKER_CLUSTER].message
    return {
        host.endpoint.address.socket_address.address: locality.priority
        for locality in endpoint_pb2.ClusterLoadAssignment.FromString(message).endpoints
        for host in locality.lb_endpoints
    }


def test_own_pickers_come_before_all_others() -> None:
    """Whatever else the Envoy names."""
    made = adapted("[fd00::3]:18001", "10.0.0.1:18001", "10.9.9.9:1")
    assert priorities(made) == {"10.0.0.1": 0, "fd00::3": 0, "10.0.0.2": 1}


def test_an_envoy_without_own_pickers_in_the_fleet_gets_what_all_get() -> None:
    """Priorities may have no gap, and equal bytes stay shared."""
    whole = snapshot()
    for own in (["10.9.9.9:1"], ADDRESSES, ["nonsense", "10.0.0.1"]):
        made = adapted(*own, of=whole).resources(ENDPOINT_TYPE)
        assert made[PICKER_CLUSTER] is whole.resources(ENDPOINT_TYPE)[PICKER_CLUSTER]


def test_nothing_else_is_edited() -> None:
    """All other resources are the same objects."""
    whole = snapshot()
    made = adapted("10.0.0.1:18001", of=whole)
    assert made.version(ENDPOINT_TYPE) != whole.version(ENDPOINT_TYPE)
    for type_url in whole.type_urls:
        for name, resource in whole.resources(type_url).items():
            if name != PICKER_CLUSTER or type_url != ENDPOINT_TYPE:
                assert made.resources(type_url)[name] is resource


def test_envoys_with_the_same_pickers_share_one_snapshot() -> None:
    """While one of them is connected; afterwards nothing is kept of what a client named."""
    builds = Builds()
    one, two, other = (builds.adapter(None, frozenset({at})) for at in [*ADDRESSES[:1] * 2, "x"])
    assert one is not None
    assert two is not None
    assert one(snapshot()) is two(snapshot())
    assert len(builds._shared) == 2
    del one, two, other
    assert not builds._shared


def test_an_older_build_may_have_pickers_of_its_own() -> None:
    """Both edits are made."""
    adapt = Builds().adapter((1, 36, 0), frozenset(ADDRESSES[:1]))
    assert adapt is not None
    assert priorities(adapt(snapshot()))["10.0.0.1"] == 0
    assert priorities(adapt(snapshot()))["10.0.0.2"] == 1
