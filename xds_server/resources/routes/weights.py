"""Weights of variants as runtime values, so that a change of weights leaves the routes as they are.

Rules:

1. A weighted route lists all variants of its draw, in the fleet's order, each with a runtime key.
   Envoy draws ``hash % total`` over the values of these keys, as pickers do.
2. The keys of a draw contain a digest of its *form*: the names, versions and order of the pool's
   variants. All keys of one form come from one fleet, so their sum is at least 1 at any moment.
   Routes of another form read other keys: both exist while the routes change.
3. The weights in the routes themselves are neutral: Envoy uses them only if it lacks a key. They
   are equal among the variants with replicas, so that no request is drawn to an empty cluster.
4. For clients that lack the layers ``with_literal_weights`` puts the weights back into the routes.
5. A layer is always sent as a whole, so weights are spread over the layers ``WEIGHT_LAYERS`` by a
   hash of the pool's name: a change of weights sends those of one pool in ``len(WEIGHT_LAYERS)``. A
   pool is in one layer as a whole, so its weights change at once.

Values are text: Envoy 1.40 reads whole numbers of 32 bits from it, and it is shorter than a double.

Sources: ``envoy/config/route/v3/route_components.proto``, ``WeightedCluster.runtime_key_prefix``;
``envoy/service/runtime/v3/rtds.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import xxhash
from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.service.runtime.v3 import rtds_pb2

from tidegate_api.names import WEIGHT_LAYERS
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.view import clusters_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec

    Weights = Mapping[str, Mapping[str, int]]
    """Name of a layer -> runtime key -> weight; all layers are present."""

_PREFIX: Final = "tidegate.weight"
_OF_VERSION: Final = ".version"


def key_prefix(pool: PoolSpec, variants: Sequence[VariantSpec]) -> str:
    """Return the runtime key prefix of a draw among ``variants``: all of the pool, or of a version.

    Envoy appends a dot and the name of the cluster.
    """
    prefix = f"{_PREFIX}.{_form(pool)}"
    return prefix if len(variants) == len(pool.variants) else prefix + _OF_VERSION


@ByIdentity
def weight_values(pool: PoolSpec) -> dict[str, int]:
    """Return the runtime keys and values of a pool; none if it has a single variant."""
    values: dict[str, int] = {}
    if len(pool.variants) == 1:
        return values
    refs = tuple(clusters_of(pool))
    versions = (each for each in of_versions(pool).values() if 1 < len(each) < len(pool.variants))
    for variants in (pool.variants, *versions):
        prefix, drawn = key_prefix(pool, variants), shares(variants)
        for ref in refs:
            if ref.variant in drawn:
                values[f"{prefix}.{ref}"] = drawn[ref.variant]
    return values


def layer_of(pool: str) -> str:
    """Return the name of the layer that contains a pool's weights."""
    return WEIGHT_LAYERS[xxhash.xxh32_intdigest(pool) % len(WEIGHT_LAYERS)]


@ByIdentity
def weights_of(fleet: Fleet) -> Weights:
    """Return the weights of all draws of the fleet's routes."""
    layers: dict[str, dict[str, int]] = {name: {} for name in WEIGHT_LAYERS}
    for pool in fleet.pools:
        layers[layer_of(pool.name)].update(weight_values(pool))
    return layers


def merged(first: Weights, then: Weights) -> Weights:
    """Return the weights of both; for common keys ``then`` takes precedence."""
    return {
        name: layer if (layer := then[name]) is first[name] else {**first[name], **layer}
        for name in WEIGHT_LAYERS
    }


def weight_layer(name: str, values: Mapping[str, int]) -> bytes:
    """Return the serialized ``Runtime`` of one layer of weights."""
    message = rtds_pb2.Runtime(name=name)
    message.layer.update({key: str(value) for key, value in values.items()})
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def weights_in(data: bytes) -> dict[str, int]:
    """Return the keys and weights of a serialized layer of weights."""
    layer = rtds_pb2.Runtime.FromString(data).layer
    return {key: int(value.string_value) for key, value in layer.fields.items()}


def shares(variants: Sequence[VariantSpec]) -> dict[str, int]:
    """Return the weight of each variant of a draw by name; their sum is at least 1."""
    # All weights can be 0 only for variants that share a version: equal shares.
    drawn = any(variant.weight for variant in variants)
    return {variant.name: variant.weight if drawn else 1 for variant in variants}


def of_versions(pool: PoolSpec) -> dict[str, list[VariantSpec]]:
    """Return the variants that serve each version, in the pool's order."""
    versions: dict[str, list[VariantSpec]] = {}
    for variant in pool.variants:
        if variant.model_version is not None:
            versions.setdefault(variant.model_version, []).append(variant)
    return versions


@ByIdentity
def neutral(fleet: Fleet) -> Fleet:
    """Return the fleet with the weights that its routes contain; see rule 3."""
    return fleet.model_copy(update={"pools": tuple(map(neutral_pool, fleet.pools))})


def with_literal_weights(routes: bytes, values: Mapping[str, int]) -> bytes:
    """Return a serialized ``RouteConfiguration`` with the weights in place of their runtime keys.

    Args:
        routes: The serialized ``RouteConfiguration``.
        values: The runtime values; a weight without one stays as it is.
    """
    config = route_pb2.RouteConfiguration.FromString(routes)
    for host in config.virtual_hosts:
        for route in host.routes:
            if route.route.weighted_clusters.runtime_key_prefix:
                _spell_out(route.route, values)
    return config.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _spell_out(action: Any, values: Mapping[str, int]) -> None:
    split = action.weighted_clusters
    drawn = []
    for one in split.clusters:
        one.weight.value = values.get(f"{split.runtime_key_prefix}.{one.name}", one.weight.value)
        if one.weight.value:
            drawn.append(one)
    if len(drawn) == 1:
        action.cluster = drawn[0].name  # a `oneof`: it replaces the split
        del action.hash_policy[:]
    else:
        kept = route_components_pb2.WeightedCluster(clusters=drawn)
        kept.use_hash_policy.CopyFrom(split.use_hash_policy)
        split.CopyFrom(kept)


def _form(pool: PoolSpec) -> str:
    parts = (f"{variant.name}={variant.model_version or ''}" for variant in pool.variants)
    return xxhash.xxh32_hexdigest("\0".join(parts))


@ByIdentity
def neutral_pool(pool: PoolSpec) -> PoolSpec:
    """Return the pool with the weights that its routes contain, which depend on replicas only."""
    used = {variant for variant, _ in pool.serves}
    variants = tuple(
        variant.model_copy(update={"weight": int(variant.name in used)})
        for variant in pool.variants
    )
    return pool.model_copy(update={"variants": variants})
