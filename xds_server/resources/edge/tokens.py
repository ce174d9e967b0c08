"""Tokens (JWT): the filter that checks them, the clusters that fetch keys, the routes that ask.

Rules:

1. What a request needs is a property of the route on which it leaves: each route that forwards to
   a pool names the pool's requirement, however the request came to it.
2. The filter stands behind the picker and behind every filter of ours that chooses the route again,
   so the route that it sees is the one on which the request leaves.
3. A requirement that the filter does not know refuses the request (403). So while a fleet changes
   the filter knows the requirements of both fleets.
4. The token stands in one header, and goes to replicas only if the provider says so.

Source: ``envoy/extensions/filters/http/jwt_authn/v3/config.proto``.
"""

from __future__ import annotations

import ipaddress
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    DataSource,
    HttpUri,
    SocketAddress,
    TransportSocket,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.filters.http.jwt_authn.v3 import (
    JwksAsyncFetch,
    JwtAuthentication,
    JwtHeader,
    JwtProvider,
    JwtRequirement,
    JwtRequirementOrList,
    ProviderWithAudiences,
    RemoteJwks,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import JWT_FILTER, KEYS_CLUSTER_PREFIX
from xds_server.resources.edge.pool_routes import routes_to
from xds_server.resources.sources import discovered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpFilter,
    )

    from xds_server.fleet.model.edge import JwtProvider as ProviderSpec
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_FETCH_TIMEOUT: Final = timedelta(seconds=5)
_PORTS: Final = {"http": 80, "https": 443}
_BEARER: Final = "authorization"


def token_filter() -> HttpFilter:
    """Return the listener's filter that checks tokens."""
    return discovered(JWT_FILTER, JwtAuthentication())


def token_settings(fleet: Fleet, retiring: Fleet | None = None) -> JwtAuthentication | None:
    """Return the filter's settings; ``None`` if neither fleet has a provider."""
    fleets = [fleet] if retiring is None else [retiring, fleet]
    providers = {one.name: _provider(one) for each in fleets for one in each.listener.jwt}
    if not providers:
        return None
    requirements = {
        _requirement(pool): needed
        for each in fleets
        for pool in each.pools
        if (needed := _needed(pool)) is not None
    }
    return JwtAuthentication(providers=providers, requirement_map=requirements)


def ask_for_tokens(routes: Iterable[Any], pools: Mapping[str, PoolSpec]) -> None:
    """Let routes ask for the tokens of their pools; changes them in place."""
    asking = {name for name, pool in pools.items() if pool.jwt is not None}
    if not asking:
        return
    for route, pool in routes_to(routes, asking):
        settings = config_pb2.PerRouteConfig(requirement_name=_requirement(pools[pool]))
        route.typed_per_filter_config[JWT_FILTER].Pack(settings, deterministic=True)


def keys_clusters(providers: Iterable[ProviderSpec]) -> dict[str, bytes]:
    """Return the serialized ``Cluster`` of each provider whose keys are fetched, by name."""
    return {
        _keys_cluster(one): bytes(_cluster(one, one.jwks_url))
        for one in providers
        if one.jwks_url is not None
    }


def _requirement(pool: PoolSpec) -> str:
    return f"pool/{pool.name}"


def _keys_cluster(provider: ProviderSpec) -> str:
    return KEYS_CLUSTER_PREFIX + provider.name


def _needed(pool: PoolSpec) -> JwtRequirement | None:
    if pool.jwt is None:
        return None
    audiences = list(pool.jwt.audiences)
    each = [
        JwtRequirement(
            provider_and_audiences=ProviderWithAudiences(provider_name=name, audiences=audiences)
        )
        if audiences
        else JwtRequirement(provider_name=name)
        for name in pool.jwt.any_of
    ]
    if len(each) == 1:
        return each[0]
    return JwtRequirement(requires_any=JwtRequirementOrList(requirements=each))


def _provider(spec: ProviderSpec) -> JwtProvider:
    made = JwtProvider(
        issuer=spec.issuer,
        audiences=list(spec.audiences),
        require_expiration=spec.require_expiration,
        forward=spec.forward,
        clock_skew_seconds=max(1, math.ceil(spec.leeway)),  # 0 would be Envoy's own default
        # Named, or a token in the query string would count too.
        from_headers=[
            JwtHeader(name=spec.header, value_prefix="Bearer " if spec.header == _BEARER else "")
        ],
    )
    if spec.jwks_url is not None:
        made.remote_jwks = RemoteJwks(
            http_uri=HttpUri(
                uri=spec.jwks_url, cluster=_keys_cluster(spec), timeout=_FETCH_TIMEOUT
            ),
            cache_duration=timedelta(seconds=spec.jwks_refresh),
            # Fetched ahead of requests; an identity provider that is down keeps no Envoy from
            # listening.
            async_fetch=JwksAsyncFetch(fast_listener=True),
        )
    elif spec.jwks_file is not None:
        made.local_jwks = DataSource(filename=spec.jwks_file)
    else:
        made.local_jwks = DataSource(inline_string=spec.jwks or "")
    return made


def _cluster(spec: ProviderSpec, url: str) -> Cluster:
    parts = urlsplit(url)
    host, name = parts.hostname or "", _keys_cluster(spec)
    address = SocketAddress(address=host, port_value=parts.port or _PORTS[parts.scheme])
    endpoint = Endpoint(address=Address(socket_address=address), hostname=host)
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.STATIC if _is_ip(host) else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=_FETCH_TIMEOUT,
        load_assignment=ClusterLoadAssignment(
            cluster_name=name,
            endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=endpoint)])],
        ),
        transport_socket=_tls(host, spec.jwks_ca) if parts.scheme == "https" else None,
    )


def _tls(host: str, ca: str) -> TransportSocket:
    kind = (
        SubjectAltNameMatcherSanType.IP_ADDRESS
        if _is_ip(host)
        else (SubjectAltNameMatcherSanType.DNS)
    )
    trusted = CertificateValidationContext(
        trusted_ca=DataSource(filename=ca),
        match_typed_subject_alt_names=[
            SubjectAltNameMatcher(san_type=kind, matcher=StringMatcher(exact=host))
        ],
    )
    context = UpstreamTlsContext(
        common_tls_context=CommonTlsContext(validation_context=trusted),
        sni="" if _is_ip(host) else host,
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=PackedAny.pack(context))


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
