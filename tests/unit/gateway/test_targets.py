"""Which replicas a question goes to."""

from __future__ import annotations

import pytest

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from gateway.targets import (
    MAX_REPLICAS,
    UnknownReplicaError,
    about,
    in_sight,
    pinned,
    replicas_of,
)
from tidegate_api.kserve.v1 import kserve_pb2


def endpoint(name: str, *, http: bool = True) -> Endpoint:
    """Return a replica, whose addresses are made of its name."""
    key = EndpointKey(name, 1)
    return Endpoint(key, "stable", f"{name}:1" if http else None, f"{name}:2")


def pool(name: str, *models: str, of: tuple[str, ...] = ("r1", "r2")) -> Pool:
    """Return a pool of these replicas."""
    return Pool(name, frozenset(models), endpoints=tuple(map(endpoint, of)))


def test_a_replica_of_several_pools_is_asked_once():
    """With both pools known of it."""
    targets = replicas_of([pool("a"), pool("b", of=("r2", "r3"))], "http")
    assert [each.address for each in targets.asked] == ["r1:1", "r2:1", "r3:1"]
    assert targets.asked[1].pools == {"a", "b"}


def test_a_model_is_asked_where_it_is_listed():
    """And everywhere if no pool lists it, such as a part of an ensemble."""
    pools = (pool("a", "m"), pool("b", "n"))
    assert about(pools, "m") == pools[:1]
    assert about(pools, "part") == pools


def test_only_the_named_pools_are_in_sight():
    """A host sees no others."""
    pools = {"b": pool("b"), "a": pool("a")}
    assert [each.name for each in in_sight(pools, None)] == ["a", "b"]
    assert [each.name for each in in_sight(pools, frozenset({"b", "x"}))] == ["b"]
    assert in_sight(pools, frozenset({""})) == ()


def test_one_replica_by_its_id():
    """One that is not in sight does not exist."""
    (one,) = replicas_of([pool("a")], "grpc", "r2").asked
    assert one.address == "r2:2"
    with pytest.raises(UnknownReplicaError):
        replicas_of([pool("a")], "http", "r9")


def test_a_replica_without_the_protocol_is_not_asked():
    """It has no address for it."""
    only_grpc = Pool("a", endpoints=(endpoint("r1", http=False), endpoint("r2")))
    assert [each.key.id for each in replicas_of([only_grpc], "http").asked] == ["r2"]
    with pytest.raises(UnknownReplicaError):
        replicas_of([only_grpc], "http", "r1")


def test_the_number_of_replicas_is_bounded():
    """Those above the bound are counted."""
    many = pool("a", of=tuple(f"r{n}" for n in range(MAX_REPLICAS + 7)))
    targets = replicas_of([many], "http")
    assert (len(targets.asked), targets.unasked) == (MAX_REPLICAS, 7)


def test_a_question_without_a_version_is_for_that_of_the_variant():
    """In the path, and as a field of each message of such questions; not for a replica by name."""
    variants = (Variant("stable", 1, "7"), Variant("free", 1))
    far = Endpoint(EndpointKey("r3", 1), "free", "r3:1", "r3:2")
    of = Pool("a", frozenset({"m"}), variants=variants, endpoints=(endpoint("r1"), far))
    one, other = replicas_of([of], "http", unversioned="m").asked
    assert one.path("/v2/models/m%20n/config?x=1") == "/v2/models/m%20n/versions/7/config?x=1"
    assert one.path("/v2/models/m") == "/v2/models/m/versions/7"
    asked = kserve_pb2.ModelRequest(name="m").SerializeToString()
    assert kserve_pb2.ModelRequest.FromString(one.message(asked)).version == "7"
    assert (other.path("/v2/models/m"), other.message(asked)) == ("/v2/models/m", asked)
    for more in ({}, {"unversioned": "n"}, {"unversioned": "m", "endpoint": "r1"}):
        assert replicas_of([of], "http", **more).asked[0].version == ""
    words = "variant stable of pool a has model_version 7"
    assert pinned([of], "m") == pinned([of], "m", "r1") == {"r1": words}
    assert pinned([of], "n") == pinned([of], "m", "r3") == {}
