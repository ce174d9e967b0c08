"""Rules for operators' own filters and patches."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.rules.fleet import problems

FILTERS = "type.googleapis.com/envoy.extensions.filters.http."
RBAC = FILTERS + "rbac.v3.RBAC"
PER_ROUTE: dict[str, Any] = {"@type": RBAC + "PerRoute"}
LUA = FILTERS + "lua.v3.Lua"
JWT = FILTERS + "jwt_authn.v3.JwtAuthentication"
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
OPTIONS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
CLOSED: dict[str, Any] = {"endpoints": [endpoint(7), endpoint(8, variant="canary")]}


def found(of: Fleet) -> dict[str, str]:
    """Return all problems by their places."""
    return {problem.path: problem.message for problem in problems(of)}


def with_filters(
    before: list[dict[str, Any]] | None = None,
    after: list[dict[str, Any]] | None = None,
    **second: Any,
) -> Fleet:
    """Return a fleet of two pools with these filters, named `a0`, `a1`, ... and `b0`, ..."""
    named = {
        "before": [{"name": f"b{n}", "config": each} for n, each in enumerate(before or [])],
        "after": [{"name": f"a{n}", "config": each} for n, each in enumerate(after or [])],
    }
    return fleet(
        pool("first", default=True),
        pool("second", **{**CLOSED, **second}),
        listener={"http_filters": named},
    )


def test_before_the_picker_no_filter_has_settings_of_a_pool() -> None:
    """A request whose body names the pool arrives on another route."""
    places = found(with_filters([{"@type": RBAC}], http_filters={"b0": PER_ROUTE}))
    (message,) = places.values()
    assert list(places) == ["pools[1].http_filters.b0"]
    assert "before the picker" in message


def test_a_pool_names_filters_that_exist() -> None:
    """Otherwise its message would do nothing."""
    assert list(found(with_filters(http_filters={"x": PER_ROUTE}))) == ["pools[1].http_filters.x"]


@pytest.mark.parametrize(
    "message",
    [
        {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True},
        {"@type": FILTERS + "jwt_authn.v3.PerRouteConfig", "disabled": True},
    ],
)
def test_no_pool_switches_a_filter(message: dict[str, Any]) -> None:
    """Envoy decides which filters a request passes before its pool is known."""
    places = found(with_filters([], [{"@type": RBAC}], http_filters={"a0": message}))
    assert list(places) == ["pools[1].http_filters.a0.@type"]


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"@type": FILTERS + "ext_proc.v3.ExternalProcessor"}, "@type"),
        ({"@type": FILTERS + "wasm.v3.Wasm"}, "@type"),
        ({"@type": FILTERS + "grpc_json_transcoder.v3.GrpcJsonTranscoder"}, "@type"),
        ({"@type": FILTERS + "on_demand.v3.OnDemand"}, "@type"),
        ({"@type": LUA, "default_source_code": {"inline_string": "x"}}, ""),
        ({"@type": LUA, "clear_route_cache": True}, ""),
        (
            {
                "@type": LUA,
                "clear_route_cache": False,
                "default_source_code": {"inline_string": "handle:clearRouteCache()"},
            },
            "default_source_code.inline_string",
        ),
        *(
            ({"@type": LUA, "clear_route_cache": False, "default_source_code": source}, place)
            for source, place in (
                ({"filename": "/a.lua"}, "default_source_code.filename"),
                ({"inline_bytes": "eA=="}, "default_source_code.inline_bytes"),
                ({"inlineBytes": "eA=="}, "default_source_code.inlineBytes"),
                ({"environment_variable": "A"}, "default_source_code.environment_variable"),
            )
        ),
        ({"@type": FILTERS + "grpc_http1_bridge.v3.Config"}, "@type"),
        ({"@type": FILTERS + "grpc_http1_reverse_bridge.v3.FilterConfig"}, "@type"),
        ({"@type": FILTERS + "connect_grpc_bridge.v3.FilterConfig"}, "@type"),
        ({"@type": FILTERS + "json_to_metadata.v3.JsonToMetadata"}, "@type"),
        ({"@type": FILTERS + "mcp_router.v3.McpRouter"}, "@type"),
        ({"@type": FILTERS + "mcp.v3.Mcp", "clear_route_cache": True}, "clear_route_cache"),
        (
            {"@type": FILTERS + "ext_authz.v3.ExtAuthz", "clear_route_cache": True},
            "clear_route_cache",
        ),
        ({"@type": FILTERS + "ext_authz.v3.ExtAuthz", "clearRouteCache": True}, "clearRouteCache"),
        (
            {"@type": JWT, "providers": {"a": {"clear_route_cache": True}}},
            "providers.a.clear_route_cache",
        ),
    ],
)
def test_after_the_picker_nothing_chooses_the_route_again(
    config: dict[str, Any], place: str
) -> None:
    """The token was checked for the route before; before the picker the same is harmless."""
    where = "listener.http_filters.after[0].config"
    assert set(found(with_filters([], [config]))) >= {f"{where}.{place}" if place else where}
    assert found(with_filters([config], [])) == {}


@pytest.mark.parametrize(
    ("config", "message", "place"),
    [
        (
            {"@type": LUA, "clear_route_cache": False},
            {"source_code": {"inline_string": "handle:clearRouteCache()"}},
            "source_code.inline_string",
        ),
        (
            {"@type": LUA, "clear_route_cache": False},
            {"source_code": {"filename": "/a.lua"}},
            "source_code.filename",
        ),
        ({"@type": LUA, "clear_route_cache": False}, {"name": "a"}, ""),
    ],
)
def test_neither_does_a_pools_message_for_it(
    config: dict[str, Any], message: dict[str, Any], place: str
) -> None:
    """A script of a pool runs in place of the listener's."""
    of = with_filters([], [config], http_filters={"a0": {"@type": LUA + "PerRoute", **message}})
    assert list(found(of)) == ([f"pools[1].http_filters.a0.{place}"] if place else [])


