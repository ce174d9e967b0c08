"""Snapshots for older builds of Envoy."""

from __future__ import annotations

import pytest
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from google.protobuf.any_pb2 import Any as AnyMessage

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    LISTENER_TYPE,
    ROUTE_TYPE,
    USAGE_FILTER,
)
from xds_server.builds import adapted as module
from xds_server.builds.adapted import Builds
from xds_server.builds.features import FEATURES, lacking
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import front_resources, upstream_resources


def snapshot(*pools) -> Snapshot:
    """Return all that Envoys are sent."""
    made = fleet(*pools)
    return Snapshot.of({**upstream_resources(made), **front_resources(made)})


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (None, 0),
        ((1, 41, 0), 0),
        ((1, 39, 3), 0),
        ((1, 38, 3), 1),
        ((1, 37, 0), 4),
        ((1, 36, 4), 7),
        ((1, 20, 0), 7),
    ],
)
def test_a_build_lacks_what_came_after_it(build, count: int) -> None:
    """A build that is not known counts as new."""
    assert len(lacking(build)) == count


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.lost)
def test_each_feature_is_in_what_we_send(feature) -> None:
    """A path that finds nothing any more would protect no Envoy."""
    whole = snapshot()
    changed = [
        resource.name
        for resource in whole.resources(feature.type_url).values()
        if module._without(resource, feature.type_url, [feature]) is not resource
    ]
    assert changed


def test_an_older_build_gets_the_listener_without_what_it_lacks() -> None:
    """Filters that it knows stay."""
    whole = snapshot()
    adapt = Builds().adapter((1, 36, 4))
    assert adapt is not None
    (new,) = adapt(whole).resources(LISTENER_TYPE).values()
    (old,) = whole.resources(LISTENER_TYPE).values()
    assert new.version != old.version

    def filters(resource) -> list[list[str]]:
        listener = listener_pb2.Listener.FromString(AnyMessage.FromString(resource.any).value)
        found = []
        for chain in listener.filter_chains:
            manager = http_connection_manager_pb2.HttpConnectionManager()
            chain.filters[0].typed_config.Unpack(manager)
            found.append([each.name for each in manager.http_filters])
        return found

    missing = [[name for name in names if name != USAGE_FILTER] for names in filters(old)]
    assert filters(new) == missing != filters(old)
    assert b"tidegate.reads" in old.any
    assert b"tidegate.reads" not in new.any


def test_what_a_build_knows_is_shared_with_all() -> None:
    """The same objects, so the same bytes and versions."""
    whole = snapshot()
    adapt = Builds().adapter((1, 38, 3))
    assert adapt is not None
    new = adapt(whole)
    for type_url in (CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE):
        for name, resource in whole.resources(type_url).items():
            assert new.resources(type_url)[name] is resource
        assert new.version(type_url) == whole.version(type_url)


def test_clients_that_lack_the_same_share_one_snapshot() -> None:
    """Also for an equal snapshot that was made anew."""
    builds = Builds()
    one, other = builds.adapter((1, 37, 0)), builds.adapter((1, 37, 9))
    assert one is not None
    assert other is not None
    assert one(snapshot()) is other(snapshot())


def test_the_newest_builds_are_not_adapted() -> None:
    """Nothing is done for them."""
    assert Builds().adapter((1, 40, 0)) is None
    assert Builds().adapter(None) is None


def test_only_changed_resources_are_edited_anew() -> None:
    """The cost follows the change."""
    adapt = Builds().adapter((1, 36, 0))
    assert adapt is not None
    first = adapt(snapshot(pool("a", default=True), pool("b", match={"models": ["m"]})))
    second = adapt(
        snapshot(
            pool("a", default=True),
            pool("b", match={"models": ["m"]}, endpoints=[*pool()["endpoints"], endpoint(9)]),
        )
    )
    assert first.version(ENDPOINT_TYPE) != second.version(ENDPOINT_TYPE)
    for name, resource in first.resources(CLUSTER_TYPE).items():
        assert second.resources(CLUSTER_TYPE)[name] is resource


def test_the_number_of_kept_snapshots_is_bounded() -> None:
    """However many changes there are."""
    adapt = Builds().adapter((1, 36, 0))
    assert adapt is not None
    for number in range(module.MAX_KEPT + 5):
        adapt(Snapshot.of({ENDPOINT_TYPE: {"e": b"%d" % number}}))
    assert len(adapt.__self__._snapshots) == module.MAX_KEPT
