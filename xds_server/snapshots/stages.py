"""Stages from one fleet to the next without a failed request: make-before-break for all clients.

The five stages, in order (a stage that changes nothing passes at once):

1. Envoys *add*: all clusters and endpoints of both fleets, and the weights that the next routes
   will read; routes do not change, and of the weights in use only what is light.
2. Pickers *use*: endpoints of both fleets; matches and other weights do not change. Replicas that
   begin to drain get no new requests (*urgent*).
3. Envoys *switch*: new listener, filters, routes, weights and limits; routes to retiring variants
   remain.
4. Pickers *stop*: the new fleet only. Then the replicas that began to drain finish their requests.
5. Envoys *remove*: the new fleet only, with drained replicas marked as draining.

So a picker never names a cluster or endpoint that an Envoy does not have yet, and an Envoy never
removes one that a picker may still name. Before a variant is withdrawn there is a short pause: an
Envoy acknowledges before its workers apply the change, and pickers may still hold requests that it
routed before.

What is *urgent* is in force at once, whatever the rest of a change waits for: replicas that are to
be left alone, weights and limits.

1. The urgent stage is what the pickers have now, with more replicas marked as draining or as found
   sick, and with what is light. It names nothing that Envoys might not have, so it waits for no
   answer.
2. It never takes the last usable replica of a variant: those that replace it come with a later
   stage.
3. No mark is undone here: a replica that is used again comes back with the stages of the change.
   Nor do these take a mark back that the stage has set: the pickers' first one has it too.
4. A pool's weights are light if its variants differ in nothing else, and no variant gets its first
   share before its replicas: those that it has afterwards, it had before, and one is in use.
5. A pool's limits on connections, requests and retries are light, also the pickers' own.
6. Envoys get what is light with the first stage of a change, which waits for no answer; pickers in
   the urgent stage, unless stages come to Envoys in waves.
7. Where stages come to Envoys in waves, another share of load to shed comes to all Envoys first: in
   what each of them has now, so that nothing else of a change reaches it early.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import any_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    POOL_TYPE,
    ROUTE_TYPE,
)
from xds_server.fleet.memo import ByIdentity, with_pools
from xds_server.fleet.model.fleet import Match, VariantMatch
from xds_server.fleet.view import View
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Resource, Snapshot
from xds_server.resources.endpoints import with_drop
from xds_server.resources.pools import canary_of, lighten
from xds_server.resources.routes.weights import merged, weights_of
from xds_server.snapshots.build import (
    Memo,
    envoy_snapshot,
    front_contents,
    picker_contents,
    upstream_contents,
    weights_held,
)
from xds_server.snapshots.check import hold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


URGENT = "urgent"
"""Label of the stage."""


def urgent_stage(have: Snapshot | None, new: View, light: Iterable[PoolSpec] = ()) -> Stage | None:
    """Return the stage; ``None`` if no replica has to be left alone, and nothing is light.

    Args:
        have: What the pickers have now; ``None`` = nothing.
        new: The state that they should have.
        light: Pools whose weights or limits come with the stage.
    """
    pools = have if have is None else weighed(marked(have, new), new, light)
    return None if pools is have or pools is None else Stage(URGENT, "picker", pools, urgent=True)


def marked(have: Snapshot, new: View) -> Snapshot:
    """Return the pickers' snapshot with the replicas marked that ``new`` leaves alone (rule 2).

    Args:
        have: What pickers have, or are to have in a stage before the last; returned as it is if no
            mark is missing.
        new: The state that they should have.
    """
    held = have.type_set(POOL_TYPE)
    if held is None:
        return have
    drains, all_sick = {pool.name: _draining(pool) for pool in new.fleet.pools}, new.sick
    changed: dict[str, Resource | None] = {}
    for name in drains.keys() & held.resources.keys():
        draining, sick = drains[name], all_sick.get(name, {})
        if not draining and not sick:
            continue
        resource = held.resources[name]
        active, untold = _unmarked(resource)
        if draining.isdisjoint(active) and untold.isdisjoint(sick):
            continue
        message = pool_pb2.Pool()
        any_pb2.Any.FromString(resource.any).Unpack(message)
        if _leave_alone(message, draining, sick):
            data = message.SerializeToString(deterministic=True)
            changed[name] = Resource.of(POOL_TYPE, name, data)
    return Snapshot.of({POOL_TYPE: held.patched(changed)}) if changed else have


def shed_stage(have: Snapshot | None, old: Fleet, new: Fleet) -> Stage | None:
    """Return the stage in which all Envoys shed as ``new`` says; ``None`` if ``old`` says the same.

    Args:
        have: What the Envoys have now; ``None`` = nothing.
        old: The fleet published last.
        new: The fleet that they should have.
    """
    before = {pool.name: pool.drop_overload for pool in old.pools}
    shares = {
        pool.name: pool.drop_overload
        for pool in new.pools
        if before.get(pool.name, pool.drop_overload) != pool.drop_overload
    }
    if have is None or not shares:
        return None

    def edit(snapshot: Snapshot) -> Snapshot:
        assignments = {}
        for name, resource in snapshot.resources(ENDPOINT_TYPE).items():
            data = any_pb2.Any.FromString(resource.any).value
            share = shares.get(name.partition("/")[0]) if "/" in name else None
            assignments[name] = data if share is None else with_drop(data, share)
        shed = Snapshot.of({ENDPOINT_TYPE: assignments}, previous=snapshot)
        return snapshot.with_types(shed, (ENDPOINT_TYPE,))

    return Stage(URGENT, "envoy", edit(have), urgent=True, edit=edit)


@ByIdentity
def _unmarked(resource: Resource) -> tuple[frozenset[str], frozenset[str]]:
    """Return the replicas of a pickers' pool that do not drain, and those not found sick."""
    message = pool_pb2.Pool()
    any_pb2.Any.FromString(resource.any).Unpack(message)
    return (
        frozenset(each.id for each in message.endpoints if not each.draining),
        frozenset(each.id for each in message.endpoints if not each.told),
    )


