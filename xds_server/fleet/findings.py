"""What pickers find of replicas, combined into what everybody is told. Pure.

Rules:

1. Only pools with ``health.share`` are looked at, and only replicas that are members in the
   incarnation that a picker speaks of and do not drain.
2. A replica is *sick* once ``health.quorum`` pickers say so. A picker whose report stream ended
   says nothing, so what it alone found ends with it.
3. Told to all are at most ``outlier.max_ejection_percent`` of a variant, but one replica of several
   may always be unless the share is 0; the only replica of a variant never is. Who is told already
   stays first, then those that most pickers name.
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
"""What one picker finds: the names of each sick replica's conditions."""

Told: TypeAlias = "Mapping[str, Mapping[str, tuple[str, ...]]]"
"""Pool to endpoint id to its conditions."""


class Sick(NamedTuple):
    """A replica that pickers find sick."""

    pool: str
    endpoint: str
    conditions: tuple[str, ...]
    pickers: int
    """How many say so."""
    told: bool
    """All pickers and Envoys are told; False = too few say so, or too many are sick."""


def combine(
    fleet: Fleet,
    incarnations: Mapping[str, int],
    reports: Iterable[Findings],
    told: Told,
) -> tuple[Sick, ...]:
    """Return all sick replicas, by pool and name.

    Args:
        fleet: The fleet in force.
        incarnations: The incarnation of each endpoint that has not its first one.
        reports: What each picker finds.
        told: What everybody is told now.
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
            chosen = _chosen(pool, counts, told.get(pool.name, {}))
            found += [
                Sick(
                    pool.name, name, tuple(sorted(conditions[place])), counts[name], name in chosen
                )
                for name, place in named.items()
            ]
    return tuple(sorted(found))


def told_of(sick: Iterable[Sick]) -> Told:
    """Return what everybody is to be told."""
    told: dict[str, dict[str, tuple[str, ...]]] = {}
    for each in sick:
        if each.told:
            told.setdefault(each.pool, {})[each.endpoint] = each.conditions
    return told


def _chosen(pool: PoolSpec, votes: Mapping[str, int], told: Mapping[str, object]) -> set[str]:
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
    for name in sorted(votes, key=lambda name: (name not in told, -votes[name], name)):
        if votes[name] >= pool.health.quorum and left[variants[name]] > 0:
            left[variants[name]] -= 1
            chosen.add(name)
    return chosen
