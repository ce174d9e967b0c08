"""Envoy clusters of a pool's variants and of the pickers (CDS).

Source: ``envoy/config/cluster/v3/cluster.proto``. Written with ``envoy-data-plane``, whose messages
are typed and contain ``OverrideHost.selected_host_key``. Its encoding is slower, which does not
matter here: clusters change rarely.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    BindConfig,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    RoutingPriority,
    RuntimeDouble,
    SocketOption,
    TcpKeepalive,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.common.v3 import SlowStartConfig
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.subset.v3 import (
    Subset,
    SubsetLbSubsetFallbackPolicy,
    SubsetLbSubsetSelector,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Int64Range, Percent
from envoy_data_plane.google.protobuf import Any as PackedAny

from tidegate_api.names import (
    DESTINATION_HEADER,
    DESTINATION_SERVED_KEY,
    LB_NAMESPACE,
    PICKER_CLUSTER,
    PLACED_KEY,
    ClusterRef,
)
from xds_server.fleet.model.edge import ReplicaConnections
from xds_server.fleet.model.resilience import CircuitBreaker, SlowStartSpec
from xds_server.resources.edge.connections import bounds, keepalive
from xds_server.resources.edge.operators import patched_cluster
from xds_server.resources.filters.own_version import cluster_filters
from xds_server.resources.runtime import aggression_key
from xds_server.resources.secrets import to_pickers, upstream
from xds_server.resources.sources import ads_source, extension

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpFilter,
    )

    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import PoolSpec, VariantSpec

_UPSTREAM_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_EDS_FETCH_TIMEOUT = timedelta(seconds=2)
"""Longest time for which a changed cluster waits for its endpoints (Envoy's default is 15 s). The
server sends them directly after the cluster, so this is only a safeguard."""

_PICKER_MAX_STREAMS = 100_000
"""Most streams to the pickers. Each HTTP request in flight uses one; Envoy's default is 1,024."""


_USER_TIMEOUT = SocketOption(description="TCP_USER_TIMEOUT", level=6, name=18, int_value=20_000)
"""Milliseconds after which a connection breaks on which the replica's host confirms nothing. The
numbers are those of Linux (``netinet/tcp.h``)."""

_PRIORITIES = (RoutingPriority.DEFAULT, RoutingPriority.HIGH)

_DEFAULT_LIMITS = CircuitBreaker()
_DEFAULT_RAMP = SlowStartSpec()
"""Constants for all settings that have a runtime key; their current values are sent over RTDS
(``runtime``)."""


def _metadata_key(field: str) -> MetadataKey:
    return MetadataKey(key=LB_NAMESPACE, path=[MetadataKeyPathSegment(key=field)])


def _least_request(pool: PoolSpec) -> LeastRequest:
    slow_start = pool.slow_start
    if not slow_start.window:
        return LeastRequest()
    return LeastRequest(
        slow_start_config=SlowStartConfig(
            slow_start_window=timedelta(seconds=slow_start.window),
            aggression=RuntimeDouble(
                default_value=_DEFAULT_RAMP.aggression, runtime_key=aggression_key(pool.name)
            ),
            min_weight_percent=Percent(value=slow_start.min_weight_percent),
        )
    )


def _load_balancing(pool: PoolSpec) -> LoadBalancingPolicy:
    """Return the policy: the picker's choice; without one, least request with slow start.

    In a pool of several models a request without a pick goes to the replicas that carry its model
    as metadata (``filters/placed.py``); where none does, to any.
    """
    fallback = extension("envoy.load_balancing_policies.least_request", _least_request(pool))
    if pool.chooses_models:
        of_model = Subset(
            fallback_policy=SubsetLbSubsetFallbackPolicy.ANY_ENDPOINT,
            subset_selectors=[SubsetLbSubsetSelector(keys=[PLACED_KEY])],
            list_as_any=True,
            allow_redundant_keys=True,
            subset_lb_policy=LoadBalancingPolicy(
                policies=[LoadBalancingPolicyPolicy(typed_extension_config=fallback)]
            ),
        )
        fallback = extension("envoy.load_balancing_policies.subset", of_model)
    override = OverrideHost(
        # Metadata rather than the header, because clients can send the header.
        override_host_sources=[
            OverrideHostOverrideHostSource(metadata=_metadata_key(DESTINATION_HEADER))
        ],
        selected_host_key=_metadata_key(DESTINATION_SERVED_KEY),
        fallback_policy=LoadBalancingPolicy(
            policies=[LoadBalancingPolicyPolicy(typed_extension_config=fallback)]
        ),
    )
    return LoadBalancingPolicy(
        policies=[
            LoadBalancingPolicyPolicy(
                typed_extension_config=extension(
                    "envoy.load_balancing_policies.override_host", override
                )
            )
        ]
    )


def probe_path(pool: PoolSpec, variant: VariantSpec) -> str:
    """Return the HTTP path that answers 200 if a replica serves the variant's model.

    This is the readiness of the model, not of the server: while Triton loads *any* model, it
    answers 400 to ``/v2/health/ready``. Of several models a replica may lack some, which pickers
    find out by themselves; then it is only asked whether it lives.
    """
    if pool.health.path is not None:
        return pool.health.path
    if not pool.match.models:
        return "/v2/health/ready"
    if len(pool.match.models) > 1 and pool.health.repository:
        return "/v2/health/live"
    version = f"/versions/{variant.model_version}" if variant.model_version else ""
    return f"/v2/models/{pool.match.models[0]}{version}/ready"


def probes_http(pool: PoolSpec) -> bool:
    """Return whether all replicas can be probed over HTTP; otherwise gRPC health is used."""
    return all(kind.http for kind in pool.kinds)


def _health_check(pool: PoolSpec, path: str | None) -> HealthCheck:
    health = pool.health
    check = HealthCheck(
        timeout=timedelta(seconds=health.timeout),
        interval=timedelta(seconds=health.interval),
        # By default Envoy probes only once a minute without traffic.
        no_traffic_interval=timedelta(seconds=health.interval),
        unhealthy_threshold=health.unhealthy_after,
        healthy_threshold=health.healthy_after,
    )
    if path is None:
        check.grpc_health_check = HealthCheckGrpcHealthCheck()
    else:
        expected = [Int64Range(start=200, end=201)]
        if health.path is None and pool.match.paths:
            # An engine without Triton's API, which is there; Triton never answers its readiness
            # paths so. Pickers ask further.
            expected.append(Int64Range(start=404, end=405))
        check.http_health_check = HealthCheckHttpHealthCheck(
            path=path, host="tidegate", expected_statuses=expected
        )
    return check


def protocol_options(
    protocol: str, spec: ReplicaConnections, filters: Sequence[HttpFilter] = ()
) -> dict[str, PackedAny]:
    """Return how Envoy speaks to a cluster's hosts, and which filters attempts there pass."""
    h2 = Http2ProtocolOptions(connection_keepalive=keepalive(spec))
    explicit = (
        HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=h2)
        if protocol == "grpc"
        else HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions())
    )
    # Triton waits for idle connections when it shuts down, so they need a timeout.
    common = HttpProtocolOptions(idle_timeout=timedelta(seconds=60))
    bounds(common, spec)
    options = UpstreamProtocolOptions(
        explicit_http_config=explicit,
        common_http_protocol_options=common,
        http_filters=list(filters),
    )
    return {_UPSTREAM_OPTIONS: PackedAny.pack(options)}


