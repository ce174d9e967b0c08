"""Converts the wire's ``Pool`` to the router's. Pure.

Source: ``tidegate_api/fleet/v1/pool.proto``. Invalid values are rejected with the faulty field, so
that the control server shows it; nothing is guessed. An omitted number (0 on the wire) takes the
router's default wherever 0 has no meaning of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.pool import BodyMode, Endpoint, EndpointKey, KvEvents, Pool, Variant
from ext_proc.routing.values.settings import (
    AdapterMode,
    CustomMetric,
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
    Outlier,
    SlowStart,
)
from ext_proc.telemetry.dialects.custom import DECLARABLE
from tidegate_api.fleet.v1 import pool_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ENDPOINTS: Final = 20_000
"""Maximum replicas of one pool."""

MAX_VARIANTS: Final = 100
MAX_CUSTOM: Final = 32
MAX_PERCENT: Final = 100
MAX_NEEDS: Final = 256
MAX_HOLD_S: Final = 0.0005
MAX_EXPLORE: Final = 0.02
MAX_ENGINES: Final = 64
"""Maximum engines of one replica that publish KV events."""
MAX_CONDITIONS: Final = 16
"""Maximum reported conditions of one replica that are read."""

_BODY: Final[Mapping[int, BodyMode]] = {
    pool_pb2.BODY_MODE_UNSPECIFIED: "peek",
    pool_pb2.BODY_MODE_NONE: "none",
    pool_pb2.BODY_MODE_PEEK: "peek",
    pool_pb2.BODY_MODE_FULL: "full",
}
_ADAPTERS: Final[Mapping[int, AdapterMode]] = {
    pool_pb2.ADAPTERS_UNSPECIFIED: "prefer",
    pool_pb2.ADAPTERS_IGNORE: "ignore",
    pool_pb2.ADAPTERS_PREFER: "prefer",
    pool_pb2.ADAPTERS_REQUIRE: "require",
}
_DEFAULT: Final = Pool(name="default")


class PoolError(ValueError):
    """The resource is invalid; the message names the faulty field."""


def pool_of(message: pool_pb2.Pool) -> Pool:
    """Convert one pool.

    Raises:
        PoolError: A field is out of its range, or refers to something that does not exist.
    """
    name = message.name
    if not name:
        raise PoolError("pool without a name")
    if "/" in name:
        raise PoolError(f"pool {name!r}: a name must not contain '/'")
    where = f"pool {name!r}"
    variants = _variants(message, where)
    endpoints = _endpoints(message, where, {variant.name for variant in variants})
    routing, ramp = message.routing, message.slow_start
    body = _BODY.get(routing.body)
    if body is None:
        raise PoolError(f"{where}: unknown body mode {routing.body}")
    return Pool(
        name=name,
        models=frozenset(message.models),
        paths=frozenset(message.paths),
        default_for_grpc=pool_pb2.FORM_GRPC in message.default_for,
        default_for_paths=frozenset(message.default_for_paths),
        variants=variants,
        endpoints=endpoints,
        policy=routing.policy or _DEFAULT.policy,
        allow_override=frozenset(routing.allow_override),
        body=body,
        fallbacks=routing.fallbacks,
        session_header=routing.session_header.lower() or _DEFAULT.session_header,
        block_chars=routing.block_chars or _DEFAULT.block_chars,
        block_tokens=routing.block_tokens or _DEFAULT.block_tokens,
        tokenizer=routing.tokenizer,
        index_blocks=routing.index_blocks_per_endpoint or _DEFAULT.index_blocks,
        index_ttl_s=_positive(routing.index_ttl_seconds, _DEFAULT.index_ttl_s, where, "index_ttl"),
        sequence_idle_s=_positive(
            routing.sequence_idle_seconds, _DEFAULT.sequence_idle_s, where, "sequence_idle"
        ),
        load_factor=_positive(
            routing.load_factor, _DEFAULT.load_factor, where, "load_factor", least=1.0
        ),
        max_body_bytes=routing.max_body_bytes or _DEFAULT.max_body_bytes,
        slow_start=SlowStart(
            window_s=_positive(ramp.window_seconds, 0.0, where, "slow_start.window"),
            aggression=_positive(ramp.aggression, 1.0, where, "slow_start.aggression"),
            min_weight=min(1.0, _positive(ramp.min_weight, 0.0, where, "slow_start.min_weight")),
        ),
        custom_metrics=_custom(message, where),
        model_needs=_model_needs(message, where),
        gpu_weights=_gpu_weights(routing, where),
        learned=_learned(routing, where),
        co_batch_hold_s=_within(
            routing.co_batch_hold_seconds, 0.0, MAX_HOLD_S, where, "co_batch_hold"
        ),
        adapters=_adapters(routing, where),
        prefer_zone=routing.prefer_zone,
        spill_factor=_positive(
            routing.spill_factor, _DEFAULT.spill_factor, where, "spill_factor", least=1.0
        ),
        repository=message.deep_health.repository,
        gpu_memory_free=_share(message.deep_health.gpu_memory_free, where, "gpu_memory_free"),
        share=message.deep_health.share,
        orca=message.orca,
        per_endpoint_in_flight=message.per_endpoint_in_flight,
        outlier=_outlier(message, where),
        probe_interval_s=_positive(
            message.probe_interval_seconds, _DEFAULT.probe_interval_s, where, "probe_interval"
        ),
    )


def _model_needs(message: pool_pb2.Pool, where: str) -> tuple[ModelNeeds, ...]:
    if len(message.model_needs) > MAX_NEEDS:
        raise PoolError(f"{where}: {len(message.model_needs)} model needs; at most {MAX_NEEDS}")
    for each in message.model_needs:
        if not each.model:
            raise PoolError(f"{where}: model_needs without a model")
        if each.device_required and not each.device:
            raise PoolError(f"{where}: model {each.model!r} requires a device but names none")
    return tuple(
        ModelNeeds(each.model, each.memory_bytes, each.device, each.device_required)
        for each in message.model_needs
    )


def _gpu_weights(routing: pool_pb2.Routing, where: str) -> GpuWeights:
    if not routing.HasField("gpu_weights"):
        return _DEFAULT.gpu_weights
    sent = routing.gpu_weights
    weights = [
        _positive(value, 0.0, where, "gpu_weights")
        for value in (sent.queue, sent.gpu, sent.kv, sent.latency)
    ]
    if not any(weights):
        raise PoolError(f"{where}: all gpu_weights are 0")
    return GpuWeights(*weights)


def _learned(routing: pool_pb2.Routing, where: str) -> LearnedSettings:
    if not routing.HasField("learned"):
        return _DEFAULT.learned
    explore = _within(routing.learned.explore, 0.0, MAX_EXPLORE, where, "learned.explore")
    return LearnedSettings(routing.learned.min_decisions or _DEFAULT.learned.min_decisions, explore)


def _adapters(routing: pool_pb2.Routing, where: str) -> AdapterMode:
    mode = _ADAPTERS.get(routing.adapters)
    if mode is None:
        raise PoolError(f"{where}: unknown adapter mode {routing.adapters}")
    return mode


def _outlier(message: pool_pb2.Pool, where: str) -> Outlier:
    if not message.HasField("outlier"):
        return _DEFAULT.outlier
    sent, usual = message.outlier, _DEFAULT.outlier
    if sent.max_ejection_percent > MAX_PERCENT or sent.failure_percent > MAX_PERCENT:
        raise PoolError(f"{where}: a percentage of outlier is above {MAX_PERCENT}")
    here = f"{where}: outlier"
    return Outlier(
        consecutive_failures=sent.consecutive_failures or usual.consecutive_failures,
        interval_s=_positive(sent.interval_seconds, usual.interval_s, here, "interval"),
        base_ejection_s=_positive(
            sent.base_ejection_seconds, usual.base_ejection_s, here, "base_ejection"
        ),
        max_percent=sent.max_ejection_percent,
        failure_percent=_positive(sent.failure_percent, 0.0, here, "failure_percent"),
        latency_factor=_positive(sent.latency_factor, 0.0, here, "latency_factor", least=1.0),
        frozen_after_s=_positive(sent.frozen_after_seconds, 0.0, here, "frozen_after"),
    )


def _variants(message: pool_pb2.Pool, where: str) -> tuple[Variant, ...]:
    if not 0 < len(message.variants) <= MAX_VARIANTS:
        raise PoolError(
            f"{where}: {len(message.variants)} variants; it must be 1 to {MAX_VARIANTS}"
        )
    names = [variant.name for variant in message.variants]
    if len(set(names)) != len(names) or not all(names):
        raise PoolError(f"{where}: each variant needs a unique name")
    return tuple(
        Variant(
            name=variant.name,
            weight=variant.weight,
            model_version=variant.model_version or None,
            headers=tuple(sorted((name.lower(), value) for name, value in variant.headers.items())),
            probe_path=_probe_path(variant.probe_path, where),
        )
        for variant in message.variants
    )


def _probe_path(path: str, where: str) -> str:
    if path and not path.startswith("/"):
        raise PoolError(f"{where}: the probe path {path!r} must begin with '/'")
    return path


def _custom(message: pool_pb2.Pool, where: str) -> tuple[CustomMetric, ...]:
    if len(message.custom_metrics) > MAX_CUSTOM:
        raise PoolError(
            f"{where}: {len(message.custom_metrics)} declared series; at most {MAX_CUSTOM}"
        )
    for each in message.custom_metrics:
        if each.reading not in DECLARABLE:
            raise PoolError(f"{where}: readings have no field {each.reading!r}")
    return tuple(
        CustomMetric(
            field=each.reading,
            metric=each.metric,
            labels=tuple(sorted(each.labels.items())),
            scale=_positive(each.scale, 1.0, where, "custom_metrics.scale"),
        )
        for each in message.custom_metrics
    )


def _endpoints(message: pool_pb2.Pool, where: str, variants: set[str]) -> tuple[Endpoint, ...]:
    if len(message.endpoints) > MAX_ENDPOINTS:
        raise PoolError(f"{where}: {len(message.endpoints)} endpoints; at most {MAX_ENDPOINTS}")
    # A replica that changes variants is in both for a while: one id, one ledger entry, two
    # candidates.
    found: dict[tuple[str, str], Endpoint] = {}
    for endpoint in message.endpoints:
        if not endpoint.id or (endpoint.id, endpoint.variant) in found:
            raise PoolError(f"{where}: each endpoint needs a unique id, not {endpoint.id!r}")
        here = f"{where}: endpoint {endpoint.id!r}"
        if endpoint.variant not in variants:
            raise PoolError(f"{here}: variant {endpoint.variant!r} does not exist")
        if not endpoint.http_address and not endpoint.grpc_address:
            raise PoolError(f"{here}: it has no address")
        if "," in endpoint.http_address or "," in endpoint.grpc_address:
            # The pick is a comma-separated list.
            raise PoolError(f"{here}: an address must not contain a comma")
        found[endpoint.id, endpoint.variant] = Endpoint(
            key=EndpointKey(endpoint.id, endpoint.incarnation),
            variant=endpoint.variant,
            http=endpoint.http_address or None,
            grpc=endpoint.grpc_address or None,
            metrics_url=endpoint.metrics_url or None,
            gpu_metrics_url=endpoint.gpu_metrics_url or None,
            gpus=frozenset(endpoint.gpus),
            capacity=_positive(endpoint.capacity, 1.0, here, "capacity"),
            zone=endpoint.zone,
            device=endpoint.device,
            adapters=frozenset(endpoint.adapters),
            draining=endpoint.draining,
            joined_unix_s=endpoint.joined_unix_ms / 1000 if endpoint.joined_unix_ms else None,
            told=tuple(endpoint.told[:MAX_CONDITIONS]),
            kv_events=_kv_events(endpoint, here),
        )
    return tuple(found.values())


def _kv_events(endpoint: pool_pb2.Endpoint, where: str) -> KvEvents | None:
    if not endpoint.HasField("kv_events"):
        return None
    events = endpoint.kv_events
    if not events.address.startswith("tcp://") or not events.model:
        raise PoolError(f"{where}: kv_events needs an address (tcp://ip:port) and a model")
    if events.engines > MAX_ENGINES:
        raise PoolError(f"{where}: {events.engines} engines; at most {MAX_ENGINES}")
    return KvEvents(
        events.address, events.replay or None, events.engines or 1, events.topic, events.model
    )


def _share(value: float, where: str, field: str) -> float:
    if not 0.0 <= value < 1.0:
        raise PoolError(f"{where}: {field} is {value}; it must be at least 0 and below 1")
    return value


def _within(value: float, least: float, most: float, where: str, field: str) -> float:
    if not least <= value <= most:
        raise PoolError(f"{where}: {field} is {value}; it must be {least:g} to {most:g}")
    return value


def _positive(value: float, unset: float, where: str, field: str, least: float = 0.0) -> float:
    """Return ``value``, or ``unset`` for the wire's 0."""
    if value == 0:
        return unset
    if not math.isfinite(value) or value < least:
        raise PoolError(f"{where}: {field} is {value}; it must be finite and at least {least:g}")
    return value
