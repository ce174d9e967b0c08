"""Limits of the rate of requests: token buckets that all workers of an Envoy share.

Rules:

1. The listener's buckets, of all requests and of each client address, are asked before the picker;
   of addresses the ``MAX_CLIENTS`` that sent requests last have one. The pools' buckets stand
   behind it and behind the check of tokens, where the route, and thus the pool, is the one on which
   a request leaves.
2. All routes of a pool share its bucket: a route names the pool, and the buckets stand in the
   settings of all routes.
3. The buckets stand with the routes because an address has one set of routes, but several copies of
   each filter: for HTTP/1, HTTP/2 and HTTP/3, and of a listener that drains. Each copy would count
   by itself. The filters' own settings limit nothing; they are in each listener, disabled, and
   routes with buckets enable them: so the first limit drains no connections.
4. A bucket is full again after a change of routes.

Source: ``envoy/extensions/filters/http/local_ratelimit/v3/local_rate_limit.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent
from envoy_data_plane.envoy.config.route.v3 import RateLimit as RouteLimit
from envoy_data_plane.envoy.config.route.v3 import (
    RateLimitAction,
    RateLimitActionMaskedRemoteAddress,
)
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    LocalRateLimitDescriptor,
    RateLimitDescriptorEntry,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import FractionalPercent, TokenBucket
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import LIMIT_FILTER, POOL_LIMIT_FILTER
from xds_server.resources.edge.pool_routes import routes_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from xds_server.fleet.model.edge import RateLimit
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

MAX_CLIENTS: Final = 65_536
"""Client addresses that have a bucket; of more the one unused for longest has a full one again."""

_PREFIX_BITS: Final = 64
"""Of an IPv6 address, what belongs to one client."""

_LISTENER: Final = "tidegate_listener"
_POOLS: Final = "tidegate_pools"
"""Prefixes of the filters' counters."""

_POOL_KEY: Final = "pool"
_ALWAYS: Final = FractionalPercent(numerator=100)
_UNLIMITED: Final = 2**32 - 1


def limit_filter() -> HttpFilter:
    """Return the listener's filter that limits all requests."""
    return _filter(LIMIT_FILTER, _LISTENER)


def pool_limit_filter() -> HttpFilter:
    """Return the listener's filter that limits the requests of pools."""
    return _filter(POOL_LIMIT_FILTER, _POOLS)


def _filter(name: str, stats: str) -> HttpFilter:
    settings = PackedAny.pack(LocalRateLimit(stat_prefix=stats))
    return HttpFilter(name=name, typed_config=settings, disabled=True)


def limit_requests(config: Any, fleet: Fleet) -> None:
    """Write the buckets of a fleet into a ``RouteConfiguration``."""
    for name, each in _limits(fleet):
        packed = PackedAny.pack(each)
        config.typed_per_filter_config[name].type_url = packed.type_url
        config.typed_per_filter_config[name].value = packed.value


def _limits(fleet: Fleet) -> Iterator[tuple[str, LocalRateLimit]]:
    every = timedelta(milliseconds=50)
    unlimited = TokenBucket(max_tokens=_UNLIMITED, tokens_per_fill=_UNLIMITED, fill_interval=every)
    together, client = fleet.listener.rate_limit, fleet.listener.client_rate_limit
    if together is not None or client is not None:
        limit = _limit(_LISTENER, unlimited if together is None else _bucket(together))
        if client is not None:
            _by_client(limit, client)
            limit.always_consume_default_token_bucket = together is not None
        yield LIMIT_FILTER, limit
    if any(pool.rate_limit is not None for pool in fleet.pools):
        whole = _limit(_POOLS, unlimited)
        whole.always_consume_default_token_bucket = False
        whole.descriptors = [
            LocalRateLimitDescriptor(
                entries=[RateLimitDescriptorEntry(key=_POOL_KEY, value=pool.name)],
                token_bucket=_bucket(pool.rate_limit),
            )
            for pool in fleet.pools
            if pool.rate_limit is not None
        ]
        yield POOL_LIMIT_FILTER, whole


def _by_client(limit: LocalRateLimit, client: RateLimit) -> None:
    """Add a bucket for each client address; changes ``limit`` in place."""
    address = RateLimitActionMaskedRemoteAddress(
        v4_prefix_mask_len=32, v6_prefix_mask_len=_PREFIX_BITS
    )
    limit.rate_limits = [RouteLimit(actions=[RateLimitAction(masked_remote_address=address)])]
    limit.max_dynamic_descriptors = MAX_CLIENTS
    limit.descriptors = [
        LocalRateLimitDescriptor(
            # Without a value there is one for each that comes.
            entries=[RateLimitDescriptorEntry(key="masked_remote_address")],
            token_bucket=_bucket(client),
        )
    ]


def count_requests(routes: Iterable[Any], pools: Mapping[str, PoolSpec]) -> None:
    """Let routes count for the limits of their pools; changes them in place."""
    limited = {name for name, pool in pools.items() if pool.rate_limit is not None}
    if not limited:
        return
    for route, pool in routes_to(routes, limited):
        counted = route.route.rate_limits.add().actions.add().generic_key
        counted.descriptor_key, counted.descriptor_value = _POOL_KEY, pool


def _limit(stats: str, bucket: TokenBucket) -> LocalRateLimit:
    always = RuntimeFractionalPercent(
        default_value=_ALWAYS, runtime_key=f"{stats.replace('_', '.limit.')}.enforced"
    )
    return LocalRateLimit(
        stat_prefix=stats,
        token_bucket=bucket,
        filter_enabled=always,
        filter_enforced=always,
        rate_limited_as_resource_exhausted=True,
    )


def _bucket(spec: RateLimit) -> TokenBucket:
    return TokenBucket(
        max_tokens=spec.burst or spec.requests,
        tokens_per_fill=spec.requests,
        fill_interval=timedelta(seconds=spec.per),
    )
