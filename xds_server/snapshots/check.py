"""Consistency check of a snapshot before it is published.

``xds_server.fleet.rules`` reports errors of operators; a fault found here is an error in Tidegate
itself. Envoy would accept some of these faults silently and answer requests with 503 (a route to a
missing cluster), and wait 15 s for others (a cluster without endpoints), so nothing of such a
snapshot is sent.

Rules (X33 and X62 of the xDS checklist):

1. A resource contains the name under which it is sent, and route names are unique.
2. Every cluster has its assignment, and every assignment its cluster.
3. Every cluster that a route, a mirror, a filter or the listener names exists; so does every
   secret, every route configuration and the settings of every filter.
4. The weights of a split add up to 1..2^32-1, and the layers contain the runtime keys of those that
   have any.
5. An assignment has at most one drop category, weights of at least 1, and no gap in its priorities.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.config.trace.v3 import opentelemetry_pb2
from envoy.extensions.access_loggers.open_telemetry.v3 import logs_service_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.quic.v3 import quic_transport_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from envoy.service.runtime.v3 import rtds_pb2
from google.protobuf import any_pb2

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    JWT_FILTER,
    LISTENER_TYPE,
    PICKER_FILTER,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    SECRET_TYPE,
    WEIGHT_LAYERS,
)
from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.memo import ByIdentity
from xds_server.resources.routes.weights import weights_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet

_REMEMBERED = 8192
"""Resources whose facts are cached; they change rarely and are checked in every plan."""

_MAX_REPORTED = 5
"""Most faults in an error message."""


class Inconsistent(Exception):  # noqa: N818 - reads as the sentence it is
    """The resources of a change are inconsistent; nothing of it was published."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """A resource's name, its faults and its references."""

    name: str
    faults: tuple[str, ...] = ()
    needs: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    """Type URL and name of each resource to which it refers."""
    splits: frozenset[tuple[str, ...]] = frozenset()
    """Runtime keys of each weighted draw."""
    weights: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Runtime keys and values of a layer of weights."""


def hold(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot, for Envoys, if it is consistent; only sets that are new are read.

    Raises:
        Inconsistent: It is not; the message names the faults.
    """
    found = list(_faults(snapshot))
    if found:
        more = f"; and {len(found) - _MAX_REPORTED} more" if len(found) > _MAX_REPORTED else ""
        raise Inconsistent(
            "internal error, nothing was published: the resources of this fleet are "
            f"inconsistent: {'; '.join(found[:_MAX_REPORTED])}{more}"
        )
    return snapshot


def _faults(snapshot: Snapshot) -> Iterator[str]:
    weights: Mapping[str, int] = {}
    for type_url, read in _SETS.items():
        sent = snapshot.type_set(type_url)
        if sent is None:
            continue
        facts = read(sent)
        yield from facts.faults
        weights = facts.weights or weights
        for keys, name in facts.splits.items():
            yield from _faults_of_split(name, keys, weights)
        for needed_type, names in facts.needs.items():
            for needed in sorted(names.keys() - snapshot.resources(needed_type).keys()):
                yield f"{names[needed]}: needs {needed_type.rpartition('.')[2]} '{needed}'"
    clusters, assignments = snapshot.resources(CLUSTER_TYPE), snapshot.resources(ENDPOINT_TYPE)
    for orphan in assignments.keys() - clusters.keys():
        yield f"assignment '{orphan}' has no cluster"


@dataclass(frozen=True, slots=True)
class _SetFacts:
    """What the resources of one type say together."""

    faults: list[str]
    """Faults of single resources, another name than the one under which it is sent included."""
    needs: dict[str, dict[str, str]]
    """Type URL -> each name to which a resource refers -> the first that does."""
    splits: dict[tuple[str, ...], str]
    """Runtime keys of each weighted draw -> the resource with the draw."""
    weights: dict[str, int]
    """Runtime keys and values of the layers of weights."""


def _read_set(read: Callable[[bytes], _Facts], sent: TypeSet) -> _SetFacts:
    found = _SetFacts([], {}, {}, {})
    for name, resource in sent.resources.items():
        facts = _facts_of(read, resource)
        if facts.name != name:
            found.faults.append(f"'{name}' contains the name '{facts.name}'")
        found.faults.extend(f"{name}: {fault}" for fault in facts.faults)
        for needed_type, needed in facts.needs:
            found.needs.setdefault(needed_type, {}).setdefault(needed, name)
        for keys in facts.splits:
            found.splits.setdefault(keys, name)
        found.weights.update(facts.weights)
    return found


def _faults_of_split(name: str, keys: tuple[str, ...], weights: Mapping[str, int]) -> Iterator[str]:
    missing = [key for key in keys if key not in weights]
    if missing:
        yield f"{name}: no layer contains '{missing[0]}'"
    elif not 1 <= (total := sum(weights[key] for key in keys)) <= MAX_WEIGHT_SUM:
        yield f"{name}: the weights of '{keys[0]}' and others add up to {total}"


@functools.lru_cache(maxsize=_REMEMBERED)
def _facts_of(read: Callable[[bytes], _Facts], resource: Resource) -> _Facts:
    return read(any_pb2.Any.FromString(resource.any).value)


def _cluster(data: bytes) -> _Facts:
    message = cluster_pb2.Cluster.FromString(data)
    needs = set(_secrets_of(message.transport_socket))
    if message.type == cluster_pb2.Cluster.EDS:
        needs.add((ENDPOINT_TYPE, message.eds_cluster_config.service_name or message.name))
    return _Facts(message.name, needs=frozenset(needs))


