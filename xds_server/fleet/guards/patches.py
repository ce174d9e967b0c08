"""Rules for patches of the listener and of clusters: what routing and its guards rest on stays.

A patch is a message that Envoy's protobuf merges into ours: fields that it sets replace ours,
messages in them are merged, entries of lists come behind ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xds_server.fleet.guards.filters import message
from xds_server.fleet.guards.typed import type_of
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xds_server.fleet.model.fleet import PoolSpec
    from xds_server.fleet.model.listener import ListenerSpec

LISTENER: Final = "envoy.config.listener.v3.Listener"
MANAGER: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
CLUSTER: Final = "envoy.config.cluster.v3.Cluster"
OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

_ROUTED: Final = "routes come from the pools"
_PATHS: Final = "routes match normalised paths, and no other spelling may get round them"
_CHAINS: Final = "a chain of filters of its own would get round tokens and the picker"
_SERVED: Final = "replicas come from the pool's endpoints"
_BALANCED: Final = "it would ignore the picker"
_OWN: Final = {
    LISTENER: {
        "name": "the control server finds it by its name",
        "address": "write `listener.address`",
        "additional_addresses": "write `listener.further`",
        "filter_chains": f"{_CHAINS}; patch the HttpConnectionManager",
        "default_filter_chain": _CHAINS,
        "filter_chain_matcher": _CHAINS,
        "fcds_config": _CHAINS,
        "api_listener": _CHAINS,
        "internal_listener": _CHAINS,
        "udp_listener_config": "write `listener.http3`",
        "use_original_dst": _ROUTED,
    },
    MANAGER: {
        "rds": _ROUTED,
        "route_config": _ROUTED,
        "scoped_routes": _ROUTED,
        "stat_prefix": "metrics have it in their names",
        "codec_type": "the listener takes HTTP/1.1 and HTTP/2",
        "http_filters": "write `listener.http_filters`",
        "upgrade_configs": _CHAINS,
        "early_header_mutation_extensions": "clients' control headers are stripped there",
        "normalize_path": _PATHS,
        "merge_slashes": _PATHS,
        "path_with_escaped_slashes_action": _PATHS,
        "path_normalization_options": _PATHS,
        "use_remote_address": "clients would be trusted with Envoy's internal headers",
        "internal_address_config": "clients would be trusted with Envoy's internal headers",
    },
    CLUSTER: {
        "name": "routes and pickers find it by its name",
        "type": _SERVED,
        "cluster_type": _SERVED,
        "eds_cluster_config": _SERVED,
        "load_assignment": _SERVED,
        "lb_policy": _BALANCED,
        "load_balancing_policy": _BALANCED,
        "lb_subset_config": _BALANCED,
        "circuit_breakers": "write `circuit_breaker`",
        "health_checks": "write `health`",
        "transport_socket": "write `upstream_tls`",
        "transport_socket_matches": "write `upstream_tls`",
        "typed_extension_protocol_options": f"write a message {OPTIONS} of its own",
    },
    OPTIONS: {
        "http_filters": "the number of reads of a request is bounded there",
        "use_downstream_protocol_config": "replicas' ports speak one protocol each",
        "auto_config": "replicas' ports speak one protocol each",
    },
}
"""Type -> field that a patch may not set -> why, or what to write instead."""


def patches(spec: ListenerSpec) -> Iterator[Problem]:
    """Yield the problems of the listener's patch."""
    if spec.patch:
        yield from _of_listener(spec)


def patches_of_pool(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the problems of a pool's patch."""
    yield from _all((*at, "cluster_patch"), pool.cluster_patch, (CLUSTER, OPTIONS))


@ByIdentity
def _of_listener(spec: ListenerSpec) -> tuple[Problem, ...]:
    return tuple(_all(("listener", "patch"), spec.patch, (LISTENER, MANAGER)))


def _all(
    at: Location, values: Sequence[Mapping[str, Any]], types: tuple[str, ...]
) -> Iterator[Problem]:
    names = []
    for position, value in enumerate(values):
        place: Location = (*at, position)
        wrong = list(message(place, value))
        if wrong:
            yield from wrong
            continue
        name = type_of(value)
        names.append(name)
        if name not in types:
            yield Problem(
                (*place, "@type"), f"{name} cannot be patched here; write {' or '.join(types)}"
            )
            continue
        for key in value:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
            if snake in _OWN[name]:
                yield Problem((*place, key), f"a patch cannot set this: {_OWN[name][snake]}")
    if OPTIONS not in names:  # one for each protocol is allowed
        yield from repeated(names, at, None, "type")
