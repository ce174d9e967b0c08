"""Envoy routes of the fleet (RDS).

Source: ``envoy/config/route/v3/route_components.proto``. Written with ``xds-protos``, whose
encoding is fast. Canary weights are runtime values (``weights.py``). The first match wins:

1. *picked*: the picker has chosen pool and variant; its headers select the cluster. *without-pick*:
   it has chosen nothing, and Envoy matches again (``matched_again``).
2. *own*: Envoy answers or forwards without a picker: health, server metadata, calls to single
   replicas, which are refused; or the gateway answers (``gateway.py``), also about models.
3. *named*: the path or a documented header names the pool. Routes by a version in the path come
   first, then routes by a pinned variant's headers, then the weighted draw of the variant.
4. *unnamed*: only the body names the model. The picker chooses pool and variant, and Envoy matches
   again. Without a picker the default pool takes the request.
5. *unknown-model*, *no-pool*: no pool matches; 404, for Triton's paths in Triton's words.

Which paths match at all is in ``paths.py``. Each route names its paths and methods one by one, so
that no header opens another path of a replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2

from tidegate_api.names import (
    CONTROL_MODEL_HEADER,
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    DESTINATION_HEADER,
    MODEL_HEADER,
    POOL_HEADER,
    ROUTE_CONFIG_NAME,
    SERVED_BY_HEADER,
    UNNAMED_ROUTE_PREFIX,
    UNPICKED_HEADER,
    UNSERVED_ROUTE_PREFIX,
    ClusterRef,
    Protocol,
)
from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.guards.fronts import exposed, fronts
from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.rules.bodies import (
    NEVER,
    BodyRead,
    BodyReads,
    body_reads,
    grpc_pools,
    largest_body,
    path_pools,
    serve_several,
    through_picker,
)
from xds_server.fleet.view import PROTOCOLS, clusters_of, defaults_of, server_pool, speaks
from xds_server.resources.edge.browsers import admit_origins, compress
from xds_server.resources.edge.filters import guard_routes
from xds_server.resources.edge.limits import limit_requests
from xds_server.resources.filters.again import only_pickers
from xds_server.resources.filters.body_model import read_without
from xds_server.resources.filters.discovered import admitted
from xds_server.resources.filters.matched_again import (
    bound_unpicked,
    follow_picker,
    match_unpicked,
)
from xds_server.resources.filters.unknown_models import answer_unknown_model
from xds_server.resources.filters.usage import read_usage
from xds_server.resources.routes import gateway, paths
from xds_server.resources.routes.forms import COMPRESSED, READ_HEADERS, STREAM_FORM, UnnamedForm
from xds_server.resources.routes.forwarding import forward
from xds_server.resources.routes.paths import Call
from xds_server.resources.routes.pins import header_in, header_is, header_present, pins_of
from xds_server.resources.routes.processing import (
    ask_for_loads,
    at_least_peek,
    close_with,
    process,
    without_picker,
)
from xds_server.resources.routes.weights import key_prefix, of_versions, shares

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from tidegate_api.pools import BodyMode
    from xds_server.fleet.guards.fronts import Front
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec
    from xds_server.fleet.model.listener import ListenerSpec

_REMEMBERED_S: Final = 86_400
"""How long clients remember that HTTP/3 is there, seconds."""


def route_configuration(
    fleet: Fleet,
    retiring: Fleet | None = None,
    reads: Sequence[BodyReads] | None = None,
    front: Front | None = None,
) -> bytes:
    """Return the serialized ``RouteConfiguration`` of one listener.

    Args:
        fleet: The fleet.
        retiring: The previous fleet: its clusters can still be picked, but are no longer drawn.
        reads: What Envoy reads of bodies, per host of the listener; by default as in ``fleet``.
        front: The listener; that of ``fleet`` itself by default.
    """
    front = fronts(fleet.listener)[0] if front is None else front
    name = f"{ROUTE_CONFIG_NAME}/{front.name}" if front.name else ROUTE_CONFIG_NAME
    config = route_pb2.RouteConfiguration(name=name)
    config.ignore_port_in_host_matching = len(front.hosts) > 1
    for number, each in enumerate(front.hosts):
        part = exposed(fleet, each)
        before = None if retiring is None else exposed(retiring, each)
        # The attempt's number lets a first attempt past the upstream filter (`reads`).
        host = config.virtual_hosts.add(
            name=each.label, domains=each.domains, include_request_attempt_count=True
        )
        read = body_reads(part) if reads is None else reads[number]
        alone = each.pools is not None
        _fill(host, part, before, read, alone=alone, operators=front.operators)
        admit_origins(host, fleet.listener.cors)
    limit_requests(config, fleet)
    compress(config, fleet.listener.compression)
    # Envoy goes by the metadata; replicas bound their headers (`routing.max_header_bytes`).
    config.request_headers_to_remove.append(DESTINATION_HEADER)
    only_pickers(config)
    headers = {}
    if fleet.listener.debug_headers:
        headers[SERVED_BY_HEADER] = "%UPSTREAM_HOST%"
    if front.spec.http3:
        _, port = split_host_port(front.spec.address)
        headers["alt-svc"] = f'h3=":{port}"; ma={_REMEMBERED_S}'
    for key, value in headers.items():
        header = config.response_headers_to_add.add().header
        header.key, header.value = key, value
    return config.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _fill(
    host: Any,
    fleet: Fleet,
    retiring: Fleet | None,
    reads: BodyReads,
    *,
    alone: bool,
    operators: bool,
) -> None:
    """Write the routes to the pools of a fleet into a virtual host.

    Pickers know all pools: what they choose beside these is not found.
    """
    fleet = admitted(fleet)
    pickable = {ref: pool for pool in fleet.pools for ref in clusters_of(pool)}
    for pool in retiring.pools if retiring is not None else ():
        for ref in clusters_of(pool):
            pickable.setdefault(ref, pool)
    known = (*fleet.pools, *(retiring.pools if retiring is not None else ()))
    own_paths = {path for pool in known for path in pool.match.paths}
    for ref, pool in pickable.items():
        host.routes.extend(_picked(pool, ref, own_paths))
    for ref, pool in pickable.items():
        host.routes.extend(_without_pick(pool, ref, own_paths))
    if alone:
        other = _answer("hidden", Call({"prefix": "/"}, ()), 404, "")
        other.match.headers.append(header_present(CONTROL_POOL_HEADER))
        host.routes.append(other)
    here = len(host.routes)
    sight = gateway.in_sight(fleet, alone=alone)
    if operators:
        host.routes.extend(gateway.changes(sight))
    host.routes.extend(_own(fleet, sight))
    for pool in fleet.pools:
        host.routes.extend(_named(pool, fleet.listener, gateway.asked_over(pool, sight)))
    host.routes.extend(gateway.about_models(fleet.pools, sight))
    host.routes.extend(_unnamed(fleet, reads))
    for suffix, call in paths.of_any_model():
        unknown = _answer(f"unknown-model{suffix}", call, 404, "")
        answer_unknown_model(unknown)
        host.routes.append(unknown)
    host.routes.append(_answer("no-pool", Call({"prefix": "/"}, ()), 404, ""))
    if alone:
        _follow_pickers(host.routes[here:])
    ask_for_loads(host.routes, fleet)
    read_usage(host.routes, fleet)
    guard_routes(host.routes, {pool.name: pool for pool in reversed(known)})


def _follow_pickers(routes: Iterable[Any]) -> None:
    """Match all of these again where a picker chose what is not here.

    One with an earlier fleet may do so also where a pool has one variant.
    """
    for route in routes:
        if route.HasField("route"):
            follow_picker(route)


# --- the five kinds of routes -------------------------------------------------------------------


def _picked(pool: PoolSpec, ref: ClusterRef, own_paths: Iterable[str]) -> Iterator[Any]:
    chosen = [
        header_is(CONTROL_POOL_HEADER, ref.pool),
        header_is(CONTROL_VARIANT_HEADER, ref.variant),
    ]
    # While a fleet changes pickers may choose by the paths of the one before.
    calls = _GRPC_CALLS if ref.protocol == "grpc" else (("", paths.picked(own_paths), False),)
    for suffix, call, streaming in calls:
        route = _route(f"picked/{ref}{suffix}", call, chosen)
        route.route.cluster = str(ref)
        forward(route, pool, streaming=streaming)
        yield route


def _without_pick(pool: PoolSpec, ref: ClusterRef, own_paths: Iterable[str]) -> Iterator[Any]:
    """Yield the route to a cluster of requests without a pick, which are bounded by themselves."""
    call = paths.unary_calls() if ref.protocol == "grpc" else paths.picked(own_paths)
    route = _route(f"without-pick/{ref}", call, [])
    match_unpicked(route.match, ref)
    route.route.cluster = str(ref)
    forward(route, pool, streaming=False)
    route.route.priority = base_pb2.HIGH
    route.request_headers_to_remove.extend(READ_HEADERS)
    yield route


def _own(fleet: Fleet, sight: gateway.Sight | None) -> Iterator[Any]:
    yield _answer("live", Call({"path": "/v2/health/live"}, paths.READ), 200, "")
    yield from gateway.about_the_server(sight)
    http = server_pool(fleet, "http")
    if http is not None and not sight:
        for path in paths.SERVER_PATHS:
            yield _unpicked(f"server{path}", Call({"path": path}, paths.READ), http, "http")
    grpc = server_pool(fleet, "grpc")
    if grpc is not None and not sight:
        for path in paths.SERVER_CALLS:
            yield _unpicked(f"server{path}", Call({"path": path}, paths.POST), grpc, "grpc")
        for path in paths.SERVER_STREAMS:
            call = Call({"path": path}, paths.POST)
            yield _unpicked(f"server{path}", call, grpc, "grpc", streaming=True)
    for name, call in paths.one_replica():
        yield _answer(
            f"one-replica{name}", call, 403, paths.refusal(name, gateway=sight is not None)
        )


def _named(pool: PoolSpec, listener: ListenerSpec, asked: Container[Protocol]) -> Iterator[Any]:
    """Yield the routes to a pool by its names; ``asked``: over these without questions about it."""
    selectors: list[tuple[str, list[Any]]] = []
    if listener.takes(POOL_HEADER):
        selectors.append(("pool", [header_is(POOL_HEADER, pool.name)]))
    if pool.match.models and listener.takes(MODEL_HEADER):
        selectors.append(("model", [header_in(MODEL_HEADER, pool.match.models)]))
    for protocol in PROTOCOLS:
        if not speaks(pool, protocol):
            continue
        for label, headers in selectors:
            for suffix, call, streaming in _calls_by_header(
                pool, protocol, asked=protocol in asked
            ):
                name = f"{pool.name}/{protocol}{suffix}/by-{label}"
                if label == "pool" and streaming and _lacks_model(pool):
                    read = BodyRead(before=True)
                    form = UnnamedForm(STREAM_FORM, call, "grpc", pool, [pool], read, True)
                    yield from _first_read(form, name, f"{name}-compressed", headers, apart=False)
                    continue
                yield from _drawn(name, call, headers, pool, protocol, streaming=streaming)
    if pool.match.models and speaks(pool, "http"):
        yield from _by_path(pool, asked="http" in asked)


def _lacks_model(pool: PoolSpec) -> bool:
    """Return whether a stream's model must be read although its pool is known."""
    return pool.routing.first_message == "auto" and serve_several([pool])