@pytest.mark.parametrize(
    ("config", "places"),
    [
        ({"@type": JWT, "rules": [{"match": {"prefix": "/v2/models/b"}}]}, ["rules[0].match"]),
        ({"@type": JWT, "rules": [{"match": {"prefix": "/"}}]}, []),
        (
            {
                "@type": RBAC,
                "rules": {
                    "policies": {
                        "a": {"permissions": [{"url_path": {"path": {"prefix": "/v2/models/b"}}}]}
                    }
                },
            },
            ["rules.policies.a.permissions[0].url_path"],
        ),
        (
            {
                "@type": RBAC,
                "rules": {
                    "policies": {
                        "a": {"permissions": [{"header": {"name": ":path", "present_match": True}}]}
                    }
                },
            },
            ["rules.policies.a.permissions[0].header.name"],
        ),
        (
            {
                "@type": RBAC,
                "rules": {"policies": {"a": {"permissions": [{"destination_port": 10000}]}}},
            },
            [],
        ),
        (
            {
                "@type": RBAC,
                "rules": {
                    "policies": {
                        "a": {"permissions": [{"header": {"name": ":Path", "present_match": True}}]}
                    }
                },
            },
            ["rules.policies.a.permissions[0].header.name"],
        ),
        (
            {
                "@type": RBAC,
                "matcher": {
                    "matcher_tree": {
                        "input": {
                            "name": "path",
                            "typed_config": {
                                "@type": "type.googleapis.com/envoy.type.matcher.v3"
                                ".HttpRequestHeaderMatchInput",
                                "header_name": ":path",
                            },
                        }
                    }
                },
            },
            ["matcher.matcher_tree.input.typed_config.header_name"],
        ),
        (
            {
                "@type": FILTERS + "oauth2.v3.OAuth2",
                "config": {
                    "pass_through_matcher": [{"name": ":path", "string_match": {"prefix": "/v1"}}]
                },
            },
            ["config.pass_through_matcher[0].name"],
        ),
    ],
)
def test_before_the_picker_no_filter_decides_by_the_path(
    config: dict[str, Any], places: list[str]
) -> None:
    """A body names the pool elsewhere, so the rule would be got round; with one pool it cannot."""
    where = "listener.http_filters.before[0].config"
    assert list(found(with_filters([config]))) == [f"{where}.{place}" for place in places]
    alone = fleet(listener={"http_filters": {"before": [{"name": "b0", "config": config}]}})
    assert found(alone) == {}


