"""What must hold between replicas that publish KV events and the pools that they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.rules.problem import Location, Problem, spell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec


def model_of(pool: PoolSpec, endpoint: EndpointSpec) -> str:
    """Return the model whose caches an endpoint's events tell of; empty where none is known."""
    events = endpoint.telemetry.kv_events
    if events is None:
        return ""
    return events.model or next(iter(pool.match.models), "")


def kv_events(fleet: Fleet) -> Iterator[Problem]:
    """Yield every broken rule: the model is known and served, and no address is told twice."""
    owner: dict[str, tuple[Location, str]] = {}
    home: dict[str, str] = {}
    for i, pool in enumerate(fleet.pools):
        for j, endpoint in enumerate(pool.endpoints):
            events = endpoint.telemetry.kv_events
            if events is None:
                continue
            at: Location = ("pools", i, "endpoints", j, "telemetry", "kv_events")
            served = {name for each in fleet.pools for name in each.match.models}
            if not model_of(pool, endpoint):
                yield Problem(
                    (*at, "model"),
                    f"pool '{pool.name}' names no model; write whose cache the events of "
                    f"endpoint '{endpoint.id}' are about",
                )
            elif events.model is not None and events.model not in served:
                yield Problem(
                    (*at, "model"),
                    f"no pool serves model '{events.model}'; write one out of a pool's "
                    "match.models",
                )
            first = home.setdefault(endpoint.id, pool.name)
            if first != pool.name and events.model is None:
                yield Problem(
                    (*at, "model"),
                    f"endpoint '{endpoint.id}' is in pool '{first}' too; write which model its "
                    "events are about",
                )
            known_at, known = owner.setdefault(events.address, ((*at, "address"), endpoint.id))
            if known != endpoint.id:
                yield Problem(
                    (*at, "address"),
                    f"{events.address} already belongs to endpoint '{known}' "
                    f"({spell(known_at)}); write where endpoint '{endpoint.id}' publishes",
                )
