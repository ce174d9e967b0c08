"""Converts the wire's ``Pool`` to the router's. Pure.

Source: ``tidegate_api/fleet/v1/pool.proto``. Invalid values are rejected with the faulty field, so
that the control server shows it; nothing is guessed. An omitted number (0 on the wire) takes the
router's default wherever 0 has no meaning of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ext_proc.control.fields import Bounds, FieldReader, PoolError
from ext_proc.routing.values.pool import Arms, Endpoint, EndpointKey, KvEvents, Pool, Variant
from ext_proc.routing.values.settings import (
    CustomMetric,
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
    Outlier,
    SlowStart,
)
from ext_proc.telemetry.dialects.custom import DECLARABLE
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.pools import (
    MAX_CO_BATCH_HOLD_MS,
    MAX_CUSTOM,
    MAX_ENGINES,
    MAX_EXPLORE_PERCENT,
    MAX_LOW_OBJECTIVES,
    MAX_NEEDS,
    MAX_PERCENT,
    MAX_VARIANTS,
    MAX_WAIT_S,
    MIN_FACTOR,
)
from tidegate_common.upstream.contexts import ReplicaTls

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ENDPOINTS: Final = 20_000
"""Maximum replicas of one pool."""

MAX_LOG_SLOTS: Final = 1024
"""Maximum log slots, which is also the maximum number of a fleet's pickers."""

MAX_LEAVING: Final = 1024
"""Maximum models that leave one replica at a time that are read."""

MAX_CONDITIONS: Final = 16
"""Maximum reported conditions of one replica that are read."""

MAX_ROLLOUT_CHARS: Final = 64
"""Maximum characters of a rollout's id."""

MAX_STEP: Final = 1023
"""Maximum number of a rollout's step."""

_DEFAULT: Final = Pool(name="default")

_FACTOR: Final = Bounds(least=MIN_FACTOR)
_PERCENT: Final = Bounds(most=MAX_PERCENT)
_POOL: Final = FieldReader(
    pool_pb2.Pool,
    Pool,
    zero={
        "per_endpoint_in_flight",
        "first_answer_seconds",
        "first_answer_least_seconds",
        "hold_seconds",
        "request_seconds",
    },
    bounds={"hold_seconds": Bounds(most=MAX_WAIT_S)},
    elsewhere={
        *("name", "models", "paths", "default_for", "default_for_paths", "variants", "endpoints"),
        *(
            "routing",
            "canary",
            "slow_start",
            "outlier",
            "custom_metrics",
            "deep_health",
            "model_needs",
            "seed",
            "log_slots",
            "upstream_tls",
            "low_objectives",
        ),
    },
)
_ROUTING: Final = FieldReader(
    pool_pb2.Routing,
    Pool,
    zero={
        "fallbacks",
        "max_header_bytes",
        "max_inflated_bytes",
        "move_bytes",
        "refuse_deadly",
        "uploads_per_client",
    },
    bounds={
        "load_factor": _FACTOR,
        "spill_factor": _FACTOR,
        "co_batch_hold_seconds": Bounds(most=MAX_CO_BATCH_HOLD_MS / 1000),
    },
    elsewhere={"allow_override", "gpu_weights", "learned"},
)
_GPU_WEIGHTS: Final = FieldReader(
    pool_pb2.GpuWeights, GpuWeights, zero={"queue", "gpu", "kv", "latency"}, place="gpu_weights."
)
_LEARNED: Final = FieldReader(
    pool_pb2.Learned,
    LearnedSettings,
    zero={"explore"},
    bounds={"explore": Bounds(most=MAX_EXPLORE_PERCENT / 100)},
    place="learned.",
)
_SLOW_START: Final = FieldReader(
    pool_pb2.SlowStart, SlowStart, zero={"min_weight"}, place="slow_start."
)
_OUTLIER: Final = FieldReader(
    pool_pb2.Outlier,
    Outlier,
    zero={"max_ejection_percent", "failure_percent", "latency_factor", "frozen_after_seconds"},
    bounds={
        "max_ejection_percent": _PERCENT,
        "failure_percent": _PERCENT,
        "latency_factor": _FACTOR,
    },
    place="outlier.",
)


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
    settings = _ROUTING.read(message.routing, where) | _POOL.read(message, where)
    settings["session_header"] = settings["session_header"].lower()
    settings["timeout_header"] = settings["timeout_header"].lower()
    return Pool(
        name=name,
        models=frozenset(message.models),
        paths=frozenset(message.paths),
        default_for_grpc=pool_pb2.FORM_GRPC in message.default_for,
        default_for_paths=frozenset(message.default_for_paths),
        variants=variants,
        endpoints=endpoints,
        allow_override=frozenset(message.routing.allow_override),
        slow_start=_slow_start(message, where),
        custom_metrics=_custom(message, where),
        model_needs=_model_needs(message, where),
        gpu_weights=_gpu_weights(message.routing, where),
        learned=_learned(message.routing, where),
        repository=message.deep_health.repository,
        gpu_memory_free=_share(message.deep_health.gpu_memory_free, where, "gpu_memory_free"),
        share=message.deep_health.share,
        seed=message.seed,
        log_slots=_log_slots(message, where),
        outlier=_outlier(message, where),
        upstream_tls=_upstream_tls(message, where),
        canary=_canary(message, where, {variant.name for variant in variants}),
        low_objectives=frozenset(message.low_objectives[:MAX_LOW_OBJECTIVES]),
        **settings,
    )


