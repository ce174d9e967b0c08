"""What of a change is in force at once, whatever the rest waits for.

Pure. These are replicas that are to be left alone, weights and limits.

Rules:

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
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ENDPOINT_TYPE, POOL_TYPE
from xds_server.fleet.memo import ByIdentity, with_pools
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Resource, Snapshot
from xds_server.resources.endpoints import with_drop
from xds_server.resources.pools import canary_of, lighten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
    from xds_server.fleet.view import View

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
