"""The fleet of the local stack as the mapping in its fleet file. Pure functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.stack.addresses import GatewayAddresses
    from tidegate.stack.tritons.replica import TritonReplica

FleetChange = Callable[[dict[str, Any]], dict[str, Any] | None] | Mapping[str, Any]
"""Change of the default fleet.

Either a function that receives the fleet and returns another one or changes it in place, or a
mapping that is merged into the fleet. In a mapping, ``pools`` maps the name of a pool to the
fields to change: ``{"pools": {"llm": {"routing": {"policy": "round-robin"}}}}``.
"""

STABLE_VERSION: Final = "1"
CANARY_VERSION: Final = "2"
LLM_MODEL: Final = "toy-llm"
POOL_OF: Final = {LLM_MODEL: "llm", "vision": "vision", "counter": "counter"}
"""Model -> pool that serves it."""


def build_fleet(
    replicas: Sequence[TritonReplica],
    *,
    listener: str,
    pickers: Sequence[str],
    models: Sequence[str],
    body: str = "peek",
    gateway: GatewayAddresses | None = None,
    change: FleetChange | None = None,
) -> dict[str, Any]:
    """Return the fleet: one pool per model, over the same replicas.

    Args:
        replicas: Running replicas; each pool contains those that serve its model.
        listener: Listen address of Envoy, ``ip:port``.
        pickers: ``ip:port`` of each picker.
        models: Models that get a pool.
        body: Body mode of the pools: ``none``, ``peek`` or ``full``.
        gateway: Addresses of the gateway; ``None`` = there is none.
        change: Change of the default fleet.
    """
    pools = [_pool(model, replicas, body) for model in models]
    default = next((pool for pool in pools if pool["name"] == "llm"), pools[0])
    default["default"] = True
    fleet: dict[str, Any] = {
        "listener": {"address": listener, "debug_headers": True},
        "pickers": {"addresses": list(pickers)},
        **({} if gateway is None else {"gateway": gateway.in_fleet}),
        "pools": pools,
    }
    return apply_change(fleet, change)


def apply_change(fleet: dict[str, Any], change: FleetChange | None) -> dict[str, Any]:
    """Return ``fleet`` with a change applied.

    Raises:
        KeyError: The change names a pool that the fleet lacks.
    """
    if change is None:
        return fleet
    if callable(change):
        changed = change(fleet)
        return fleet if changed is None else changed
    merged = _merge(fleet, {key: value for key, value in change.items() if key != "pools"})
    by_name = {pool["name"]: index for index, pool in enumerate(merged["pools"])}
    for name, part in change.get("pools", {}).items():
        index = by_name[name]
        merged["pools"][index] = _merge(merged["pools"][index], part)
    return merged


def _pool(model: str, replicas: Sequence[TritonReplica], body: str) -> dict[str, Any]:
    is_llm = model == LLM_MODEL
    variants: list[dict[str, Any]] = [
        {"name": "stable", "weight": 100, "model_version": STABLE_VERSION}
    ]
    if is_llm:
        variants.append({"name": "canary", "weight": 0, "model_version": CANARY_VERSION})
    return {
        "name": POOL_OF[model],
        "match": {"models": [model]},
        "variants": variants,
        "endpoints": [
            {
                "id": replica.name,
                "http": replica.http,
                "grpc": replica.grpc,
                "metrics": replica.metrics_url,
                "variant": replica.variant if is_llm else "stable",
            }
            for replica in replicas
            if model in replica.models
        ],
        "routing": {"policy": "auto" if is_llm else "least-in-flight", "body": body},
        "health": {"interval": "1s", "timeout": "1s", "unhealthy_after": 2, "healthy_after": 1},
    }


def _merge(base: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in part.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both and old is not None else copy.deepcopy(value)
    return merged
