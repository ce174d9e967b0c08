"""Pool resources for pickers: the message ``Pool`` of ``protos/tidegate/fleet/v1/pool.proto``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.mapping import MessageCopier
from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec, Routing, VariantSpec
from xds_server.fleet.model.resilience import HealthSpec, OutlierSpec, SlowStartSpec
from xds_server.fleet.model.routing import ModelNeedsSpec
from xds_server.fleet.model.telemetry import CustomMetricSpec, KvEventsSpec
from xds_server.fleet.rules.fleet import default_for_grpc, default_for_path
from xds_server.fleet.rules.kv_events import model_of
from xds_server.fleet.view import log_slots
from xds_server.resources.clusters import probe_path

if TYPE_CHECKING:
    from xds_server.fleet.view import View

OVERRUN: Final = 2
"""How far Envoy 1.40 exceeds its buffers: 64 KiB let about 131 kB through."""

_ROUTING: Final = MessageCopier(
    pool_pb2.Routing, Routing, computed={"allow_override", "max_body_bytes"}
)
_SLOW_START: Final = MessageCopier(pool_pb2.SlowStart, SlowStartSpec)
_OUTLIER: Final = MessageCopier(pool_pb2.Outlier, OutlierSpec)
_DEEP_HEALTH: Final = MessageCopier(pool_pb2.DeepHealth, HealthSpec, computed={"repository"})
_CUSTOM_METRIC: Final = MessageCopier(pool_pb2.CustomMetric, CustomMetricSpec)
_MODEL_NEEDS: Final = MessageCopier(pool_pb2.ModelNeeds, ModelNeedsSpec)
_VARIANT: Final = MessageCopier(pool_pb2.Variant, VariantSpec, computed={"headers", "probe_path"})
_KV_EVENTS: Final = MessageCopier(pool_pb2.KvEvents, KvEventsSpec, computed={"model"})


def pool_resource(view: View, pool: PoolSpec) -> bytes:
    """Return the serialized ``Pool``."""
    fleet = view.fleet
    message = pool_pb2.Pool(
        name=pool.name,
        models=pool.match.models,
        paths=pool.match.paths,
        default_for=[pool_pb2.FORM_GRPC] if default_for_grpc(fleet) == pool.name else [],
        default_for_paths=[
            path for path in pool.match.paths if default_for_path(fleet, path) == pool.name
        ],
        variants=[
            _VARIANT(
                variant,
                # Pickers get no cookies, so they cannot apply a match that needs one.
                headers={} if variant.match.cookies else variant.match.headers,
                # Pickers probe over plain HTTP only.
                probe_path="" if pool.upstream_tls else probe_path(pool, variant),
            )
            for variant in pool.variants
        ],
        routing=_ROUTING(
            pool.routing,
            allow_override=sorted(pool.routing.allow_override),
            max_body_bytes=_largest_body(fleet, pool.routing),
        ),
        slow_start=_SLOW_START(pool.slow_start),
        per_endpoint_in_flight=pool.circuit_breaker.per_endpoint_in_flight,
        outlier=_OUTLIER(pool.outlier),
        probe_interval_seconds=pool.health.interval,
        first_answer_seconds=pool.timeouts.first_answer,
        first_answer_least_seconds=pool.timeouts.first_answer_least,
        custom_metrics=[_CUSTOM_METRIC(custom) for custom in pool.telemetry.custom],
        deep_health=_DEEP_HEALTH(
            pool.health,
            # Pickers query the repository index over plain HTTP only.
            repository=pool.health.repository and not pool.upstream_tls,
        ),
        orca=pool.telemetry.orca,
        usage=pool.telemetry.usage,
        model_needs=[_MODEL_NEEDS(needs) for needs in pool.model_needs],
        seed=view.seed,
        log_slots=log_slots(fleet.pickers.addresses),
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


def _largest_body(fleet: Fleet, routing: Routing) -> int:
    """Return the most bytes of a body that pickers get; they bound messages by it.

    A first part is bounded by Envoy's buffers, which it may overrun by as much again.
    """
    if routing.body == "full":
        return routing.max_body
    buffered = max(routing.peek_bytes, fleet.listener.buffer_bytes)
    return max(routing.max_body, OVERRUN * buffered)


def _kv_events(pool: PoolSpec, endpoint: EndpointSpec) -> pool_pb2.KvEvents | None:
    events = endpoint.telemetry.kv_events
    if events is None:
        return None
    return _KV_EVENTS(events, model=model_of(pool, endpoint))
