"""Envoy's own choice among the replicas that have a request's model."""

from __future__ import annotations

import re
from typing import Any

import pytest
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import OverrideHost
from envoy_data_plane.envoy.extensions.load_balancing_policies.subset.v3 import (
    Subset,
    SubsetLbSubsetFallbackPolicy,
)

from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE, DESTINATION_HEADER, LB_NAMESPACE, PLACED_KEY
from xds_server.resources.filters.placed import placed_filter
from xds_server.resources.routes.table import route_configuration
from xds_server.snapshots.build import upstream_resources

SEVERAL = {"match": {"models": ["a", "b"]}}
FILTER = "tidegate.without.placed"


def settings() -> tuple[Any, Any]:
    """Return the filter as the listener has it, and its own settings."""
    listed = http_connection_manager_pb2.HttpFilter.FromString(placed_filter())
    wrapper = extension_matcher_pb2.ExtensionWithMatcher()
    listed.typed_config.Unpack(wrapper)
    found = header_to_metadata_pb2.Config()
    wrapper.extension_config.typed_config.Unpack(found)
    return listed, found


def fallback(of: dict[str, Any]) -> Any:
    """Return the policy by which Envoy chooses without a pick."""
    clusters = upstream_resources(fleet(pool(**of)))[CLUSTER_TYPE]
    cluster = Cluster.parse(clusters["llm/stable/http"])
    (policy,) = cluster.load_balancing_policy.policies
    override = OverrideHost.parse(policy.typed_extension_config.typed_config.value)
    (behind,) = override.fallback_policy.policies
    return behind.typed_extension_config


def enabling(of: dict[str, Any]) -> set[str]:
    """Return the routes that enable the filter."""
    config = route_pb2.RouteConfiguration.FromString(
        route_configuration(fleet(pool(default=True, **of)))
    )
    return {
        route.name
        for host in config.virtual_hosts
        for route in host.routes
        if FILTER in route.typed_per_filter_config
    }


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v2/models/a/infer", "a"),
        ("/v2/models/a/versions/1/generate", "a"),
        ("/v2/models/a", "a"),
        ("/v2/models/a.b-c%20d/ready", "a.b-c%20d"),
    ],
)
def test_the_model_is_read_out_of_the_path(path: str, model: str) -> None:
    """Every call of a model has it at one place."""
    _, found = settings()
    (rule,) = (each for each in found.request_rules if each.header == ":path")
    rewrite = rule.on_header_present.regex_value_rewrite
    assert re.sub(rewrite.pattern.regex, rewrite.substitution, path) == model
    assert rule.on_header_present.metadata_namespace == LB_NAMESPACE
    assert rule.on_header_present.key == PLACED_KEY


def test_the_listener_has_it_disabled() -> None:
    """Requests of other routes do not create it: they cost nothing more."""
    listed, found = settings()
    assert (listed.name, listed.disabled) == (FILTER, True)
    assert len(found.request_rules) == 3


@pytest.mark.parametrize(
    ("of", "chooses"),
    [
        (SEVERAL, True),
        ({}, False),
        ({**SEVERAL, "health": {"repository": False}}, False),
    ],
    ids=["several models", "one model", "not asked"],
)
def test_only_pools_of_several_models_choose_by_them(of: dict[str, Any], chooses: bool) -> None:
    """Of one model Envoy's own health check finds out who has it."""
    assert fallback(of).name.rpartition(".")[2] == ("subset" if chooses else "least_request")
    assert bool(enabling(of)) == chooses


def test_a_model_that_is_listed_nowhere_goes_anywhere() -> None:
    """Nothing known is no reason to refuse a request."""
    subset = Subset.parse(fallback(SEVERAL).typed_config.value)
    assert subset.fallback_policy is SubsetLbSubsetFallbackPolicy.ANY_ENDPOINT
    assert [each.keys for each in subset.subset_selectors] == [[PLACED_KEY]]
    assert subset.list_as_any
    assert subset.allow_redundant_keys


def test_requests_with_a_pick_skip_it() -> None:
    """The picker's choice needs no model, and its requests no work."""
    config = route_pb2.RouteConfiguration.FromString(
        route_configuration(fleet(pool(default=True, **SEVERAL)))
    )
    route = next(r for h in config.virtual_hosts for r in h.routes if r.typed_per_filter_config)
    enabled = route_components_pb2.FilterConfig()
    route.typed_per_filter_config[FILTER].Unpack(enabled)
    own = extension_matcher_pb2.ExtensionWithMatcherPerRoute()
    enabled.config.Unpack(own)
    (matcher,) = own.xds_matcher.matcher_list.matchers
    assert matcher.predicate.single_predicate.input.name == DESTINATION_HEADER
    assert matcher.on_match.action.name == "skip"
