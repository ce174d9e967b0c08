"""The filters that operators ask for: in which order they stand, and their settings.

In the order of requests: compression and other origins, ours that strips headers, the limit of all
requests, operators' own filters `before`, ours that read bodies, the picker, ours that choose the
route again, tokens, the limits of pools, operators' own filters `after`, the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate_api.names import JWT_FILTER
from xds_server.resources.edge.browsers import compress_filters, compress_settings, cors_filter
from xds_server.resources.edge.limits import (
    count_requests,
    limit_filter,
    pool_limit_filter,
)
from xds_server.resources.edge.operators import own_filters, own_messages
from xds_server.resources.edge.tokens import ask_for_tokens, token_filter, token_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import betterproto2
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpFilter,
    )

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.listener import ListenerSpec


def guarded(spec: ListenerSpec) -> bool:
    """Return whether filters of operators may refuse requests."""
    return bool(spec.jwt or spec.http_filters.before or spec.http_filters.after)


def first_filters(spec: ListenerSpec) -> list[HttpFilter]:
    """Return the filters ahead of all others."""
    return [*compress_filters(spec), cors_filter()]


def filters_before(spec: ListenerSpec) -> list[HttpFilter]:
    """Return the filters that stand before the picker, behind those that strip headers."""
    return [limit_filter(), *own_filters(spec.http_filters.before)]


def filters_after(spec: ListenerSpec) -> list[HttpFilter]:
    """Return the filters behind the picker, where the route is the one that a request takes."""
    return [
        *([token_filter()] if spec.jwt else []),
        pool_limit_filter(),
        *own_filters(spec.http_filters.after),
    ]


def guard_routes(routes: Iterable[Any], pools: Mapping[str, PoolSpec]) -> None:
    """Write into routes what their pools ask of these filters; changes them in place."""
    every = list(routes)
    ask_for_tokens(every, pools)
    count_requests(every, pools)
    own_messages(every, pools)


def edge_settings(fleet: Fleet, retiring: Fleet | None) -> dict[str, betterproto2.Message]:
    """Return the settings of these filters by name.

    Args:
        fleet: The fleet whose settings are in force.
        retiring: The previous fleet: what its routes ask of the filters remains.
    """
    tokens = token_settings(fleet, retiring)
    return {
        **compress_settings(fleet.listener),
        **({} if tokens is None else {JWT_FILTER: tokens}),
    }