def _assignment(data: bytes) -> _Facts:
    message = endpoint_pb2.ClusterLoadAssignment.FromString(data)
    faults = []
    if len(message.policy.drop_overloads) > 1:
        faults.append("more than one drop category")
    priorities = {group.priority for group in message.endpoints}
    if priorities != set(range(len(priorities))):
        faults.append(f"priorities {sorted(priorities)} have a gap")
    faults += [
        "an endpoint of weight 0"
        for group in message.endpoints
        for host in group.lb_endpoints
        if host.HasField("load_balancing_weight") and host.load_balancing_weight.value < 1
    ]
    return _Facts(message.cluster_name, tuple(faults))


def _routes(data: bytes) -> _Facts:
    message = route_pb2.RouteConfiguration.FromString(data)
    faults: list[str] = []
    needs: set[tuple[str, str]] = set()
    splits: set[tuple[str, ...]] = set()
    for host in message.virtual_hosts:
        seen: set[str] = set()
        for route in host.routes:
            if route.name in seen:
                faults.append(f"two routes are named '{route.name}'")
            seen.add(route.name)
            action = route.route
            split = action.weighted_clusters.clusters
            prefix = action.weighted_clusters.runtime_key_prefix
            if prefix:
                splits.add(tuple(f"{prefix}.{one.name}" for one in split))
            total = sum(one.weight.value for one in split)
            if split and not 1 <= total <= MAX_WEIGHT_SUM:
                faults.append(f"the weights of route '{route.name}' add up to {total}")
            named = [action.cluster, *(one.name for one in split)]
            named += [mirror.cluster for mirror in action.request_mirror_policies]
            needs.update((CLUSTER_TYPE, name) for name in named if name)
    return _Facts(message.name, tuple(faults), frozenset(needs), frozenset(splits))


def _listener(data: bytes) -> _Facts:
    message = listener_pb2.Listener.FromString(data)
    needs: set[tuple[str, str]] = set()
    for chain in message.filter_chains:
        needs.update(_secrets_of(chain.transport_socket))
        for one in chain.filters:
            manager = http_connection_manager_pb2.HttpConnectionManager()
            if one.typed_config.Unpack(manager):
                needs.add((ROUTE_TYPE, manager.rds.route_config_name))
                needs.update(_filters_of(manager))
                needs.update(_collectors_of(manager))
    return _Facts(message.name, needs=frozenset(needs))


def _filters_of(manager: Any) -> Iterator[tuple[str, str]]:
    for one in manager.http_filters:
        if one.HasField("config_discovery"):
            yield EXTENSION_TYPE, one.name


def _collectors_of(manager: Any) -> Iterator[tuple[str, str]]:
    """Yield the clusters of the log's and the tracing's collectors."""
    log = logs_service_pb2.OpenTelemetryAccessLogConfig()
    for one in manager.access_log:
        if one.typed_config.Unpack(log):
            yield CLUSTER_TYPE, log.common_config.grpc_service.envoy_grpc.cluster_name
    spans = opentelemetry_pb2.OpenTelemetryConfig()
    if manager.tracing.provider.typed_config.Unpack(spans):
        yield CLUSTER_TYPE, spans.grpc_service.envoy_grpc.cluster_name


def _extension(data: bytes) -> _Facts:
    message = extension_pb2.TypedExtensionConfig.FromString(data)
    processor, tokens = ext_proc_pb2.ExternalProcessor(), jwt_pb2.JwtAuthentication()
    clusters: list[str] = []
    if message.name == PICKER_FILTER and message.typed_config.Unpack(processor):
        clusters = [processor.grpc_service.envoy_grpc.cluster_name]
    elif message.name == JWT_FILTER and message.typed_config.Unpack(tokens):
        clusters = [one.remote_jwks.http_uri.cluster for one in tokens.providers.values()]
    return _Facts(message.name, needs=frozenset((CLUSTER_TYPE, name) for name in clusters if name))


def _secrets_of(socket: Any) -> Iterator[tuple[str, str]]:
    over_udp = quic_transport_pb2.QuicDownstreamTransport()
    if socket.typed_config.Unpack(over_udp):
        common = over_udp.downstream_tls_context.common_tls_context
        for config in common.tls_certificate_sds_secret_configs:
            yield SECRET_TYPE, config.name
        return
    for context in (tls_pb2.UpstreamTlsContext(), tls_pb2.DownstreamTlsContext()):
        if socket.typed_config.Unpack(context):
            common = context.common_tls_context
            for config in (
                *common.tls_certificate_sds_secret_configs,
                common.validation_context_sds_secret_config,
                common.combined_validation_context.validation_context_sds_secret_config,
            ):
                if config.name:
                    yield SECRET_TYPE, config.name


def _secret(data: bytes) -> _Facts:
    return _Facts(secret_pb2.Secret.FromString(data).name)


def _runtime(data: bytes) -> _Facts:
    name = rtds_pb2.Runtime.FromString(data).name
    return _Facts(name, weights=weights_in(data) if name in WEIGHT_LAYERS else {})


_READERS: dict[str, Callable[[bytes], _Facts]] = {
    RUNTIME_TYPE: _runtime,  # before the routes, which need the weights
    CLUSTER_TYPE: _cluster,
    ENDPOINT_TYPE: _assignment,
    SECRET_TYPE: _secret,
    EXTENSION_TYPE: _extension,
    LISTENER_TYPE: _listener,
    ROUTE_TYPE: _routes,
}

_SETS: dict[str, ByIdentity[TypeSet, [], _SetFacts]] = {
    type_url: ByIdentity(functools.partial(_read_set, read)) for type_url, read in _READERS.items()
}
