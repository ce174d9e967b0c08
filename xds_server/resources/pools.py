"""Pool resources for pickers: the message ``Pool`` of ``protos/tidegate/fleet/v1/pool.proto``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.rules.fleet import default_for_grpc, default_for_path
from xds_server.fleet.rules.kv_events import model_of
from xds_server.resources.clusters import probe_path

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec
    from xds_server.fleet.view import View

_ADAPTERS = {
    "ignore": pool_pb2.ADAPTERS_IGNORE,
    "prefer": pool_pb2.ADAPTERS_PREFER,
    "require": pool_pb2.ADAPTERS_REQUIRE,
}
_BODY_MODES = {
    "none": pool_pb2.BODY_MODE_NONE,
    "peek": pool_pb2.BODY_MODE_PEEK,
    "full": pool_pb2.BODY_MODE_FULL,
}


def pool_resource(view: View, pool: PoolSpec) -> bytes:
    """Return the serialized ``Pool``."""
    fleet, routing, ramp, outlier = view.fleet, pool.routing, pool.slow_start, pool.outlier
    message = pool_pb2.Pool(
        name=pool.name,
        models=pool.match.models,
        paths=pool.match.paths,
        default_for=[pool_pb2.FORM_GRPC] if default_for_grpc(fleet) == pool.name else [],
        default_for_paths=[
            path for path in pool.match.paths if default_for_path(fleet, path) == pool.name
        ],
        routing=pool_pb2.Routing(
            policy=routing.policy,
            allow_override=sorted(routing.allow_override),
            body=_BODY_MODES[routing.body],
            fallbacks=routing.fallbacks,
            session_header=routing.session_header,
            block_chars=routing.block_chars,
            block_tokens=routing.block_tokens,
            tokenizer=routing.tokenizer or "",
            index_blocks_per_endpoint=routing.index_blocks,
            index_ttl_seconds=routing.index_ttl,
            sequence_idle_seconds=routing.sequence_idle,
            load_factor=routing.load_factor,
            max_body_bytes=routing.max_body,
            gpu_weights=pool_pb2.GpuWeights(**routing.gpu_weights.model_dump()),
            learned=pool_pb2.Learned(
                min_decisions=routing.learned.min_decisions,
                explore=routing.learned.explore_percent / 100,
            ),
            co_batch_hold_seconds=routing.co_batch_hold_ms / 1000,
            adapters=_ADAPTERS[routing.adapters],
            prefer_zone=routing.prefer_zone,
            spill_factor=routing.spill_factor,
        ),
        slow_start=pool_pb2.SlowStart(
            window_seconds=ramp.window,
            aggression=ramp.aggression,
            min_weight=ramp.min_weight_percent / 100,
        ),
        per_endpoint_in_flight=pool.circuit_breaker.per_endpoint_in_flight,
        outlier=pool_pb2.Outlier(
            consecutive_failures=outlier.consecutive_failures,
            interval_seconds=outlier.interval,
            base_ejection_seconds=outlier.base_ejection,
            max_ejection_percent=outlier.max_ejection_percent,
            failure_percent=outlier.failure_percent,
            latency_factor=outlier.latency_factor,
            frozen_after_seconds=outlier.frozen_after,
        ),
        probe_interval_seconds=pool.health.interval,
        deep_health=pool_pb2.DeepHealth(
            # Pickers query the repository index over plain HTTP only.
            repository=pool.health.repository and not pool.upstream_tls,
            gpu_memory_free=pool.health.gpu_memory_free_percent / 100,
            share=pool.health.share,
        ),
        orca=pool.telemetry.orca,
    )
    for custom in pool.telemetry.custom:
        message.custom_metrics.add(
            reading=custom.reading, metric=custom.metric, labels=custom.labels, scale=custom.scale
        )
    for needs in pool.model_needs:
        message.model_needs.add(
            model=needs.model,
            memory_bytes=needs.memory_mib * 2**20,
            device=needs.device,
            device_required=needs.device_required,
        )
    for variant in pool.variants:
        message.variants.add(
            name=variant.name,
            weight=variant.weight,
            model_version=variant.model_version or "",
            # Pickers get no cookies, so they cannot apply a match that needs one.
            headers={} if variant.match.cookies else variant.match.headers,
            # Pickers probe over plain HTTP only.
            probe_path="" if pool.upstream_tls else probe_path(pool, variant),
        )
    sick = view.sick.get(pool.name, {})
    for endpoint in pool.endpoints:
        incarnation = view.incarnation(endpoint.id)
        message.endpoints.add(
            id=endpoint.id,
            incarnation=incarnation.number,
            variant=pool.variant_of(endpoint),
            http_address=endpoint.http or "",
            grpc_address=endpoint.grpc or "",
            metrics_url=endpoint.metrics or "",
            gpu_metrics_url=endpoint.telemetry.gpu_metrics or "",
            gpus=endpoint.telemetry.gpus,
            capacity=endpoint.capacity,
            zone=endpoint.zone,
            labels=endpoint.labels,
            device=endpoint.device,
            adapters=endpoint.adapters,
            kv_events=_kv_events(pool, endpoint),
            draining=endpoint.draining,
            joined_unix_ms=incarnation.joined_unix_ms,
            told=sick.get(endpoint.id, ()),
        )
    return message.SerializeToString(deterministic=True)


def _kv_events(pool: PoolSpec, endpoint: EndpointSpec) -> pool_pb2.KvEvents | None:
    events = endpoint.telemetry.kv_events
    if events is None:
        return None
    return pool_pb2.KvEvents(
        address=events.address,
        replay=events.replay or "",
        engines=events.engines,
        topic=events.topic,
        model=model_of(pool, endpoint),
    )
