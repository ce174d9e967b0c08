"""The cache of built resources."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import ClusterRef
from xds_server.fleet.memo import shared
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View, clusters_of
from xds_server.resources.clusters import variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.pools import pool_resource
from xds_server.snapshots import build as build_module
from xds_server.snapshots.build import KEPT, Memo, front_resources

VARIANTS = [{"name": "stable", "weight": 1}, {"name": "canary", "weight": 9}]
CHANGES: tuple[dict, ...] = (
    {},
    {"variants": VARIANTS},
    {"endpoints": [endpoint(1), endpoint(3, variant="canary", zone="b", draining=True)]},
    {"endpoints": [endpoint(1, grpc=None), endpoint(3, variant="canary", grpc=None)]},
    {"endpoints": [endpoint(1, http=None), endpoint(3, variant="canary", capacity=2)]},
    {"endpoints": [endpoint(1, zone="b"), endpoint(3, variant="canary")], "zones": ["b", "a"]},
    {"health": {"path": "/up"}},
    {"outlier": {"interval": "7s"}},
    {"slow_start": {"window": "0s"}},
    {"circuit_breaker": {"max_requests": 7}},
    {"drop_overload": 10},
    {"timeouts": {"request": "9s"}},
    {"match": {"models": ["other"], "paths": ["/v1/chat/completions"]}},
    {"routing": {"session_header": "x-user"}},
    {
        "variants": [{"name": "stable"}, {"name": "canary", "weight": 0}],
        "circuit_breaker": {"max_requests": 7, "max_connections_per_endpoint": 3},
        "slow_start": {"window": "5s", "aggression": 2, "min_weight_percent": 3},
        "shadow": {"variant": "canary"},
        "zones": ["a"],
        "drop_overload": 5,
        "upstream_tls": {"ca": "/ca.crt"},
        "outlier": {"interval": "9s"},
        "health": {"path": "/x"},
    },
)


def one(**change) -> Fleet:
    """Return a fleet with this difference."""
    return fleet(pool(default=True, **change))


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_cached_resources_equal_built_ones(change: dict) -> None:
    """Rule 1: whatever is cached, the result is that of the builder."""
    memo = Memo()
    for found in (one(), one(**change), one()):
        (made,) = found.pools
        variants = {variant.name: variant for variant in made.variants}
        for ref in clusters_of(made):
            variant = variants[ref.variant]
            assert memo.cluster(made, variant, ref) == variant_cluster(made, variant, ref)
            assert memo.assignment(made, ref) == assignment(made, ref)
        assert front_resources(found, memo=memo) == front_resources(found)
        assert front_resources(found, one(), memo=memo) == front_resources(found, one())


def test_a_change_of_weights_and_endpoints_builds_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These are the frequent changes, and clusters the costly resources; limits go over RTDS."""
    built: list[ClusterRef] = []
    monkeypatch.setattr(
        build_module, "variant_cluster", lambda _pool, _variant, ref: built.append(ref) or b"c"
    )
    memo, ref = Memo(), ClusterRef("llm", "stable", "http")
    limit = {"circuit_breaker": {"max_requests": 7}, "drop_overload": 7}
    for change in (*CHANGES[:3], limit):
        (made,) = one(**change).pools
        assert memo.cluster(made, one().pools[0].variants[0], ref) == b"c"
    assert built == [ref]


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 2: results per key and keys are bounded."""
    memo, built = Memo(), []
    for subject in range(KEPT + 1):
        memo.recall("key", subject, lambda: built.append(1) or b"")
    memo.recall("key", KEPT, lambda: built.append(1) or b"")
    assert len(built) == KEPT + 1
    memo.recall("key", 0, lambda: built.append(1) or b"")
    assert len(built) == KEPT + 2
    monkeypatch.setattr(build_module, "MAX_KEYS", 2)
    for key in ("a", "b", "c"):
        memo.recall(key, 1, lambda: b"")
    assert list(memo._known) == ["b", "c"]


@pytest.mark.parametrize(
    "more",
    [
        {"pickers": {"addresses": ["10.0.0.1:1", "10.0.0.2:1"]}},
        {"pickers": {"fail_open": False}},
        {"listener": {"buffer_bytes": 16 << 20}},
        {"listener": {"access_log": {"stdout": True}}},
        {"listener": {"hosts": [{"names": ["llm.example"], "pools": ["llm"]}]}},
        {"idle": "3s"},
    ],
    ids=str,
)
def test_a_pool_follows_what_stands_beside_it(more: dict) -> None:
    """Rule 1: pickers are told of each, though the pool itself is the same object."""
    more = dict(more)
    idle = more.pop("idle", "5m")
    both = [
        fleet(
            pool(default=True, routing={"hung_requests": "move", "max_wait": "9s"}),
            pool("b", match={"models": ["b"]}, timeouts={"idle": each}),
            **changed,
        )
        for each, changed in (("5m", {}), (idle, more))
    ]
    memo, before = Memo(), None
    for found in (*both, both[0]):
        before = shared(before, found)
        view, made = View(before), before.pools[0]
        cached = any_pb2.Any.FromString(memo.pool_set(view).resources[made.name].any).value
        assert cached == pool_resource(view, made)
    first, second = (pool_resource(View(each), each.pools[0]) for each in both)
    assert first != second