def _log_slots(message: pool_pb2.Pool, where: str) -> tuple[str, ...]:
    if len(message.log_slots) > MAX_LOG_SLOTS:
        raise PoolError(f"{where}: {len(message.log_slots)} log_slots; at most {MAX_LOG_SLOTS}")
    return tuple(message.log_slots)


def log_slot(pools: Iterable[Pool], address: str) -> int | None:
    """Return the log slot of the picker at an address; ``None`` if it has none.

    The only picker of a fleet need not know its address.
    """
    slots = next((pool.log_slots for pool in pools), ())
    taken = [slot for slot, known in enumerate(slots) if known]
    if len(taken) == 1:
        return taken[0]
    return slots.index(address) if address in slots else None


def _slow_start(message: pool_pb2.Pool, where: str) -> SlowStart:
    ramp = SlowStart(**_SLOW_START.read(message.slow_start, where))
    return replace(ramp, min_weight=min(1.0, ramp.min_weight))


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
    weights = _GPU_WEIGHTS.read(routing.gpu_weights, where)
    if not any(weights.values()):
        raise PoolError(f"{where}: all of gpu_weights are 0")
    return GpuWeights(**weights)


def _learned(routing: pool_pb2.Routing, where: str) -> LearnedSettings:
    if not routing.HasField("learned"):
        return _DEFAULT.learned
    return LearnedSettings(**_LEARNED.read(routing.learned, where))


def _outlier(message: pool_pb2.Pool, where: str) -> Outlier:
    if not message.HasField("outlier"):
        return _DEFAULT.outlier
    return Outlier(**_OUTLIER.read(message.outlier, where))


def _upstream_tls(message: pool_pb2.Pool, where: str) -> ReplicaTls | None:
    if not message.HasField("upstream_tls"):
        return None
    tls = message.upstream_tls
    if bool(tls.certificate) != bool(tls.key):
        raise PoolError(f"{where}: upstream_tls has a certificate or a key; it needs both or none")
    return ReplicaTls(
        ca=tls.ca or None,
        certificate=tls.certificate or None,
        key=tls.key or None,
        server_name=tls.server_name or None,
    )


def _canary(message: pool_pb2.Pool, where: str, variants: set[str]) -> Arms | None:
    if not message.HasField("canary"):
        return None
    told, here = message.canary, f"{where}: canary"
    if not 0 < len(told.rollout) <= MAX_ROLLOUT_CHARS:
        raise PoolError(f"{here}.rollout needs 1 to {MAX_ROLLOUT_CHARS} characters")
    if told.step > MAX_STEP:
        raise PoolError(f"{here}.step is {told.step}; it must be at most {MAX_STEP}")
    for field, name in (("canary", told.canary), ("stable", told.stable)):
        if name not in variants:
            raise PoolError(f"{here}.{field}: variant {name!r} does not exist")
    if told.canary == told.stable:
        raise PoolError(f"{here}: canary and stable are both {told.canary!r}")
    return Arms(told.rollout, told.canary, told.stable, told.step)


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
            leaving=frozenset(endpoint.leaving[:MAX_LEAVING]),
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


def _positive(value: float, unset: float, where: str, field: str) -> float:
    """Return ``value``, or ``unset`` for the wire's 0."""
    if value == 0:
        return unset
    if not math.isfinite(value) or value < 0:
        raise PoolError(f"{where}: {field} is {value}; it must be finite and at least 0")
    return value
