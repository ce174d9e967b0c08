"""Pool resources for pickers: the message ``Pool`` of ``protos/tidegate/fleet/v1/pool.proto``.

Each endpoint is serialized once; the message is put together from these parts. What changes most
often, and comes to pickers before all else (``snapshots.stages``), is written last (``lighten``).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.mapping import MessageCopier
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fields import UpstreamTls
from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec, VariantSpec
from xds_server.fleet.model.resilience import HealthSpec, OutlierSpec, SlowStartSpec
from xds_server.fleet.model.routing import ModelNeedsSpec, Routing
from xds_server.fleet.model.telemetry import CustomMetricSpec, KvEventsSpec
from xds_server.fleet.rules.kv_events import model_of
from xds_server.fleet.view import defaults_of, log_slots
from xds_server.protocol.wire import delimited
from xds_server.resources.clusters import probe_path
from xds_server.resources.filters.again import hung_requests
from xds_server.resources.routes.processing import may_go_unpicked, repeated_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate_api.pools import HungMode
    from xds_server.fleet.view import Incarnation, View

OVERRUN: Final = 2
"""How far Envoy 1.40 exceeds its buffers: 64 KiB let about 131 kB through."""

_ENDPOINTS: Final = pool_pb2.Pool.ENDPOINTS_FIELD_NUMBER

_ROUTING: Final = MessageCopier(
    pool_pb2.Routing,
    Routing,
    computed={"allow_override", "hung_requests", "max_body_bytes", "move_bytes"},
)
_HUNG: Final[Mapping[HungMode, Any]] = {
    "move": pool_pb2.HUNG_REQUESTS_MOVE,
    "refuse": pool_pb2.HUNG_REQUESTS_REFUSE,
    "wait": pool_pb2.HUNG_REQUESTS_WAIT,
}
_SLOW_START: Final = MessageCopier(pool_pb2.SlowStart, SlowStartSpec)
_OUTLIER: Final = MessageCopier(pool_pb2.Outlier, OutlierSpec)
_DEEP_HEALTH: Final = MessageCopier(pool_pb2.DeepHealth, HealthSpec)
_CUSTOM_METRIC: Final = MessageCopier(pool_pb2.CustomMetric, CustomMetricSpec)
_MODEL_NEEDS: Final = MessageCopier(pool_pb2.ModelNeeds, ModelNeedsSpec)
_UPSTREAM_TLS: Final = MessageCopier(pool_pb2.UpstreamTls, UpstreamTls)
_VARIANT: Final = MessageCopier(pool_pb2.Variant, VariantSpec, computed={"headers", "probe_path"})
_KV_EVENTS: Final = MessageCopier(pool_pb2.KvEvents, KvEventsSpec, computed={"model"})


class PoolParts(NamedTuple):
    """A serialized ``Pool`` in two parts."""

    head: bytes
    """All but the endpoints."""
    endpoints: bytes


def pool_resource(view: View, pool: PoolSpec) -> bytes:
    """Return the serialized ``Pool``."""
    return whole_pool(pool_parts(view, pool), pool, canary_of(view, pool))


def whole_pool(parts: PoolParts, pool: PoolSpec, mark: pool_pb2.Canary | None) -> bytes:
    """Return the serialized ``Pool`` of parts that were made of a pool with any weights.

    Args:
        parts: The parts.
        pool: The pool with the weights.
        mark: What pickers are told of its rollout (``canary_of``).
    """
    message = pool_pb2.Pool.FromString(parts.head)
    lighten(message, pool, mark)
    head: bytes = message.SerializeToString(deterministic=True)
    return head + parts.endpoints


def lighten(message: pool_pb2.Pool, pool: PoolSpec, mark: pool_pb2.Canary | None) -> None:
    """Set what of a pool's message comes before all else: weights, limits, and the rollout's step.

    Args:
        message: The message; variants that the pool lacks keep their weights.
        pool: The pool with what is set.
        mark: What pickers are told of its rollout (``canary_of``).
    """
    weights = {variant.name: variant.weight for variant in pool.variants}
    for variant in message.variants:
        variant.weight = weights.get(variant.name, variant.weight)
    message.per_endpoint_in_flight = pool.circuit_breaker.per_endpoint_in_flight
    message.ClearField("canary")
    if mark is not None:
        message.canary.CopyFrom(mark)


def pool_parts(view: View, pool: PoolSpec) -> PoolParts:
    """Return the parts of which ``whole_pool`` makes the pool's message."""
    fleet, default = view.fleet, defaults_of(view.fleet)
    message = pool_pb2.Pool(
        name=pool.name,
        models=pool.match.models,
        paths=pool.match.paths,
        default_for=[pool_pb2.FORM_GRPC] if default.grpc == pool.name else [],
        default_for_http=default.http == pool.name,
        default_for_paths=[
            path for path in pool.match.paths if default.paths.get(path) == pool.name
        ],
        variants=[
            _VARIANT(
                variant,
                # Pickers get no cookies, so they cannot apply a match that needs one.
                headers={} if variant.match.cookies else variant.match.headers,
                probe_path=probe_path(pool, variant),
            )
            for variant in pool.variants
        ],
        routing=_ROUTING(
            pool.routing,
            allow_override=sorted(pool.routing.allow_override),
            max_body_bytes=_largest_body(fleet, pool.routing),
            hung_requests=_HUNG[hung_requests(fleet, pool)],
            move_bytes=repeated_bytes(pool.routing) if pool.routing.retry_read else 0,
        ),
        slow_start=_SLOW_START(pool.slow_start),
        outlier=_OUTLIER(pool.outlier),
        probe_interval_seconds=pool.health.interval,
        first_answer_seconds=pool.timeouts.first_answer,
        first_answer_least_seconds=pool.timeouts.first_answer_least,
        hold_seconds=_hold_s(fleet, pool),
        request_seconds=pool.timeouts.request,
        custom_metrics=[_CUSTOM_METRIC(custom) for custom in pool.telemetry.custom],
        deep_health=_DEEP_HEALTH(pool.health),
        upstream_tls=None if pool.upstream_tls is None else _UPSTREAM_TLS(pool.upstream_tls),
        orca=pool.telemetry.orca,
        usage=pool.telemetry.usage,
        model_needs=[_MODEL_NEEDS(needs) for needs in pool.model_needs],
        seed=view.seed,
        log_slots=log_slots(fleet.pickers.addresses),
        describe_picks=fleet.listener.access_log is not None,
        low_objectives=pool.low_objectives,
        needs_pick=not may_go_unpicked(fleet, pool.routing),
    )
    sick = view.sick.get(pool.name, {})
    parts = []
    for endpoint in pool.endpoints:
        incarnation = view.incarnation(endpoint.id)
        told, variant = tuple(sick.get(endpoint.id, ())), pool.variant_of(endpoint)
        parts.append(_endpoint(endpoint, incarnation, variant, told, model_of(pool, endpoint)))
    return PoolParts(message.SerializeToString(deterministic=True), b"".join(parts))


