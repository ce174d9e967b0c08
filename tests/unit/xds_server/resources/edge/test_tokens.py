"""Tokens: who signs them, which routes ask for them, and where their keys come from."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from support.envoy_messages import cluster_of, listener_of, read_routes
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    EXTENSION_TYPE,
    JWT_FILTER,
    POOL_LIMIT_FILTER,
    parse_cluster,
)
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.resources.edge.tokens import keys_clusters
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.routes.table import route_configuration
from xds_server.snapshots.stages import plan

URL = "https://sso.example:8443/keys.json"
CHAT = "/v1/chat/completions"
PROVIDERS: list[dict[str, Any]] = [
    {"name": "corp", "issuer": "https://sso.example", "audiences": ["all"], "jwks_url": URL},
    {"name": "own", "issuer": "me", "jwks": '{"keys": []}', "header": "x-token"},
]


def two(closed: dict[str, Any] | None = None, providers: Any = PROVIDERS) -> Fleet:
    """Return a fleet with an open default pool, and one that asks for this token."""
    return fleet(
        pool("open", default=True, match={"models": ["a"], "paths": [CHAT]}),
        pool(
            "closed",
            match={"models": ["b"], "paths": [CHAT]},
            endpoints=[endpoint(7), endpoint(8, variant="canary")],
            jwt=closed,
        ),
        listener={"jwt": providers},
    )


CORP = {"any_of": ["corp"]}


def settings(of: Fleet, retiring: Fleet | None = None) -> Any:
    """Return the settings of the filter."""
    made = config_pb2.JwtAuthentication()
    found = extensions(of, retiring)[JWT_FILTER]
    assert extension_pb2.TypedExtensionConfig.FromString(found).typed_config.Unpack(made)
    return made


def asked(of: Fleet, retiring: Fleet | None = None) -> dict[str, tuple[str, str]]:
    """Return pool and requirement of each route that forwards, by the route's name."""
    found = {}
    for name, route in read_routes(route_configuration(of, retiring)).items():
        if route.HasField("route"):
            own = config_pb2.PerRouteConfig()
            route.typed_per_filter_config[JWT_FILTER].Unpack(own)
            assert not own.disabled
            found[name] = (parse_cluster(cluster_of(route)).pool, own.requirement_name)
    return found


def chain(of: Fleet) -> list[str]:
    """Return the names of the listener's filters."""
    return [one.name for one in listener_of(of)[1][0].http_filters]


def test_every_route_to_the_pool_asks() -> None:
    """Whichever way a request came to it; routes to other pools do not."""
    routes = asked(two(CORP))
    assert len({name for name, (pool, _) in routes.items() if pool == "closed"}) > 8
    assert dict(routes.values()) == {"closed": "pool/closed", "open": ""}
    assert len(set(routes.values())) == 2


def test_the_filter_stands_behind_all_that_choose_the_route() -> None:
    """What it sees is the route on which the request leaves."""
    names = chain(two(CORP))
    behind = names[names.index(JWT_FILTER) + 1 :]
    assert behind == [POOL_LIMIT_FILTER, "tidegate.usage", "envoy.filters.http.router"]
    assert JWT_FILTER not in chain(fleet())


def test_one_provider_or_one_of_several() -> None:
    """With the audiences of the pool, where it names some."""
    needed = settings(two(CORP)).requirement_map["pool/closed"]
    assert needed.provider_name == "corp"
    both = settings(two({"any_of": ["corp", "own"], "audiences": ["b"]}))
    each = both.requirement_map["pool/closed"].requires_any.requirements
    found = [one.provider_and_audiences for one in each]
    assert [(one.provider_name, list(one.audiences)) for one in found] == [
        ("corp", ["b"]),
        ("own", ["b"]),
    ]


def test_a_token_is_looked_for_in_its_header_alone() -> None:
    """Query strings stand in logs; replicas do not get it; expiry is required."""
    made = settings(two(CORP))
    for name, header, prefix in (("corp", "authorization", "Bearer "), ("own", "x-token", "")):
        one = made.providers[name]
        assert [(each.name, each.value_prefix) for each in one.from_headers] == [(header, prefix)]
        assert not one.from_params
        assert not one.from_cookies
        assert not one.forward
        assert one.require_expiration
        assert one.clock_skew_seconds == 60
    assert not made.rules


