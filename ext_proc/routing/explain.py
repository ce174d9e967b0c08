"""What the router knows, as plain values for people: the body of ``/debug/state``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.roster import Replica
    from ext_proc.routing.types import Endpoint, EndpointKey, Pool, Reading


def describe(
    pool: Pool, replicas: Mapping[EndpointKey, Replica], index: PrefixIndex, now: float
) -> dict[str, object]:
    """Return a pool with its variants and endpoints.

    Args:
        pool: The pool.
        replicas: What is known of its endpoints.
        index: Their probable caches.
        now: Monotonic seconds, for the ages.
    """
    return {
        "policy": pool.policy,
        "variants": {
            each.name: {"weight": each.weight, "model_version": each.model_version}
            for each in pool.variants
        },
        "endpoints": {
            each.key.id: _endpoint(each, replicas[each.key], index, now) for each in pool.endpoints
        },
    }


def _endpoint(
    endpoint: Endpoint, replica: Replica, index: PrefixIndex, now: float
) -> dict[str, object]:
    return {
        "incarnation": endpoint.key.incarnation,
        "variant": endpoint.variant,
        "http": endpoint.http,
        "grpc": endpoint.grpc,
        "capacity": endpoint.capacity,
        "draining": endpoint.draining,
        "joined_unix_s": endpoint.joined_unix_s,
        "restarted_unix_s": replica.restarted_unix_s,
        "in_flight": replica.load.in_flight,
        "work_tokens": replica.load.work,
        "others_queued": replica.others_queued(now),
        "index_blocks": index.held(endpoint.key),
        "readings": [_reading(each, now) for each in replica.readings],
    }


def _reading(reading: Reading, now: float) -> dict[str, object]:
    return {
        "age_s": round(now - reading.at, 3),
        "model": reading.model,
        "version": reading.version,
        "queued": reading.queued,
        "running": reading.running,
        "saturated": reading.saturated,
        "kv_used": reading.kv_used,
        "reused_blocks": reading.reused_blocks,
    }
