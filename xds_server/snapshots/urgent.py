"""The urgent stages: what is done at once, before the rest of a change.

Pure.

Rules:

1. The stage is what the pickers have now, with more replicas marked as draining or as found sick.
   It names nothing that Envoys might not have, so it waits for no answer.
2. It never takes the last usable replica of a variant: those that replace it come with a later
   stage.
3. Nothing is undone here: a replica that is used again comes back with the stages of the change.
   Nor do these take a mark back that the stage has set: the pickers' first one has it too.
4. Where stages come to Envoys in waves, another share of load to shed comes to all Envoys first: in
   what each of them has now, so that nothing else of a change reaches it early.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ENDPOINT_TYPE, POOL_TYPE
from xds_server.fleet.memo import ByIdentity
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Resource, Snapshot
from xds_server.resources.endpoints import with_drop
from xds_server.snapshots.light import weighed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
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