@ByIdentity
def _draining(pool: PoolSpec) -> frozenset[str]:
    """Return the ids of the draining replicas."""
    return frozenset(endpoint.id for endpoint in pool.endpoints if endpoint.draining)


def _leave_alone(message: Any, draining: frozenset[str], sick: Mapping[str, Sequence[str]]) -> bool:
    """Mark the endpoints of a pickers' pool; return whether any was marked."""
    usable = Counter(
        endpoint.variant
        for endpoint in message.endpoints
        if not endpoint.draining and not endpoint.told
    )
    marked = False
    for endpoint in message.endpoints:
        drains = endpoint.id in draining and not endpoint.draining
        told = sick.get(endpoint.id, ()) if not endpoint.told else ()
        if not drains and not told:
            continue
        if not endpoint.draining and not endpoint.told:
            if usable[endpoint.variant] <= 1:
                continue
            usable[endpoint.variant] -= 1
        endpoint.draining = endpoint.draining or drains
        endpoint.told.extend(told)
        marked = True
    return marked


def lightened(old: Fleet, new: Fleet) -> Fleet:
    """Return ``old`` with what is light of ``new``; itself if nothing is."""
    after = {pool.name: pool for pool in new.pools}
    return with_pools(old, (_lightened(pool, after.get(pool.name)) for pool in old.pools))


def lighter(old: Fleet, light: Fleet) -> tuple[PoolSpec, ...]:
    """Return the pools in which ``light``, made of ``old``, differs from it."""
    pairs = zip(old.pools, light.pools, strict=True)
    return tuple(now for before, now in pairs if now is not before)


def weighed(have: Snapshot, new: View, pools: Iterable[PoolSpec]) -> Snapshot:
    """Return the pickers' snapshot with the weights and limits of ``pools``.

    Args:
        have: What pickers have, or are to have in a stage before the last; returned as it is if it
            has them.
        new: The state that they should have.
        pools: Pools with what is light of ``new``.
    """
    held = have.type_set(POOL_TYPE)
    if held is None:
        return have
    changed: dict[str, Resource | None] = {}
    for pool in pools:
        resource = held.resources.get(pool.name)
        if resource is None:
            continue
        message = pool_pb2.Pool()
        any_pb2.Any.FromString(resource.any).Unpack(message)
        before = pool_pb2.Pool()
        before.CopyFrom(message)
        lighten(message, pool, canary_of(new, pool))
        if message == before:
            continue  # its bytes need not be those that are made of it here
        data = message.SerializeToString(deterministic=True)
        changed[pool.name] = Resource.of(POOL_TYPE, pool.name, data)
    patched = held.patched(changed)
    return have if patched is held else Snapshot.of({POOL_TYPE: patched})


def _lightened(old: PoolSpec, new: PoolSpec | None) -> PoolSpec:
    if new is None or new is old:
        return old
    update: dict[str, object] = {}
    if new.circuit_breaker != old.circuit_breaker:
        update["circuit_breaker"] = new.circuit_breaker
    if new.variants != old.variants and _only_weights(old, new) and _served(old, new):
        update["variants"] = new.variants
    return old.model_copy(update=update) if update else old


def _only_weights(old: PoolSpec, new: PoolSpec) -> bool:
    return len(old.variants) == len(new.variants) and all(
        was.model_copy(update={"weight": now.weight}) == now
        for was, now in zip(old.variants, new.variants, strict=True)
    )


def _served(old: PoolSpec, new: PoolSpec) -> bool:
    """Return whether each variant that gets its first share has its replicas already."""
    pairs = zip(old.variants, new.variants, strict=True)
    first = {now.name for was, now in pairs if now.weight and not was.weight}
    if not first:
        return True
    had = {(old.variant_of(each), *_host(each)) for each in old.endpoints}
    wanted = [each for each in new.endpoints if new.variant_of(each) in first]
    used = {new.variant_of(each) for each in wanted if not each.draining}
    return used == first and all((new.variant_of(each), *_host(each)) in had for each in wanted)


def _host(endpoint: EndpointSpec) -> tuple[str, str | None, str | None, bool]:
    return endpoint.id, endpoint.http, endpoint.grpc, endpoint.draining