def _thresholds(priority: RoutingPriority) -> CircuitBreakersThresholds:
    """Return the limits of one priority: *high* are requests without a pick (``runtime``)."""
    return CircuitBreakersThresholds(
        priority=priority,
        max_connections=_DEFAULT_LIMITS.max_connections,
        max_pending_requests=_DEFAULT_LIMITS.max_pending,
        max_requests=_DEFAULT_LIMITS.max_requests,
        track_remaining=True,
        retry_budget=CircuitBreakersThresholdsRetryBudget(
            budget_percent=Percent(value=_DEFAULT_LIMITS.retry_budget_percent),
            min_retry_concurrency=_DEFAULT_LIMITS.min_retries,
        ),
    )


def variant_cluster(pool: PoolSpec, variant: VariantSpec, ref: ClusterRef) -> bytes:
    """Return the serialized ``Cluster`` of one variant and protocol."""
    per_host, tls = pool.circuit_breaker.max_connections_per_endpoint, pool.upstream_tls
    # Replicas of an HTTP cluster speak HTTP, and Envoy rejects gRPC checks without HTTP/2.
    http = ref.protocol == "http" or probes_http(pool)
    path = probe_path(pool, variant) if http else None
    cluster = Cluster(
        name=str(ref),
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(
            service_name=str(ref), eds_config=ads_source(_EDS_FETCH_TIMEOUT)
        ),
        connect_timeout=timedelta(seconds=0.5),
        common_lb_config=ClusterCommonLbConfig(
            # No panic mode: never send requests to replicas that are known to be unhealthy.
            healthy_panic_threshold=Percent(value=0),
            # Apply weight and health changes in the workers at once; the default merges for 1 s.
            update_merge_window=timedelta(0),
            ignore_new_hosts_until_first_hc=True,
        ),
        ignore_health_on_host_removal=True,
        health_checks=[_health_check(pool, path)],
        # Nothing is enforced, because clients cause all of it: a replica's 502 to 504, connections
        # that it closes on a request, and three long requests that reach a timeout at once, which
        # count as failures of its connections (checked on Envoy 1.40). Envoy only counts them.
        outlier_detection=OutlierDetection(
            consecutive_gateway_failure=pool.outlier.consecutive_failures,
            enforcing_consecutive_gateway_failure=0,
            enforcing_consecutive_5xx=0,
            enforcing_success_rate=0,
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=pool.outlier.consecutive_failures,
            enforcing_consecutive_local_origin_failure=0,
            enforcing_local_origin_success_rate=0,
            interval=timedelta(seconds=pool.outlier.interval),
        ),
        # A replica's host that is cut off closes no connection.
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_time=15, keepalive_interval=5, keepalive_probes=3)
        ),
        upstream_bind_config=BindConfig(socket_options=[_USER_TIMEOUT]),
        circuit_breakers=CircuitBreakers(
            thresholds=[_thresholds(priority) for priority in _PRIORITIES],
            per_host_thresholds=[
                CircuitBreakersThresholds(priority=priority, max_connections=per_host)
                for priority in (_PRIORITIES if per_host else ())
            ],
        ),
        transport_socket=None if tls is None else upstream(pool.name, tls, ref.protocol),
        typed_extension_protocol_options=protocol_options(
            ref.protocol, pool.connections, cluster_filters(variant, ref.protocol)
        ),
        load_balancing_policy=_load_balancing(pool),
    )
    return patched_cluster(bytes(cluster), pool.cluster_patch)


