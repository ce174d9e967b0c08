"""The routes on which requests leave for pools that ask something of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate_api.names import parse_cluster

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator


def routes_to(routes: Iterable[Any], pools: Container[str]) -> Iterator[tuple[Any, str]]:
    """Yield each ``Route`` that forwards to one of the pools, and the pool's name.

    The clusters of a weighted route are variants of one pool, so the first one tells.

    Args:
        routes: ``Route`` messages; those that answer or redirect are left out.
        pools: Names of pools.
    """
    for route in routes:
        if not route.HasField("route"):
            continue
        clusters = route.route.weighted_clusters.clusters
        name = route.route.cluster or (clusters[0].name if clusters else "")
        ref = parse_cluster(name)
        if ref is not None and ref.pool in pools:
            yield route, ref.pool
