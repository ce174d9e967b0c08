"""Rules for a pool's shadow, zones and TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.resilience import Shadow


def traffic(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of the fleet's shadows, zones and TLS."""
    targets = _Targets(fleet) if any(pool.shadow for pool in fleet.pools) else None
    for position, pool in enumerate(fleet.pools):
        at: Location = ("pools", position)
        yield from repeated(pool.zones, (*at, "zones"), None, "zone")
        if pool.shadow is not None and targets is not None:
            yield from _shadow((*at, "shadow"), targets, pool, pool.shadow)
        yield from _paired((*at, "upstream_tls"), pool.upstream_tls)
    yield from _paired(("pickers", "tls"), fleet.pickers.tls)


def _paired(at: Location, tls: UpstreamTls | None) -> Iterator[Problem]:
    if tls is not None and (tls.certificate is None) != (tls.key is None):
        missing = "key" if tls.key is None else "certificate"
        yield Problem(at, f"a certificate and its key belong together; write `{missing}:` too")


class _Targets:
    """The pools by name, and what their variants speak; each computed once for all shadows."""

    def __init__(self, fleet: Fleet) -> None:
        self.pools = {one.name: one for one in fleet.pools}
        self.variants = {one.name: {v.name: v for v in one.variants} for one in fleet.pools}
        self.spoken: set[tuple[str, str, Protocol]] = set()
        """Pool, variant and protocol of each replica address."""
        for pool in self.pools.values():
            for variant, kind in pool.serves:
                if kind.http:
                    self.spoken.add((pool.name, variant, "http"))
                if kind.grpc:
                    self.spoken.add((pool.name, variant, "grpc"))


def _shadow(at: Location, targets: _Targets, pool: PoolSpec, shadow: Shadow) -> Iterator[Problem]:
    target = targets.pools.get(pool.name if shadow.pool is None else shadow.pool)
    if target is None:
        yield Problem(
            (*at, "pool"),
            f"there is no pool '{shadow.pool}'; there are {listed(targets.pools)}",
        )
        return
    variant = targets.variants[target.name].get(shadow.variant)
    if variant is None:
        yield Problem(
            (*at, "variant"),
            f"pool '{target.name}' has no variant '{shadow.variant}'; "
            f"it has {listed(targets.variants[target.name])}",
        )
        return
    if target is pool and variant.weight:
        yield Problem(
            (*at, "variant"),
            f"variant '{variant.name}' has weight {variant.weight}, so it would answer some "
            "requests and be sent them again as copies; set its weight to 0",
        )
    words: tuple[tuple[Protocol, str], ...] = (("http", "HTTP"), ("grpc", "gRPC"))
    for protocol, word in words:
        needed = any(getattr(kind, protocol) for _, kind in pool.serves)
        if needed and (target.name, variant.name, protocol) not in targets.spoken:
            yield Problem(
                (*at, "variant"),
                f"variant '{variant.name}' of pool '{target.name}' has no replica with a "
                f"`{protocol}` address, so copies of {word} requests would be lost; add one or "
                "remove the shadow",
            )
            break