def canary_of(view: View, pool: PoolSpec) -> pool_pb2.Canary | None:
    """Return what pickers are told of the rollout that runs in a pool; ``None`` = of none."""
    mark = view.canaries.get(pool.name)
    step = None if mark is None else mark.step(pool)
    if mark is None or step is None:
        return None
    return pool_pb2.Canary(rollout=mark.rollout, canary=mark.canary, stable=mark.stable, step=step)


@ByIdentity
def _endpoint(
    endpoint: EndpointSpec,
    incarnation: Incarnation,
    variant: str,
    told: tuple[str, ...],
    model: str,
) -> bytes:
    """Return the field of a ``Pool`` with one ``Endpoint``."""
    message = pool_pb2.Endpoint(
        id=endpoint.id,
        incarnation=incarnation.number,
        variant=variant,
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
        kv_events=_kv_events(endpoint, model),
        draining=endpoint.draining,
        joined_unix_ms=incarnation.joined_unix_ms,
        told=told,
        leaving=endpoint.leaving,
    )
    return delimited(_ENDPOINTS, message.SerializeToString(deterministic=True))


def shortest_idle(fleet: Fleet) -> float:
    """Return after how many idle seconds Envoy may end a stream; infinite = never.

    A request may come by the route of any pool.
    """
    return min((each.timeouts.idle for each in fleet.pools if each.timeouts.idle), default=inf)


def _hold_s(fleet: Fleet, pool: PoolSpec) -> float:
    """Return how long a request may wait in the picker: no longer than Envoy keeps its stream."""
    return max(0.0, min(pool.routing.max_wait, shortest_idle(fleet) - 1.0))


def _largest_body(fleet: Fleet, routing: Routing) -> int:
    """Return the most bytes of a body that pickers get; they bound messages by it.

    A first part is bounded by Envoy's buffers, which it may overrun by as much again.
    """
    if routing.body == "full":
        return routing.max_body
    buffered = max(routing.peek_bytes, fleet.listener.buffer_bytes)
    return max(routing.max_body, OVERRUN * buffered)


def _kv_events(endpoint: EndpointSpec, model: str) -> pool_pb2.KvEvents | None:
    events = endpoint.telemetry.kv_events
    return None if events is None else _KV_EVENTS(events, model=model)
