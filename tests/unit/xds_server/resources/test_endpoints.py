"""Assignments and pools put together from the parts of single endpoints."""

from __future__ import annotations

import pytest
from envoy.config.endpoint.v3 import endpoint_pb2

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ClusterRef
from xds_server.fleet.view import View
from xds_server.resources import endpoints as module
from xds_server.resources.endpoints import assignment
from xds_server.resources.pools import pool_resource

SHAPES: dict[str, dict] = {
    "plain": {},
    "none": {"endpoints": []},
    "zones": {
        "endpoints": [endpoint(1, zone="b"), endpoint(2, zone="a"), endpoint(3, zone="b")],
        "zones": ["a"],
    },
    "drain": {"endpoints": [endpoint(1, draining=True), endpoint(2, capacity=0.001)]},
    "brake": {"drop_overload": 12.5},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_assignment_in_parts_is_what_the_library_would_write(shape: dict, protocol: str) -> None:
    """Byte for byte, so that its version does not depend on how it was made."""
    (made,) = fleet(pool(default=True, **shape)).pools
    for sick in ((), ("r1",)):
        data = assignment(made, ClusterRef(made.name, "stable", protocol), sick)
        message = endpoint_pb2.ClusterLoadAssignment.FromString(data)
        assert message.SerializeToString(deterministic=True) == data
        hosts = [host for group in message.endpoints for host in group.lb_endpoints]
        assert len(hosts) == sum(made.variant_of(each) == "stable" for each in made.endpoints)


def test_an_unchanged_endpoint_is_serialized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of one endpoint out of ten thousand costs one."""
    (old,) = fleet(pool()).pools
    ref = ClusterRef(old.name, "stable", "http")
    assignment(old, ref)
    edited = old.endpoints[0].model_copy(update={"capacity": 7.0})
    new = old.model_copy(update={"endpoints": (edited, *old.endpoints[1:])})
    kept, built = module._lb_endpoint, []
    build = kept._function
    monkeypatch.setattr(
        kept, "_function", lambda each, *key: (built.append(each), build(each, *key))[1]
    )
    assert assignment(new, ref) != assignment(old, ref)
    assert built == [edited]


def test_a_pool_in_parts_has_all_its_endpoints_in_order() -> None:
    """Pickers identify replicas by id, and hash over them in this order."""
    found = fleet(pool(endpoints=[endpoint(2), endpoint(1, draining=True)]))
    view = View(found, {"r2": (7, 99)})
    message = pool_pb2.Pool.FromString(pool_resource(view, found.pools[0]))
    assert [each.id for each in message.endpoints] == [each.id for each in found.pools[0].endpoints]
    assert [each.draining for each in message.endpoints] == [False, True]
    assert message.name == found.pools[0].name