def test_no_leeway_is_a_second() -> None:
    """Envoy takes 0 for its own default, a minute."""
    (own,) = [{**PROVIDERS[1], "leeway": 0}]
    assert settings(two(None, [own])).providers["own"].clock_skew_seconds == 1


def test_keys_are_fetched_over_checked_tls() -> None:
    """From a cluster of their own, by the name in the URL."""
    of = two(CORP)
    (name, data), *more = keys_clusters(of.listener.jwt).items()
    assert (name, more) == ("tidegate-jwks/corp", [])
    remote = settings(of).providers["corp"].remote_jwks
    assert (remote.http_uri.uri, remote.http_uri.cluster) == (URL, name)
    cluster = cluster_pb2.Cluster.FromString(data)
    assert cluster.type == cluster_pb2.Cluster.STRICT_DNS
    endpoint_of = cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint
    where = endpoint_of.address.socket_address
    assert (where.address, where.port_value) == ("sso.example", 8443)
    context = tls_pb2.UpstreamTlsContext()
    assert cluster.transport_socket.typed_config.Unpack(context)
    trusted = context.common_tls_context.validation_context
    assert trusted.trusted_ca.filename == "/etc/ssl/certs/ca-certificates.crt"
    assert trusted.match_typed_subject_alt_names[0].matcher.exact == context.sni == "sso.example"


@pytest.mark.parametrize(
    ("url", "kind", "port", "tls"),
    [
        ("http://127.0.0.1/keys", cluster_pb2.Cluster.STATIC, 80, False),
        ("https://[::1]/keys", cluster_pb2.Cluster.STATIC, 443, True),
        ("http://sso.example:81", cluster_pb2.Cluster.STRICT_DNS, 81, False),
    ],
)
def test_the_url_says_where(url: str, kind: int, port: int, tls: bool) -> None:
    """An address is not looked up, and a port may be left out."""
    of = two(None, [{**PROVIDERS[0], "jwks_url": url}])
    (data,) = keys_clusters(of.listener.jwt).values()
    cluster = cluster_pb2.Cluster.FromString(data)
    where = cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address
    assert (cluster.type, where.port_value) == (kind, port)
    assert cluster.HasField("transport_socket") == tls


def test_while_a_fleet_changes_both_requirements_are_known() -> None:
    """A route that asks for an unknown one would refuse every request."""
    old, new = two(CORP), two(None)
    assert "pool/closed" not in settings(new).requirement_map
    stages = {stage.label: stage.snapshot for stage in plan(View(old), View(new))}
    switched = stages["switch"].resources(EXTENSION_TYPE)[JWT_FILTER]
    assert b"pool/closed" in switched.any
    assert b"pool/closed" not in stages["remove"].resources(EXTENSION_TYPE)[JWT_FILTER].any


def test_keys_come_from_a_cluster_until_nothing_asks_for_them() -> None:
    """The cluster of a provider that is given up goes last."""
    old, new = two(CORP), two({"any_of": ["own"]}, PROVIDERS[1:])
    stages = {stage.label: stage.snapshot for stage in plan(View(old), View(new))}
    name = "tidegate-jwks/corp"
    assert name in stages["add"].resources(CLUSTER_TYPE)
    assert name in stages["switch"].resources(CLUSTER_TYPE)
    assert name not in stages["remove"].resources(CLUSTER_TYPE)
    # And the other way round: it is there before the filter knows it.
    back = {stage.label: stage.snapshot for stage in plan(View(new), View(old))}
    assert name in back["add"].resources(CLUSTER_TYPE)


def test_a_retiring_variant_still_asks() -> None:
    """Pickers may name it for a moment."""
    old, new = two(CORP), two(CORP)
    kept = new.pools[1].model_copy(update={"variants": new.pools[1].variants[:1]})
    new = new.model_copy(update={"pools": (new.pools[0], kept)})
    routes = asked(new, old)
    assert routes["picked/closed/canary/http"] == ("closed", "pool/closed")
