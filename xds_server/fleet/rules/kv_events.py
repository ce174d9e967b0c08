"""Rules for replicas that publish KV events and for their pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.rules.problem import Location, Problem, spell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec


def model_of(pool: PoolSpec, endpoint: EndpointSpec) -> str:
    """Return the model whose caches an endpoint's events describe; empty if it is unknown."""
    events = endpoint.telemetry.kv_events
    if events is None:
        return ""
    return events.model or next(iter(pool.match.models), "")


def kv_events(fleet: Fleet) -> Iterator[Problem]:
    """Yield all broken rules: the model must be known and served, and each address unique."""
    owner: dict[str, tuple[Location, str]] = {}
    home: dict[str, str] = {}
    served = {name for each in fleet.pools for name in each.match.models}
    for i, pool in enumerate(fleet.pools):
        for j, endpoint in enumerate(pool.endpoints if _publishes(pool) else ()):
            events = endpoint.telemetry.kv_events
            if events is None:
                continue
            at: Location = ("pools", i, "endpoints", j, "telemetry", "kv_events")
            if not model_of(pool, endpoint):
                yield Problem(
                    (*at, "model"),
                    f"pool '{pool.name}' names no model; write the model whose cache the events "
                    f"of endpoint '{endpoint.id}' describe",
                )
            elif events.model is not None and events.model not in served:
                yield Problem(
                    (*at, "model"),
                    f"no pool serves model '{events.model}'; write a model of a pool's "
                    "match.models",
                )
            first = home.setdefault(endpoint.id, pool.name)
            if first != pool.name and events.model is None:
                yield Problem(
                    (*at, "model"),
                    f"endpoint '{endpoint.id}' is in pool '{first}' too; write the model that "
                    "its events describe",
                )
            known_at, known = owner.setdefault(events.address, ((*at, "address"), endpoint.id))
            if known != endpoint.id:
                yield Problem(
                    (*at, "address"),
                    f"{events.address} already belongs to endpoint '{known}' "
                    f"({spell(known_at)}); write the address at which endpoint '{endpoint.id}' "
                    "publishes",
                )


@ByIdentity
def _publishes(pool: PoolSpec) -> bool:
    return any(each.telemetry.kv_events is not None for each in pool.endpoints)
