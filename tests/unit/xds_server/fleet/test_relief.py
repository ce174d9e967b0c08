"""Which changes relieve replicas."""

from __future__ import annotations

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.change import set_draining, set_drop_overload, set_weights
from xds_server.fleet.diff import is_relief


def test_drains_their_ends_and_shed_relieve() -> None:
    """Alone or together, in one direction or the other."""
    calm = fleet()
    drained = set_draining(calm, "r1", True)
    shedding = set_drop_overload(drained, "llm", 20)
    assert is_relief(calm, drained)
    assert is_relief(drained, calm)
    assert is_relief(calm, shedding)


def test_a_weight_beside_a_drain_is_no_relief() -> None:
    """One part that is none makes the whole none."""
    calm = fleet()
    assert not is_relief(calm, set_weights(set_draining(calm, "r1", True), "llm", {"canary": 30}))


def test_a_new_replica_is_no_relief() -> None:
    """Its incarnation would be the number of a revision that a restart may lose."""
    grown = fleet(pool(default=True, endpoints=[*pool()["endpoints"], endpoint(4)]))
    assert not is_relief(fleet(), grown)