@pytest.mark.parametrize(
    ("name", "config", "place"),
    [
        ("tidegate.jwt", {"@type": RBAC}, "name"),
        ("envoy.filters.http.ext_proc", {"@type": RBAC}, "name"),
        ("x", {"@type": FILTERS + "router.v3.Router"}, "config.@type"),
        ("x", {"@type": CLUSTER}, "config.@type"),
        ("x", {"@type": RBAC + "s"}, "config.@type"),
        ("x", {"@type": RBAC, "no": 1}, "config.no"),
    ],
)
def test_a_filter_is_one_of_envoys_under_a_name_of_its_own(
    name: str, config: dict[str, Any], place: str
) -> None:
    """Ours are there already."""
    filters = {"after": [{"name": name, "config": config}]}
    assert list(found(fleet(listener={"http_filters": filters}))) == [
        f"listener.http_filters.after[0].{place}"
    ]


def test_names_of_filters_are_unique_over_both_places() -> None:
    """Their settings are found by name."""
    one = {"name": "x", "config": {"@type": RBAC}}
    of = fleet(listener={"http_filters": {"before": [one], "after": [one]}})
    assert len(found(of)) == 1


def test_a_replica_is_not_in_a_pool_with_other_filters() -> None:
    """They may be what guards it."""
    same = [endpoint(1), endpoint(3, variant="canary")]
    of = with_filters([], [{"@type": RBAC}], endpoints=same, http_filters={"a0": PER_ROUTE})
    assert list(found(of)) == ["pools[1].endpoints[0]", "pools[1].endpoints[1]"]


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"@type": MANAGER, "http_filters": []}, "http_filters"),
        ({"@type": MANAGER, "httpFilters": []}, "httpFilters"),
        ({"@type": MANAGER, "route_config": {}}, "route_config"),
        ({"@type": MANAGER, "normalize_path": False}, "normalize_path"),
        ({"@type": MANAGER, "merge_slashes": False}, "merge_slashes"),
        ({"@type": MANAGER, "upgrade_configs": [{"upgrade_type": "websocket"}]}, "upgrade_configs"),
        ({"@type": MANAGER, "early_header_mutation_extensions": []}, None),
        ({"@type": LISTENER, "filter_chains": [{}]}, "filter_chains"),
        ({"@type": LISTENER, "default_filter_chain": {}}, "default_filter_chain"),
        ({"@type": LISTENER, "name": "x"}, "name"),
        ({"@type": CLUSTER, "connect_timeout": "1s"}, "@type"),
        ({"server_name": "edge"}, "@type"),
        ({"@type": MANAGER + "s"}, "@type"),
        ({"@type": LISTENER, "nothing": 1}, "nothing"),
        ({"@type": MANAGER, "server_name": "edge"}, ""),
    ],
)
def test_a_patch_leaves_what_guards_rest_on(patch: dict[str, Any], place: str | None) -> None:
    """Routes, filters, the spelling of paths, chains of filters."""
    places = list(found(fleet(listener={"patch": [patch]})))
    if place is None:
        place = "early_header_mutation_extensions"
    assert places == ([f"listener.patch[0].{place}"] if place else [])


@pytest.mark.parametrize(
    ("patch", "place"),
    [
        ({"@type": CLUSTER, "load_balancing_policy": {}}, "load_balancing_policy"),
        ({"@type": CLUSTER, "lbPolicy": "RANDOM"}, "lbPolicy"),
        ({"@type": CLUSTER, "type": "STATIC"}, "type"),
        ({"@type": CLUSTER, "load_assignment": {}}, "load_assignment"),
        ({"@type": OPTIONS, "http_filters": []}, "http_filters"),
        ({"@type": MANAGER}, "@type"),
        ({"@type": CLUSTER, "connect_timeout": "1s"}, ""),
    ],
)
def test_a_cluster_keeps_its_replicas_and_its_balancing(patch: dict[str, Any], place: str) -> None:
    """What the picker says must hold."""
    places = list(found(fleet(pool(default=True, cluster_patch=[patch]))))
    assert places == ([f"pools[0].cluster_patch[0].{place}"] if place else [])