def _calls_by_header(
    pool: PoolSpec, protocol: Protocol, *, asked: bool
) -> Iterator[tuple[str, Call, bool]]:
    """Yield (name suffix, call, streaming) of the calls whose pool a header may name."""
    if protocol == "grpc":
        yield from (_INFER_CALLS if asked else _GRPC_CALLS)
        return
    if pool.match.paths:
        yield "", paths.own_paths(pool.match.paths), False
    models = paths.model_list(pool.match.paths)
    if models is not None and not asked:
        yield "/models", models, False


def _by_path(pool: PoolSpec, *, asked: bool) -> Iterator[Any]:
    models = pool.match.models
    kinds = (("", paths.inference), ("/about", paths.reads))[: 1 if asked else 2]
    for version, variants in of_versions(pool).items():
        for suffix, calls in kinds:
            name = f"{pool.name}/http/version-{version}{suffix}"
            call = calls(models, version)
            yield from _weighted(name, call, [], pool, "http", variants, streaming=False)
    for suffix, calls in kinds:
        name = f"{pool.name}/http{suffix}"
        yield from _drawn(name, calls(models), [], pool, "http", streaming=False)


def _unnamed(fleet: Fleet, reads: BodyReads) -> Iterator[Any]:
    pools = {pool.name: pool for pool in fleet.pools}
    grpc = defaults_of(fleet).grpc
    if grpc is not None:
        default, sharing = pools[grpc], grpc_pools(fleet)
        # The fleet need not have its replicas yet, so what is read says how they are.
        apart = reads.unary.without
        yield from _unnamed_streams(default, sharing, reads.stream, apart=apart)
        unary = UnnamedForm("grpc", paths.unary_calls(), "grpc", default, sharing, reads.unary)
        yield from _by_model(unary)
        yield from _drawn_unnamed(unary, at_least_peek(default.routing.body))
    for path in dict.fromkeys(path for pool in fleet.pools for path in pool.match.paths):
        default_name = defaults_of(fleet).paths.get(path)
        if default_name is None or not speaks(pools[default_name], "http"):
            continue
        default, sharing = pools[default_name], path_pools(fleet, path)
        call = paths.own_paths([path])
        form = UnnamedForm(path.lstrip("/"), call, "http", default, sharing, reads.of_path(path))
        yield from _by_model(form)
        # OpenAI's own client writes the model after the messages. If the model selects one of
        # several pools, the first part of the body may end before it, so the whole body is needed.
        shared = sum(path in pool.match.paths for pool in fleet.pools) > 1
        yield from _drawn_unnamed(form, "full" if shared else at_least_peek(default.routing.body))
    yield from _model_lists(fleet)


