"""Stages from one fleet to the next without a failed request: make-before-break for all clients.

The five stages, in order (a stage that changes nothing passes at once):

1. Envoys *add*: all clusters and endpoints of both fleets, and the weights that the next routes
   will read; routes do not change, and of the weights in use only what is light (``urgent``).
2. Pickers *use*: endpoints of both fleets; matches and other weights do not change. Replicas that
   begin to drain get no new requests (``urgent``).
3. Envoys *switch*: new listener, filters, routes, weights and limits; routes to retiring variants
   remain.
4. Pickers *stop*: the new fleet only. Then the replicas that began to drain finish their requests.
5. Envoys *remove*: the new fleet only, with drained replicas marked as draining.

So a picker never names a cluster or endpoint that an Envoy does not have yet, and an Envoy never
removes one that a picker may still name. Before a variant is withdrawn there is a short pause: an
Envoy acknowledges before its workers apply the change, and pickers may still hold requests that it
routed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Final

from tidegate_api.names import CLUSTER_TYPE, EXTENSION_TYPE, LISTENER_TYPE, ROUTE_TYPE
from xds_server.fleet.memo import ByIdentity, with_pools
from xds_server.fleet.model.fleet import Match, VariantMatch
from xds_server.fleet.view import View
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.resources.routes.weights import merged, weights_of
from xds_server.snapshots.build import (
    envoy_snapshot,
    front_contents,
    picker_contents,
    upstream_contents,
    weights_held,
)
from xds_server.snapshots.check import hold
from xds_server.snapshots.memo import Memo
from xds_server.snapshots.urgent import lightened, lighter, marked

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, Gateways, PoolSpec, VariantSpec
    from xds_server.fleet.model.listener import ListenerSpec

WORKERS_S: Final = 0.05
"""Longest delay between an Envoy's acknowledgement and its workers, in seconds."""

