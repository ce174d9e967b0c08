"""The first stage after a restart: pickers use what every Envoy has, and keep the rest."""

from __future__ import annotations

from google.protobuf import any_pb2
from hypothesis import given
from hypothesis import strategies as st

from support.drawn_fleets import fleets
from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import picker_resources
from xds_server.snapshots.restart import restart_fleet, restart_stage
from xds_server.snapshots.stages import host_of


def read(snapshot: Snapshot) -> dict[str, pool_pb2.Pool]:
    """Return the pools of a pickers' snapshot by name."""
    return {
        name: pool_pb2.Pool.FromString(any_pb2.Any.FromString(resource.any).value)
        for name, resource in snapshot.resources(POOL_TYPE).items()
    }


def told(past: list[Fleet], new: Fleet) -> dict[str, pool_pb2.Pool]:
    """Return the pools that pickers get."""
    stage = restart_stage(past, View(new))
    assert (stage.audience, stage.urgent) == ("picker", True)
    return read(stage.snapshot)


def hosts(of: Fleet, name: str) -> set[tuple]:
    """Return the hosts of a fleet's pool."""
    return {host_of(each, e) for each in of.pools if each.name == name for e in each.endpoints}


def test_after_a_completed_change_pickers_get_the_fleet_in_force() -> None:
    """All Envoys have it, so their answers need not be waited for."""
    new = fleet()
    assert restart_fleet([], new) is new
    assert told([], new) == read(Snapshot.of(picker_resources(View(new))))


def test_a_replica_that_some_envoys_may_lack_gets_nothing_new() -> None:
    """It was added by a change that was not completed."""
    old, new = fleet(), fleet(pool(default=True, endpoints=[*pool()["endpoints"], endpoint(4)]))
    found = {one.id: one.draining for one in told([old], new)["llm"].endpoints}
    assert found == {"r1": False, "r2": False, "r3": False, "r4": True}


def test_a_variant_that_some_envoys_may_lack_has_no_draw() -> None:
    """A request is not sent to a cluster that its Envoy does not have."""
    renamed = pool(
        default=True,
        variants=[{"name": "stable", "weight": 90}, {"name": "blue", "weight": 10}],
        endpoints=[endpoint(1), endpoint(2), endpoint(3, variant="blue")],
    )
    found = told([fleet()], fleet(renamed))["llm"]
    assert {v.name: v.weight for v in found.variants} == {"stable": 90, "blue": 0, "canary": 0}


def test_a_pool_that_some_envoys_may_lack_is_not_matched() -> None:
    """Its replicas are known, but no request belongs to it yet."""
    both = fleet(pool(default=True), pool("chat", endpoints=[endpoint(7)]))
    found = told([fleet()], both)["chat"]
    assert not found.models
    assert [one.id for one in found.endpoints] == ["r7"]


def test_a_pool_without_a_common_replica_stays_usable() -> None:
    """All of its replicas were replaced: an Envoy that lacks the new ones chooses by itself."""
    old = fleet(pool(default=True, endpoints=[endpoint(1), endpoint(3, variant="canary")]))
    new = fleet(pool(default=True, endpoints=[endpoint(5), endpoint(6, variant="canary")]))
    found = {one.id: one.draining for one in told([old], new)["llm"].endpoints}
    assert not found["r5"]
    assert not found["r6"]


@given(past=st.lists(fleets(), min_size=1, max_size=3), new=fleets())
def test_only_what_every_envoy_has_is_used(past: list[Fleet], new: Fleet) -> None:
    """Where there is a choice, no request goes to a host that one of the fleets lacks."""
    for name, found in told(past, new).items():
        known = [hosts(each, name) for each in (*past, new) if hosts(each, name)]
        common = set.intersection(*known)
        usable = {e.variant: set() for e in found.endpoints}
        for e in found.endpoints:
            if not e.draining:
                usable[e.variant].add(
                    (e.variant, e.id, e.http_address or None, e.grpc_address or None)
                )
        for used in usable.values():
            assert used <= common or not used & common


@given(past=st.lists(fleets(), min_size=1, max_size=3), new=fleets())
def test_no_replica_of_the_newest_fleet_is_forgotten(past: list[Fleet], new: Fleet) -> None:
    """Sequences on it continue."""
    found = told(past, new)
    for each in new.pools:
        ids = {(e.variant, e.id) for e in found[each.name].endpoints}
        assert {(each.variant_of(e), e.id) for e in each.endpoints} <= ids


@given(past=st.lists(fleets(), min_size=1, max_size=3), new=fleets())
def test_drains_of_the_newest_fleet_are_in_force(past: list[Fleet], new: Fleet) -> None:
    """A draining replica is used only if its variant has no other."""
    found = told(past, new)
    for each in new.pools:
        draining = {e.id for e in each.endpoints if e.draining}
        for one in found[each.name].endpoints:
            if one.id in draining and not one.draining:
                others = [e for e in found[each.name].endpoints if e.variant == one.variant]
                assert not [e for e in others if e.id != one.id and not e.draining]