def _unnamed_streams(
    default: PoolSpec, sharing: Sequence[PoolSpec], read_at: BodyRead, *, apart: bool
) -> Iterator[Any]:
    """Yield the routes of streams that no header names a pool or model of."""
    # Unless a stream is routed by its first message, it belongs to the default pool.
    duplex = default.routing.first_message == "duplex"
    unnamed = UNNAMED_ROUTE_PREFIX + STREAM_FORM
    call = paths.stream_call()
    stream = UnnamedForm(STREAM_FORM, call, "grpc", default, sharing, read_at, any_model=not apart)
    yield from _by_model(stream, streaming=True)
    compressed = unnamed + "-compressed"
    name = unnamed if duplex else f"{default.name}/{STREAM_FORM}/default"
    yield from _first_read(stream, name, compressed, [], apart=apart)


def _first_read(
    form: UnnamedForm, name: str, compressed: str, headers: list[Any], *, apart: bool
) -> Iterator[Any]:
    """Yield the routes on which streams arrive whose first message may be read.

    Args:
        form: The streams.
        name: Name of the routes.
        compressed: Name of the routes of streams that Envoy cannot read, for the picker to do so.
        headers: Matchers of their headers.
        apart: Without a pick, what cannot be read must be refused.
    """
    pool, first = form.default, form.default.routing.first_message
    by_picker = through_picker(pool, form.read_at)
    if by_picker:
        matchers = [*headers, COMPRESSED]
        for route in _drawn(compressed, form.call, matchers, pool, "grpc", streaming=True):
            process(route, pool.routing, "duplex")
            if apart:
                read_without(route, grpc=True)
            close_with(route, form.sharing)
            yield route
    for route in _drawn(name, form.call, headers, pool, "grpc", streaming=True):
        form.read(route, leave_compressed=by_picker or first == "duplex")
        if form.read_at.before:
            route.request_headers_to_remove.extend((*READ_HEADERS, MODEL_HEADER))
        close_with(route, form.sharing)
        yield route


