"""Routes to the gateway: questions about models, statistics and the server.

Rules:

1. The gateway speaks of the pools of a host, but of none that is guarded (``jwt``, filters of its
   own): it asks for no token. Questions about a guarded pool take the pool's own routes. Over
   gRPC only the body says which pool that is, so there one guarded pool is enough for all of a
   host's questions about models.
2. Envoy itself writes which pools these are into a header, over whatever the client sent.
3. The picker has no part in these routes.
4. On listeners for operators calls that change replicas go to the gateways' ports for operators. No
   web page can make them: they must not have the header ``origin``.
5. A gateway that has died costs no answer, even before Envoy's checks miss it: what could not be
   sent goes to the next one of the list, and so does a question that it had and broke off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2

from tidegate_api.names import (
    GATEWAY_CLUSTERS,
    GATEWAY_OPERATOR_CLUSTERS,
    IN_SIGHT_HEADER,
    Protocol,
)
from xds_server.resources.reads import allow_reads, repeat_known_ends
from xds_server.resources.routes import paths
from xds_server.resources.routes.pins import header_in
from xds_server.resources.routes.processing import without_picker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.resources.routes.paths import Call

ALL: Final = "*"
_TIMEOUT_S: Final = 65
"""Above the longest time limit of a gateway."""
_IDLE_S: Final = 300
"""Above the time after which a gateway says the same again in a stream."""
_CHANGE_S: Final = 3660
"""Above the longest time limit of a change."""
_UNSENT: Final = "connect-failure,refused-stream,reset-before-request"
"""Ends of calls that no gateway has begun."""
_NEXT: Final = previous_priorities_config_pb2.PreviousPrioritiesConfig(update_frequency=1)


class Sight(NamedTuple):
    """What of a host the gateway is asked about."""

    pools: str
    """The pools that it may speak of, as in the header."""
    protocols: frozenset[Protocol]
    """Over which it is asked about models."""


def in_sight(fleet: Fleet, *, alone: bool) -> Sight | None:
    """Return the pools that the gateway may speak of; ``None`` = it is not asked.

    Args:
        fleet: The pools of a host.
        alone: Whether the fleet has others.
    """
    if fleet.gateway is None:
        return None
    open_ = [pool.name for pool in fleet.pools if not pool.guarded]
    if not open_:
        return None
    every = len(open_) == len(fleet.pools)
    protocols = frozenset[Protocol](("http", "grpc") if every else ("http",))
    return Sight(ALL if every and not alone else ",".join(open_), protocols)


def asked_over(pool: PoolSpec, sight: Sight | None) -> frozenset[Protocol]:
    """Return over which protocols questions about a pool go to the gateway."""
    return frozenset() if sight is None or pool.guarded else sight.protocols


def about_the_server(sight: Sight | None) -> Iterator[Any]:
    """Yield the routes of questions that name no model."""
    if sight is None:
        return
    yield _route("server", paths.questions_of_server(), "http", sight)
    yield _route("index", paths.index(), "http", sight)
    yield _route("server-grpc", paths.calls(paths.SERVER_CALLS), "grpc", sight)
    yield _route("index-grpc", paths.calls(paths.INDEX_CALLS), "grpc", sight)
    streams = _route("streams", paths.calls(paths.SERVER_STREAMS), "grpc", sight)
    streams.route.timeout.FromSeconds(0)  # none
    streams.route.idle_timeout.FromSeconds(_IDLE_S)
    yield streams


def changes(sight: Sight | None) -> Iterator[Any]:
    """Yield the routes of calls that change replicas."""
    if sight is None:
        return
    for name, protocol, call in paths.changes():
        route = _route(f"changes/{name}", call, protocol, sight)
        route.route.cluster = GATEWAY_OPERATOR_CLUSTERS[protocol]
        route.route.timeout.FromSeconds(0)  # the gateway's own
        route.route.retry_policy.retry_on = _UNSENT
        allow_reads(route, 0, 1)
        route.route.idle_timeout.FromSeconds(_CHANGE_S)
        route.match.headers.add(name="origin", present_match=True, invert_match=True)
        yield route


def about_models(pools: Iterable[PoolSpec], sight: Sight | None) -> Iterator[Any]:
    """Yield the routes of questions about models; those of guarded pools come before them."""
    if sight is None:
        return
    yield _route("models", paths.questions(), "http", sight)
    if "grpc" in sight.protocols:
        yield _route("models-grpc", paths.calls(paths.QUESTION_CALLS), "grpc", sight)
    of_engines = paths.model_list(
        path for pool in pools if asked_over(pool, sight) for path in pool.match.paths
    )
    if of_engines is not None:
        yield _route("engines", of_engines, "http", sight)


def _route(name: str, call: Call, protocol: Protocol, sight: Sight) -> Any:
    match = route_components_pb2.RouteMatch(headers=[], **call.path)
    match.headers.append(header_in(":method", call.methods))
    route = route_components_pb2.Route(name=f"gateway/{name}", match=match)
    route.route.cluster = GATEWAY_CLUSTERS[protocol]
    route.route.timeout.FromSeconds(_TIMEOUT_S)
    retry = route.route.retry_policy
    # A question may be asked twice, so one that a gateway's end cuts goes to another gateway.
    retry.retry_on = f"{_UNSENT},reset"
    repeat_known_ends(retry)
    allow_reads(route, 1, 1)
    retry.num_retries.value = 1
    retry.retry_priority.name = "envoy.retry_priorities.previous_priorities"
    retry.retry_priority.typed_config.Pack(_NEXT)
    told = route.request_headers_to_add.add()
    told.header.key, told.header.value = IN_SIGHT_HEADER, sight.pools
    told.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    without_picker(route)
    return route
