"""Combination of the pickers' findings into the set of sick replicas to publish. Pure.

Rules:

1. Only pools with ``health.share`` count, and of these only replicas that are in the fleet with the
   incarnation that the picker reported and that do not drain.
2. A replica is published as *sick* once ``health.quorum`` pickers report it. A picker without a
   report stream has no findings, so a finding of its own ends with its stream.
3. At most ``outlier.max_ejection_percent`` of a variant's replicas are published as sick. Unless
   this share is 0, one replica out of several always may be; the only replica of a variant never
   is. Replicas that are published already take precedence, then those that most pickers report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec


class Place(NamedTuple):
    """A replica in a pool."""

    pool: str
    endpoint: str
    incarnation: int


Findings: TypeAlias = "Mapping[Place, tuple[str, ...]]"
"""Findings of one group of pickers: sick replica -> names of its conditions."""

PublishedSick: TypeAlias = "Mapping[str, Mapping[str, tuple[str, ...]]]"
"""Replicas published as sick: pool -> endpoint id -> names of its conditions."""


class Sick(NamedTuple):
    """A replica that at least one picker reports as sick."""

    pool: str
    endpoint: str
    conditions: tuple[str, ...]
    pickers: int
    """Number of pickers (groups) that report it."""
    published: bool
    """It is published to all pickers and Envoys; False = below the quorum, or above the share."""


def combine(
    fleet: Fleet,
    incarnations: Mapping[str, int],
    reports: Iterable[Findings],
    published: PublishedSick,
) -> tuple[Sick, ...]:
    """Return all sick replicas, sorted by pool and endpoint id.

    Args:
        fleet: The fleet in force.
        incarnations: The incarnation of each endpoint whose incarnation is not 1.
        reports: The findings of each group of pickers.
        published: The replicas that are published as sick now.
    """
    votes: Counter[Place] = Counter()
    conditions: dict[Place, set[str]] = {}
    for findings in reports:
        for place, names in findings.items():
            votes[place] += 1
            conditions.setdefault(place, set()).update(names)
    found: list[Sick] = []
    for pool in fleet.pools:
        if pool.health.share:
            named = {
                endpoint.id: place
                for endpoint in pool.endpoints
                if not endpoint.draining
                and (place := Place(pool.name, endpoint.id, incarnations.get(endpoint.id, 1)))
                in votes
            }
            counts = {name: votes[place] for name, place in named.items()}
            chosen = _chosen(pool, counts, published.get(pool.name, {}))
            found += [
                Sick(
                    pool.name, name, tuple(sorted(conditions[place])), counts[name], name in chosen
                )
                for name, place in named.items()
            ]
    return tuple(sorted(found))


def to_publish(sick: Iterable[Sick]) -> PublishedSick:
    """Return the replicas to publish as sick."""
    published: dict[str, dict[str, tuple[str, ...]]] = {}
    for each in sick:
        if each.published:
            published.setdefault(each.pool, {})[each.endpoint] = each.conditions
    return published


def _chosen(pool: PoolSpec, votes: Mapping[str, int], published: Mapping[str, object]) -> set[str]:
    variants = {
        endpoint.id: pool.variant_of(endpoint)
        for endpoint in pool.endpoints
        if not endpoint.draining
    }
    sizes = Counter(variants.values())
    percent = pool.outlier.max_ejection_percent
    left = {
        variant: min(max(size * percent // 100, 1 if percent else 0), size - 1)
        for variant, size in sizes.items()
    }
    chosen = set()
    for name in sorted(votes, key=lambda name: (name not in published, -votes[name], name)):
        if votes[name] >= pool.health.quorum and left[variants[name]] > 0:
            left[variants[name]] -= 1
            chosen.add(name)
    return chosen