def _drawn_unnamed(form: UnnamedForm, body: BodyMode) -> Iterator[Any]:
    name = UNNAMED_ROUTE_PREFIX + form.name
    for route in _drawn(name, form.call, [], form.default, form.protocol, streaming=False):
        if len(form.sharing) > 1 or form.default.routing.policy != ENVOY_POLICY:
            process(route, form.default.routing, body)
            bound_unpicked(route)
            if body == "peek":  # the picker knows pools that this listener or host has not
                follow_picker(route)
        form.read(route, leave_compressed=True)
        close_with(route, form.sharing)
        yield route


def _by_model(form: UnnamedForm, *, streaming: bool = False) -> Iterator[Any]:
    """Yield the routes of requests whose model Envoy has read, or is about to read."""
    if form.read_at == NEVER:
        return
    for name, headers, pool in form.models():
        for route in _drawn(name, form.call, headers, pool, form.protocol, streaming=streaming):
            route.request_headers_to_remove.extend(READ_HEADERS)
            if form.read_at.before:
                route.request_headers_to_remove.append(MODEL_HEADER)  # set for the picker
            yield route
    if not form.takes_any:
        unserved = _answer(UNSERVED_ROUTE_PREFIX + form.name, form.inferences, 404, "")
        unserved.match.headers.append(header_present(CONTROL_MODEL_HEADER))
        yield unserved
    if form.read_at.without:
        headers = [header_present(UNPICKED_HEADER)]
        name = f"unpicked/{form.name}"
        for route in _drawn(
            name, form.call, headers, form.default, form.protocol, streaming=streaming
        ):
            route.request_body_buffer_limit.value = largest_body(form.sharing)
            route.request_headers_to_remove.extend(READ_HEADERS)
            yield route


