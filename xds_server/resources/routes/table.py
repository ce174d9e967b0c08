"""Envoy routes of the fleet (RDS).

Source: ``envoy/config/route/v3/route_components.proto``. Written with ``xds-protos``, whose
encoding is fast: routes contain the canary weights and change often. The first match wins:

1. *picked*: the picker has chosen pool and variant; its headers select the cluster.
2. *own*: Envoy answers or forwards without a picker: health, metadata, calls to single replicas.
3. *named*: the path or a documented header names the pool. Routes by a version in the path come
   first, then routes by a pinned variant's headers, then the weighted draw of the variant.
4. *unnamed*: only the body names the model. The picker chooses pool and variant, and Envoy matches
   again. Without a picker the default pool takes the request.
5. *nobody*: no pool matches; 404.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envoy.config.route.v3 import route_components_pb2, route_pb2

from tidegate_api.names import (
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    MODEL_HEADER,
    POOL_HEADER,
    ROUTE_CONFIG_NAME,
    SERVED_BY_HEADER,
    UNNAMED_ROUTE_PREFIX,
    ClusterRef,
    Protocol,
)
from xds_server.fleet.rules.fleet import default_for_grpc, default_for_path
from xds_server.fleet.view import PROTOCOLS, clusters_of, speaks
from xds_server.resources.routes.forwarding import forward
from xds_server.resources.routes.load_reports import ask_for_loads
from xds_server.resources.routes.pins import header_in, header_is, pins_of
from xds_server.resources.routes.processing import at_least_peek, process, without_picker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec

_GRPC_SERVICE = "/inference.GRPCInferenceService/"
_UNARY_INFER = _GRPC_SERVICE + "ModelInfer"
_STREAM_INFER = _GRPC_SERVICE + "ModelStreamInfer"

_ONE_REPLICA_HTTP = (
    "/v2/repository",
    "/v2/systemsharedmemory",
    "/v2/cudasharedmemory",
    "/v2/trace",
    "/v2/logging",
)
_ONE_REPLICA_GRPC = (
    "Repository",
    "SystemSharedMemory",
    "CudaSharedMemory",
    "TraceSetting",
    "LogSettings",
)
_SERVER_CALLS_GRPC = (
    "/grpc.health.v1.Health/",
    _GRPC_SERVICE + "ServerLive",
    _GRPC_SERVICE + "ServerReady",
    _GRPC_SERVICE + "ServerMetadata",
)
_ONE_REPLICA = (
    '{"error":"this call addresses one replica and is not balanced; send it to the replica itself"}'
)
_NO_POOL = '{"error":"no pool of this gateway serves this path or model"}'


def route_configuration(fleet: Fleet, retiring: Fleet | None = None) -> bytes:
    """Return the serialized ``RouteConfiguration`` of the whole fleet.

    The clusters of ``retiring``, the previous fleet, can still be picked, but are no longer drawn.
    """
    config = route_pb2.RouteConfiguration(name=ROUTE_CONFIG_NAME)
    # The attempt's number lets a first attempt past the upstream filter (`reads`).
    host = config.virtual_hosts.add(name="all", domains=["*"], include_request_attempt_count=True)
    pickable = {ref: pool for pool in fleet.pools for ref in clusters_of(pool)}
    for pool in retiring.pools if retiring is not None else ():
        for ref in clusters_of(pool):
            pickable.setdefault(ref, pool)
    for ref, pool in pickable.items():
        host.routes.extend(_picked(pool, ref))
    host.routes.extend(_own(fleet))
    for pool in fleet.pools:
        host.routes.extend(_named(pool))
    host.routes.extend(_unnamed(fleet))
    host.routes.append(_answer("nobody", {"prefix": "/"}, 404, _NO_POOL))
    ask_for_loads(host.routes, fleet)
    if fleet.listener.debug_headers:
        header = config.response_headers_to_add.add()
        header.header.key = SERVED_BY_HEADER
        header.header.value = "%UPSTREAM_HOST%"
    return config.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def session_headers(fleet: Fleet) -> list[str]:
    """Return the names of all session and variant headers of the fleet, sorted."""
    names = {pool.routing.session_header for pool in fleet.pools}
    for pool in fleet.pools:
        for variant in pool.variants:
            names.update(variant.match.headers)
    return sorted(names)


# --- the five kinds of routes -------------------------------------------------------------------


def _picked(pool: PoolSpec, ref: ClusterRef) -> Iterator[Any]:
    chosen = [
        header_is(CONTROL_POOL_HEADER, ref.pool),
        header_is(CONTROL_VARIANT_HEADER, ref.variant),
    ]
    for suffix, path, streaming in _paths_of(ref.protocol):
        route = _route(f"picked/{ref}{suffix}", path, chosen)
        route.route.cluster = str(ref)
        forward(route, pool, streaming=streaming)
        yield route


def _own(fleet: Fleet) -> Iterator[Any]:
    yield _answer("live", {"path": "/v2/health/live"}, 200, "")
    http = _server_pool(fleet, "http")
    if http is not None:
        for path in ("/v2/health/ready", "/v2", "/v2/"):
            yield _unpicked(f"server{path}", {"path": path}, http, "http")
    for prefix in _ONE_REPLICA_HTTP:
        yield _answer(f"one-replica{prefix}", {"prefix": prefix}, 403, _ONE_REPLICA)
    grpc = _server_pool(fleet, "grpc")
    if grpc is not None:
        for prefix in _SERVER_CALLS_GRPC:
            yield _unpicked(f"server{prefix}", {"prefix": prefix}, grpc, "grpc")
    for method in _ONE_REPLICA_GRPC:
        prefix = _GRPC_SERVICE + method
        yield _answer(f"one-replica/{method}", {"prefix": prefix}, 403, _ONE_REPLICA)


def _named(pool: PoolSpec) -> Iterator[Any]:
    for protocol in PROTOCOLS:
        if not speaks(pool, protocol):
            continue
        selectors: list[tuple[str, list[Any]]] = [("pool", [header_is(POOL_HEADER, pool.name)])]
        if pool.match.models:
            selectors.append(("model", [header_in(MODEL_HEADER, pool.match.models)]))
        for label, headers in selectors:
            for suffix, path, streaming in _paths_of(protocol):
                name = f"{pool.name}/{protocol}{suffix}/by-{label}"
                yield from _drawn(name, path, headers, pool, protocol, streaming=streaming)
    if pool.match.models and speaks(pool, "http"):
        yield from _by_path(pool)


def _by_path(pool: PoolSpec) -> Iterator[Any]:
    models = "|".join(re.escape(model) for model in pool.match.models)
    versions: dict[str, list[VariantSpec]] = {}
    for variant in pool.variants:
        if variant.model_version is not None:
            versions.setdefault(variant.model_version, []).append(variant)
    for version, variants in versions.items():
        path = {"safe_regex": {"regex": f"/v2/models/({models})/versions/{version}(/.*)?"}}
        name = f"{pool.name}/http/version-{version}"
        yield from _weighted(name, path, [], pool, "http", variants, streaming=False)
    path = {"safe_regex": {"regex": f"/v2/models/({models})(/.*)?"}}
    yield from _drawn(f"{pool.name}/http", path, [], pool, "http", streaming=False)


def _unnamed(fleet: Fleet) -> Iterator[Any]:
    pools = {pool.name: pool for pool in fleet.pools}
    grpc = default_for_grpc(fleet)
    if grpc is not None:
        pool = pools[grpc]
        # Unless a stream is routed by its first message, a stream without a header that names its
        # pool belongs to the default pool.
        duplex = pool.routing.first_message == "duplex"
        name = UNNAMED_ROUTE_PREFIX + "grpc-stream" if duplex else f"{grpc}/grpc-stream/default"
        yield from _drawn(name, {"path": _STREAM_INFER}, [], pool, "grpc", streaming=True)
        for route in _drawn(
            UNNAMED_ROUTE_PREFIX + "grpc",
            {"prefix": _GRPC_SERVICE},
            [],
            pool,
            "grpc",
            streaming=False,
        ):
            process(route, pool.routing, at_least_peek(pool.routing.body))
            yield route
    for path in dict.fromkeys(path for pool in fleet.pools for path in pool.match.paths):
        default = default_for_path(fleet, path)
        if default is None or not speaks(pools[default], "http"):
            continue
        pool = pools[default]
        name = UNNAMED_ROUTE_PREFIX + path.lstrip("/")
        # OpenAI's own client writes the model after the messages. If the model selects one of
        # several pools, the first part of the body may end before it, so the whole body is needed.
        shared = sum(path in pool.match.paths for pool in fleet.pools) > 1
        body = "full" if shared else at_least_peek(pool.routing.body)
        for route in _drawn(name, {"path": path}, [], pool, "http", streaming=False):
            process(route, pool.routing, body)
            yield route


# --- selection of a variant ---------------------------------------------------------------------


def _drawn(
    name: str,
    path: dict[str, Any],
    headers: list[Any],
    pool: PoolSpec,
    protocol: Protocol,
    *,
    streaming: bool,
) -> Iterator[Any]:
    """Yield one route per pinned variant, then the weighted route."""
    for variant in pool.variants:
        if variant.match:
            pins = pins_of(variant.match)
            route = _route(f"{name}/{variant.name}", path, [*headers, *pins])
            route.route.cluster = str(ClusterRef(pool.name, variant.name, protocol))
            forward(route, pool, streaming=streaming)
            yield route
    yield from _weighted(name, path, headers, pool, protocol, pool.variants, streaming=streaming)


def _weighted(
    name: str,
    path: dict[str, Any],
    headers: list[Any],
    pool: PoolSpec,
    protocol: Protocol,
    variants: Sequence[VariantSpec],
    *,
    streaming: bool,
) -> Iterator[Any]:
    route = _route(name, path, headers)
    weighted = [variant for variant in variants if variant.weight] or list(variants)
    if len(weighted) == 1:
        route.route.cluster = str(ClusterRef(pool.name, weighted[0].name, protocol))
    else:
        for variant in weighted:
            entry = route.route.weighted_clusters.clusters.add()
            entry.name = str(ClusterRef(pool.name, variant.name, protocol))
            # All weights can be 0 only for variants that share a pinned version: equal shares.
            entry.weight.value = variant.weight or 1
        # All requests of a session draw the same variant; the picker uses the same formula.
        route.route.weighted_clusters.use_hash_policy.value = True
        route.route.hash_policy.add().header.header_name = pool.routing.session_header
    forward(route, pool, streaming=streaming)
    yield route


# --- parts of a route ---------------------------------------------------------------------------


def _paths_of(protocol: Protocol) -> tuple[tuple[str, dict[str, Any], bool], ...]:
    """Return (name suffix, path match, streaming) of a protocol's calls."""
    if protocol == "http":
        return (("", {"prefix": "/"}, False),)
    return (
        ("-stream", {"path": _STREAM_INFER}, True),
        ("", {"prefix": _GRPC_SERVICE}, False),
    )


