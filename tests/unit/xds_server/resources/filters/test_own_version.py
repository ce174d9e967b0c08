"""A variant's version is written into paths at its own cluster."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE
from xds_server.snapshots.build import upstream_resources

OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def filters(name: str, **more: object) -> list:
    """Return the upstream filters of a cluster."""
    found = upstream_resources(fleet(pool(default=True, **more)))[CLUSTER_TYPE][name]
    options = http_protocol_options_pb2.HttpProtocolOptions()
    cluster_pb2.Cluster.FromString(found).typed_extension_protocol_options[OPTIONS].Unpack(options)
    return list(options.http_filters)


@pytest.mark.parametrize(("variant", "version"), [("stable", "1"), ("canary", "2")])
def test_each_cluster_writes_its_own_version(variant: str, version: str) -> None:
    """Before the router's own upstream filters, which a cluster's list replaces; the codec last."""
    listed = filters(f"llm/{variant}/http")
    names = ["tidegate.version", "tidegate.reads", "envoy.filters.http.upstream_codec"]
    assert [each.name for each in listed] == names
    lua = lua_pb2.Lua()
    listed[0].typed_config.Unpack(lua)
    assert f"/versions/{version}" in lua.default_source_code.inline_string


def test_other_clusters_use_the_filters_of_the_router() -> None:
    """A path of gRPC names no model, and a variant without a version writes none."""
    assert filters("llm/stable/grpc") == []
    assert filters("llm/stable/http", variants=[{"name": "stable"}, {"name": "canary"}]) == []