def picker_cluster(name: str = PICKER_CLUSTER, tls: UpstreamTls | None = None) -> bytes:
    """Return the serialized ``Cluster`` of the pickers, or of one picker under another name.

    Args:
        name: Its name.
        tls: TLS to the pickers; ``None`` = plain.

    With its health check a dead or hung picker costs routing quality only: Envoy finds no healthy
    host and continues at once, instead of waiting for the timeout on every request.
    """
    cluster = Cluster(
        name=name,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(
            service_name=name, eds_config=ads_source(_EDS_FETCH_TIMEOUT)
        ),
        connect_timeout=timedelta(seconds=0.25),
        common_lb_config=ClusterCommonLbConfig(
            healthy_panic_threshold=Percent(value=0), update_merge_window=timedelta(0)
        ),
        health_checks=[
            HealthCheck(
                timeout=timedelta(seconds=1),
                interval=timedelta(seconds=1),
                # Detect a picker that starts or recovers soon, also without traffic.
                no_traffic_interval=timedelta(milliseconds=250),
                unhealthy_interval=timedelta(milliseconds=250),
                unhealthy_threshold=2,
                healthy_threshold=3,  # one that comes and goes is not asked again at once
                # The default authority is the cluster's name; that of a log cluster contains a
                # slash, which is invalid there.
                grpc_health_check=HealthCheckGrpcHealthCheck(authority=PICKER_CLUSTER),
            )
        ],
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=_PICKER_MAX_STREAMS,
                    max_pending_requests=_PICKER_MAX_STREAMS,
                    max_requests=_PICKER_MAX_STREAMS,
                )
            ]
        ),
        transport_socket=None if tls is None else to_pickers(tls),
        typed_extension_protocol_options=protocol_options("grpc", ReplicaConnections()),
        load_balancing_policy=LoadBalancingPolicy(
            policies=[
                LoadBalancingPolicyPolicy(
                    typed_extension_config=extension(
                        "envoy.load_balancing_policies.least_request", LeastRequest()
                    )
                )
            ]
        ),
    )
    return bytes(cluster)
