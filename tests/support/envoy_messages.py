"""Listeners and routes as Envoy reads them: their messages, and the route that a request takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)

from xds_server.fleet.view import LOG_SLOTS
from xds_server.resources.listener import listener

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envoy.config.route.v3.route_components_pb2 import HeaderMatcher, Route

    from xds_server.fleet.model.fleet import Fleet

    Managers = list[http_connection_manager_pb2.HttpConnectionManager]


def read_listener(data: bytes) -> tuple[listener_pb2.Listener, Managers]:
    """Return a listener, and the HTTP connection manager of each of its chains."""
    message, managers = listener_pb2.Listener.FromString(data), []
    for chain in message.filter_chains:
        managers.append(http_connection_manager_pb2.HttpConnectionManager())
        assert chain.filters[0].typed_config.Unpack(managers[-1])
    return message, managers


def listener_of(fleet: Fleet) -> tuple[listener_pb2.Listener, Managers]:
    """Return the first listener of a fleet, read."""
    return read_listener(listener(fleet.listener, LOG_SLOTS))


def read_routes(data: bytes, host: int = 0) -> dict[str, Route]:
    """Return the routes of a virtual host by name, in the order in which they match."""
    config = route_pb2.RouteConfiguration.FromString(data)
    return {route.name: route for route in config.virtual_hosts[host].routes}


def cluster_of(route: Route) -> str:
    """Return the cluster to which a route forwards, the first of those that it draws from."""
    clusters = route.route.weighted_clusters.clusters
    return route.route.cluster or clusters[0].name


def first_match(routes: Iterable[Route], path: str, method: str = "POST", **headers: str) -> Route:
    """Return the route that a request without a pick's filter state takes.

    Args:
        routes: In the order in which they match; the last one takes everything.
        path: The path of the request.
        method: Its method.
        headers: Its headers, with ``_`` for ``-``.
    """
    given = {":method": method, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return next(
        route
        for route in routes
        if _has_path(route, path)
        and not route.match.filter_state
        and all(_has_header(each, given) for each in route.match.headers)
    )


def _has_path(route: Route, path: str) -> bool:
    match = route.match
    kind = match.WhichOneof("path_specifier")
    if kind == "safe_regex":
        return re.fullmatch(match.safe_regex.regex, path) is not None
    return path == match.path if kind == "path" else path.startswith(match.prefix)


def _has_header(matcher: HeaderMatcher, given: dict[str, str]) -> bool:
    value = given.get(matcher.name)
    how = matcher.string_match
    kind = how.WhichOneof("match_pattern")
    found = value is not None and (
        kind is None  # it has to be there
        or (kind == "exact" and value == how.exact)
        or (kind == "prefix" and value.startswith(how.prefix))
        or (kind == "safe_regex" and re.fullmatch(how.safe_regex.regex, value) is not None)
    )
    return found != matcher.invert_match
