"""Rules for a pool's variants: weights, replicas, matches that hide one another, and sources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import PoolSpec, VariantMatch

_Condition = tuple[str, str, str]
"""Where (header or cookie), name and value."""
_PROTOCOLS: tuple[tuple[Protocol, str], ...] = (("http", "HTTP"), ("grpc", "gRPC"))


def variants(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the problems of a pool's variants."""
    names = [variant.name for variant in pool.variants]
    yield from repeated(names, (*at, "variants"), "name", "variant name")
    total = sum(variant.weight for variant in pool.variants)
    if total == 0:
        yield Problem(
            (*at, "variants"),
            f"all weights of pool '{pool.name}' are 0, so nothing could be served; "
            "give at least one variant a weight",
        )
    if total > MAX_WEIGHT_SUM:
        yield Problem(
            (*at, "variants"),
            f"the weights of pool '{pool.name}' add up to {total}; Envoy takes at most "
            f"{MAX_WEIGHT_SUM}; write smaller ones",
        )
    for earlier, later in _hidden([variant.match for variant in pool.variants]):
        yield Problem(
            (*at, "variants", later, "match"),
            f"every request that matches variant '{names[later]}' already matches "
            f"'{names[earlier]}' before it; use another header, cookie or value, or swap them",
        )
    yield from _shares(at, pool)


def _hidden(matches: list[VariantMatch]) -> Iterator[tuple[int, int]]:
    """Yield (earlier, later) for each match that an earlier one hides; the first that does.

    A match hides those that contain all its conditions. Each is filed under its rarest condition,
    so a later one is compared only with those that share this condition with it.
    """
    conditions = [_conditions(match) for match in matches]
    uses = Counter(condition for each in conditions for condition in each)
    filed: dict[_Condition, list[int]] = {}
    for later, mine in enumerate(conditions):
        candidates = (number for condition in mine for number in filed.get(condition, ()))
        hiding = min((one for one in candidates if conditions[one] <= mine), default=None)
        if hiding is not None:
            yield hiding, later
        if mine:
            rarest = min(mine, key=lambda condition: (uses[condition], condition))
            filed.setdefault(rarest, []).append(later)


def _conditions(match: VariantMatch) -> frozenset[_Condition]:
    headers = (("header", name, value) for name, value in match.headers.items())
    cookies = (("cookie", name, value) for name, value in match.cookies.items())
    return frozenset((*headers, *cookies))


def _shares(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the variants whose share of the requests would have no replica."""
    present: set[str] = set()
    spoken: set[tuple[str, Protocol]] = set()
    for name, kind in pool.serves:
        present.add(name)
        spoken |= {(name, protocol) for protocol, _ in _PROTOCOLS if getattr(kind, protocol)}
    needed = {protocol for _, protocol in spoken}
    for position, variant in enumerate(pool.variants):
        for protocol, word in _PROTOCOLS:
            share = variant.weight > 0 and protocol in needed
            if share and (variant.name, protocol) not in spoken:
                own = variant.name in present
                lack = f"has no replica with a `{protocol}` address" if own else "has no replica"
                yield Problem(
                    (*at, "variants", position, "weight"),
                    f"variant '{variant.name}' has weight {variant.weight} but {lack}, so its "
                    f"share of the {word} requests would fail; add one or set the weight to 0",
                )
                break
    yield from _standing_by(at, pool)


def _standing_by(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the variants that have a share and only standbys: none of them would come in."""
    pool = pool.written
    standbys: dict[str, list[str]] = {}
    for each in pool.endpoints:
        if each.standby:
            standbys.setdefault(pool.variant_of(each), []).append(each.id)
    if not standbys:
        return
    others = {pool.variant_of(each) for each in pool.endpoints if not each.standby}
    every = [variant.name for variant in pool.variants]
    for source in pool.endpoints_from:
        others.update(every if source.tells_variants else [source.variant or every[0]])
    for position, variant in enumerate(pool.variants):
        names = standbys.get(variant.name, ())
        if variant.weight > 0 and names and variant.name not in others:
            yield Problem(
                (*at, "variants", position, "weight"),
                f"variant '{variant.name}' has weight {variant.weight} but only standbys "
                f"({listed(names)}), which stand in for other replicas and so would never come in; "
                "add a replica without `standby: true` or set the weight to 0",
            )


def sources(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield sources that stand twice in the pool, or name a variant that it has not."""
    keys = [source.key for source in pool.endpoints_from]
    yield from repeated(keys, (*at, "endpoints_from"), None, "source")
    names = dict.fromkeys(variant.name for variant in pool.variants)
    for position, source in enumerate(pool.endpoints_from):
        if source.variant is not None and source.variant not in names:
            yield Problem(
                (*at, "endpoints_from", position, "variant"),
                f"pool '{pool.name}' has no variant '{source.variant}'; it has {listed(names)}",
            )
