"""Rules for a pool's shadow, zones and TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.resilience import Shadow


def traffic(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of the fleet's shadows, zones and TLS."""
    for position, pool in enumerate(fleet.pools):
        at: Location = ("pools", position)
        yield from repeated(pool.zones, (*at, "zones"), None, "zone")
        if pool.shadow is not None:
            yield from _shadow((*at, "shadow"), fleet, pool, pool.shadow)
        tls = pool.upstream_tls
        if tls is not None and (tls.certificate is None) != (tls.key is None):
            missing = "key" if tls.key is None else "certificate"
            yield Problem(
                (*at, "upstream_tls"),
                f"a certificate and its key belong together; write `{missing}:` too",
            )


def _shadow(at: Location, fleet: Fleet, pool: PoolSpec, shadow: Shadow) -> Iterator[Problem]:
    pools = {one.name: one for one in fleet.pools}
    target = pools.get(pool.name if shadow.pool is None else shadow.pool)
    if target is None:
        yield Problem(
            (*at, "pool"), f"there is no pool '{shadow.pool}'; there are {', '.join(sorted(pools))}"
        )
        return
    variant = next((one for one in target.variants if one.name == shadow.variant), None)
    if variant is None:
        names = ", ".join(one.name for one in target.variants)
        yield Problem(
            (*at, "variant"),
            f"pool '{target.name}' has no variant '{shadow.variant}'; it has {names}",
        )
        return
    if target is pool and variant.weight:
        yield Problem(
            (*at, "variant"),
            f"variant '{variant.name}' has weight {variant.weight}, so it would answer some "
            "requests and be sent them again as copies; set its weight to 0",
        )
    own = [one for one in target.endpoints if target.variant_of(one) == variant.name]
    for protocol, word in (("http", "HTTP"), ("grpc", "gRPC")):
        needed = any(getattr(one, protocol) for one in pool.endpoints)
        if needed and not any(getattr(one, protocol) for one in own):
            yield Problem(
                (*at, "variant"),
                f"variant '{variant.name}' of pool '{target.name}' has no replica with a "
                f"`{protocol}` address, so copies of {word} requests would be lost; add one or "
                "remove the shadow",
            )
            break