def _route(name: str, path: dict[str, Any], headers: list[Any]) -> Any:
    match = route_components_pb2.RouteMatch(headers=headers, **path)
    if path.get("prefix") == "/" and headers:
        # gRPC calls must not go to an HTTP cluster.
        match.headers.append(
            route_components_pb2.HeaderMatcher(
                name=":path", string_match={"prefix": "/inference."}, invert_match=True
            )
        )
    return route_components_pb2.Route(name=name, match=match)


def _server_pool(fleet: Fleet, protocol: Protocol) -> PoolSpec | None:
    """Return the pool for calls about the server as a whole: a default pool, else the first."""
    able = [pool for pool in fleet.pools if speaks(pool, protocol)]
    return next((pool for pool in able if pool.default), able[0] if able else None)


def _unpicked(name: str, path: dict[str, Any], pool: PoolSpec, protocol: Protocol) -> Any:
    """Return a route that forwards to any healthy replica without the picker."""
    (route,) = _weighted(name, path, [], pool, protocol, pool.variants, streaming=False)
    without_picker(route)
    del route.route.request_mirror_policies[:]
    return route


def _answer(name: str, path: dict[str, Any], status: int, body: str) -> Any:
    route = _route(name, path, [])
    route.direct_response.status = status
    if body:
        route.direct_response.body.inline_string = body
        header = route.response_headers_to_add.add()
        header.header.key = "content-type"
        header.header.value = "application/json"
    without_picker(route)
    return route
