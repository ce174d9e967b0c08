"""What of a change is in force at once, whatever the rest waits for: weights and limits. Pure.

Rules:

1. A pool's weights are light if its variants differ in nothing else, and no variant gets its first
   share before its replicas: those that it has afterwards, it had before, and one is in use.
2. A pool's limits on connections, requests and retries are light, also the pickers' own.
3. Envoys get what is light with the first stage of a change, which waits for no answer. Pickers
   get it in a stage before that, unless stages come to Envoys in waves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import any_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE
from xds_server.fleet.memo import with_pools
from xds_server.protocol.snapshot import Resource, Snapshot
from xds_server.resources.pools import canary_of, lighten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
    from xds_server.fleet.view import View


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
    had = {(old.variant_of(each), *_host(each)) for each in old.endpoints}
    wanted = [each for each in new.endpoints if new.variant_of(each) in first]
    used = {new.variant_of(each) for each in wanted if not each.draining}
    return used == first and all((new.variant_of(each), *_host(each)) in had for each in wanted)


def _host(endpoint: EndpointSpec) -> tuple[str, str | None, str | None, bool]:
    return endpoint.id, endpoint.http, endpoint.grpc, endpoint.draining