def _model_lists(fleet: Fleet) -> Iterator[Any]:
    """Yield routes to OpenAI's lists of models: of the default pool of the path, else the first."""
    able = [pool for pool in fleet.pools if speaks(pool, "http")]
    for pool in sorted(able, key=lambda pool: not pool.default):
        call = paths.model_list(pool.match.paths)
        if call is not None:
            yield _unpicked(f"{pool.name}/http/models", call, pool, "http")


# --- selection of a variant ---------------------------------------------------------------------


def _drawn(
    name: str,
    call: Call,
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
            route = _route(f"{name}/{variant.name}", call, [*headers, *pins])
            route.route.cluster = str(ClusterRef(pool.name, variant.name, protocol))
            forward(route, pool, streaming=streaming)
            yield route
    yield from _weighted(name, call, headers, pool, protocol, pool.variants, streaming=streaming)


def _weighted(
    name: str,
    call: Call,
    headers: list[Any],
    pool: PoolSpec,
    protocol: Protocol,
    variants: Sequence[VariantSpec],
    *,
    streaming: bool,
) -> Iterator[Any]:
    route = _route(name, call, headers)
    if len(variants) == 1:
        route.route.cluster = str(ClusterRef(pool.name, variants[0].name, protocol))
    else:
        split = route.route.weighted_clusters
        split.runtime_key_prefix = key_prefix(pool, variants)
        for variant, weight in shares(variants).items():
            split.clusters.add(
                name=str(ClusterRef(pool.name, variant, protocol))
            ).weight.value = weight
        # All requests of a session draw the same variant; the picker uses the same formula.
        split.use_hash_policy.value = True
        route.route.hash_policy.add().header.header_name = pool.routing.session_header
    forward(route, pool, streaming=streaming)
    yield route


# --- parts of a route ---------------------------------------------------------------------------


_STREAM: Final = ("-stream", paths.stream_call(), True)
_GRPC_CALLS: Final = (_STREAM, ("", paths.unary_calls(), False))
_INFER_CALLS: Final = (_STREAM, ("", paths.infer_call(), False))
"""(Name suffix, call, streaming) of the gRPC calls that go to the pool of their model."""


def _route(name: str, call: Call, headers: list[Any]) -> Any:
    match = route_components_pb2.RouteMatch(headers=headers, **call.path)
    if call.methods:
        match.headers.append(header_in(":method", call.methods))
    return route_components_pb2.Route(name=name, match=match)


def _unpicked(
    name: str, call: Call, pool: PoolSpec, protocol: Protocol, *, streaming: bool = False
) -> Any:
    """Return a route that forwards to any healthy replica without the picker."""
    (route,) = _weighted(name, call, [], pool, protocol, pool.variants, streaming=streaming)
    without_picker(route)
    del route.route.request_mirror_policies[:]
    return route


def _answer(name: str, call: Call, status: int, text: str) -> Any:
    """Return a route that Envoy answers; ``local_replies`` puts the text into a dialect."""
    route = _route(name, call, [])
    route.direct_response.status = status
    if text:
        route.direct_response.body.inline_string = text
    without_picker(route)
    return route