MAX_PICKER_CALL_S: Final = 0.2
"""Longest time for which a withdrawal waits for requests that pickers still hold, in seconds."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """State of all clients, from which the next change starts, possibly between two fleets.

    Between two fleets the parts change one after the other. A change that is superseded or rejected
    therefore leaves Envoys and pickers with parts of different fleets, which this names.
    """

    view: View
    """All clusters and endpoints that any client may still use."""
    front: Fleet
    """The fleet whose listener, routes and limits the Envoys have."""
    draws: Fleet
    """The fleet whose matches and weights the pickers use."""
    named: Fleet
    """The fleet whose variants the pickers may still name."""
    force: Snapshot | None = None
    """Current snapshot of the Envoys; ``None`` = exactly that of the fleets above."""

    @classmethod
    def settled(cls, view: View) -> Acknowledged:
        """Return the state after a completed change: all clients have exactly ``view``."""
        return cls(view, view.fleet, view.fleet, view.fleet)


def plan(old: View | Acknowledged | None, new: View, memo: Memo | None = None) -> tuple[Stage, ...]:
    """Return the stages that lead to ``new``.

    Args:
        old: The state that clients have: a view, the state reached by an unfinished change, or
            ``None`` if nothing was published.
        new: The state that they should have.
        memo: Cache of built resources.

    Raises:
        Inconsistent: The resources of a stage are inconsistent.
    """
    memo = memo or Memo()
    then = weights_of(new.fleet)
    upstream = upstream_contents(new.fleet, memo, new.sick)
    front = front_contents(new.fleet, memo=memo, weights=then)
    target = hold(envoy_snapshot({**upstream, **front}, memo.target))
    memo.target = target
    pools = Snapshot.of(picker_contents(new, memo), previous=memo.pools)
    memo.pools = pools
    if old is None:
        return (Stage("add", "envoy", target), Stage("use", "picker", pools))
    have = old if isinstance(old, Acknowledged) else Acknowledged.settled(old)
    wide = widened(have.view.fleet, new.fleet)
    reachable = upstream if wide is new.fleet else upstream_contents(wide, memo, new.sick)
    # The routes before the switch and after it each find their weights, whatever arrives first.
    before = lightened(have.front, new.fleet)
    now = weights_of(before) if have.force is None else weights_held(have.force)
    if have.force is not None and before is not have.front:
        light = lighter(have.front, before)
        now = merged(now, weights_of(before.model_copy(update={"pools": light})))
    front = front_contents(before, coming=wide, memo=memo, weights=merged(then, now))
    added = envoy_snapshot({**reachable, **front}, target)
    if have.force is not None:
        # In an unfinished change the Envoys' listener and routes may be those of no single fleet.
        added = added.with_types(have.force, (EXTENSION_TYPE, LISTENER_TYPE, ROUTE_TYPE))
    switched = front_contents(
        new.fleet, retiring=have.named, coming=wide, memo=memo, weights=merged(now, then)
    )
    withdrawn = added.resources(CLUSTER_TYPE).keys() - target.resources(CLUSTER_TYPE).keys()
    incarnations = have.view.incarnations
    if incarnations is not new.incarnations:
        incarnations = {**new.incarnations, **incarnations}
    draws = lightened(have.draws, new.fleet)
    known = View(draws_of(wide, draws), incarnations, new.sick, new.seed, new.canaries)
    used = Snapshot.of(picker_contents(known, memo), previous=pools)
    return (
        Stage("add", "envoy", hold(added)),
        Stage("use", "picker", marked(used, new)),
        Stage("switch", "envoy", hold(envoy_snapshot({**reachable, **switched}, target))),
        Stage("stop", "picker", pools, grace_s=WORKERS_S if withdrawn else 0.0),
        Stage(
            "remove",
            "envoy",
            target,
            wait_for_drained=newly_draining(have.view.fleet, new.fleet),
            grace_s=WORKERS_S + _picker_call_s(new.fleet) if withdrawn else 0.0,
        ),
    )


def _picker_call_s(fleet: Fleet) -> float:
    """Return how long, in seconds, a picker may still hold a request that was routed before."""
    return min(fleet.pickers.timeout, MAX_PICKER_CALL_S)


def widened(old: Fleet, new: Fleet) -> Fleet:
    """Return the new fleet together with all pools, variants and endpoints of the old one."""
    before = {pool.name: pool for pool in old.pools}
    pools = [_widened_pool(before.pop(pool.name, None), pool) for pool in new.pools]
    listener = _widened_listener(old.listener, new.listener)
    # Envoys ask gateways that go until their routes have switched.
    gateway = _widened_gateway(old.gateway, new.gateway)
    kept = listener is new.listener and gateway is new.gateway
    if not before and all(map(is_, pools, new.pools)) and kept:
        return new
    pools = [*pools, *before.values()]
    return new.model_copy(update={"listener": listener, "gateway": gateway, "pools": tuple(pools)})


def _widened_gateway(old: Gateways | None, new: Gateways | None) -> Gateways | None:
    if old is None or new is None:
        return new or old
    if old.operators is None or new.operators is not None:
        return new
    return new.model_copy(update={"operators": old.operators})


def draws_of(fleet: Fleet, old: Fleet) -> Fleet:
    """Return the widened ``fleet`` for the pickers' stage *use*.

    Matches and weights are those of ``old``: added pools and variants get no requests yet. For
    pickers a replica that moves to another address keeps its old one. A replica that moves to
    another variant is in both variants, in the old one last, because its sequences are there.
    """
    before = {pool.name: pool for pool in old.pools}
    return with_pools(fleet, (_old_draws(pool, before.get(pool.name)) for pool in fleet.pools))


def newly_draining(old: Fleet, new: Fleet) -> frozenset[str]:
    """Return the ids of endpoints that drain in ``new`` but not in ``old``."""
    before = {pool.name: pool for pool in old.pools}
    pools = [pool for pool in new.pools if pool is not before.get(pool.name)]
    draining = {e.id for pool in pools for e in pool.endpoints if e.draining}
    if not draining:
        return frozenset()
    return frozenset().union(*(draining & _active(pool) for pool in old.pools))


@ByIdentity
def _active(pool: PoolSpec) -> frozenset[str]:
    return frozenset(e.id for e in pool.endpoints if not e.draining)


def _widened_listener(old: ListenerSpec, new: ListenerSpec) -> ListenerSpec:
    """Return the new listener with what both need of clusters: providers of tokens, collectors."""
    update: dict[str, object] = {}
    names = {provider.name for provider in new.jwt}
    retired = tuple(provider for provider in old.jwt if provider.name not in names)
    if retired:
        update["jwt"] = (*new.jwt, *retired)
    log, was = new.access_log, old.access_log
    if was is not None and was.otlp is not None and (log is None or log.otlp is None):
        update["access_log"] = (log or was).model_copy(update={"otlp": was.otlp})
    if new.tracing is None and old.tracing is not None:
        update["tracing"] = old.tracing
    return new.model_copy(update=update) if update else new


def _widened_pool(old: PoolSpec | None, new: PoolSpec) -> PoolSpec:
    if old is None or old is new or old == new:
        return new
    names = {variant.name for variant in new.variants}
    retired = tuple(variant for variant in old.variants if variant.name not in names)
    # Variants of the old fleet may come first in what is made of this (``draws_of``).
    moved = old.variants[0].name != new.variants[0].name
    found = old.written is not old or new.written is not new
    if old.endpoints is new.endpoints and not (retired or moved or found):
        return new
    # For Envoy the same replica with another address or variant is another host.
    kept = frozenset() if moved else {*map(id, old.endpoints)} & {*map(id, new.endpoints)}
    hosts = {host_of(old, each): each for each in old.endpoints if id(each) not in kept}
    endpoints = []
    for endpoint in new.endpoints:
        if id(endpoint) in kept:
            endpoints.append(endpoint)
            continue
        host = host_of(new, endpoint)
        before = hosts.pop(host, None)
        draining = endpoint.draining and (before is None or before.draining)
        if endpoint.draining != draining or (moved and endpoint.variant is None):
            update = {"draining": draining, "variant": host[0] if moved else endpoint.variant}
            endpoint = endpoint.model_copy(update=update)  # noqa: PLW2901 - as it is for Envoys
        endpoints.append(endpoint)
    for host, endpoint in hosts.items():
        endpoints.append(endpoint.model_copy(update={"variant": host[0]}))
    same = len(endpoints) == len(new.endpoints) and all(map(is_, endpoints, new.endpoints))
    written = new.written
    if written is not new or old.written is not old:
        written = _widened_pool(old.written, new.written)
        same = same and written is new.written
    if same and not retired:
        return new
    wide = new.model_copy(update={"variants": (*new.variants, *retired)})
    return (
        wide.published(written, tuple(endpoints))
        if written is not new
        else (wide.model_copy(update={"endpoints": tuple(endpoints)}))
    )


def host_of(pool: PoolSpec, endpoint: EndpointSpec) -> tuple[str, str, str | None, str | None]:
    """Return what makes an endpoint another host for Envoy: variant, id and addresses."""
    return (pool.variant_of(endpoint), endpoint.id, endpoint.http, endpoint.grpc)


def _old_draws(pool: PoolSpec, old: PoolSpec | None) -> PoolSpec:
    if old is None:
        undrawn = tuple(without_draw(variant) for variant in pool.variants)
        return pool.model_copy(update={"match": Match(), "default": False, "variants": undrawn})
    if old is pool:
        return pool
    before = {variant.name: variant for variant in old.variants}
    # Old variants first and in their order, because a session's draw depends on the order.
    added = (without_draw(variant) for variant in pool.variants if variant.name not in before)
    draws = {
        "match": old.match,
        "default": old.default,
        "variants": tuple(chain(old.variants, added)),
    }
    if old.endpoints is pool.endpoints:
        return pool.model_copy(update=draws)
    was = {host_of(old, endpoint) for endpoint in old.endpoints}
    hosts: dict[tuple[str, str], EndpointSpec] = {}
    for endpoint in sorted(pool.endpoints, key=lambda e: host_of(pool, e) in was):
        # New hosts come first; an old one of the same id and variant replaces them.
        hosts[endpoint.id, pool.variant_of(endpoint)] = endpoint
    addresses = {e.id: (e.http, e.grpc) for e in old.endpoints}
    endpoints = (
        e for e in hosts.values() if addresses.get(e.id, (e.http, e.grpc)) == (e.http, e.grpc)
    )
    return pool.model_copy(update={**draws, "endpoints": tuple(endpoints)})


def without_draw(variant: VariantSpec) -> VariantSpec:
    """Return a variant that no new request is given to."""
    return variant.model_copy(update={"weight": 0, "match": VariantMatch()})
