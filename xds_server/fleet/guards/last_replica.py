"""The guard of the last usable replica: what a change would leave without one. Pure.

Rules:

1. A replica is *usable* if it does not drain and pickers do not leave it alone. What no picker
   reports on is usable, and so is a replica at an address that is new.
2. A change *takes* from a variant that has a weight after it and no usable replica; or none that
   speaks a protocol which its replicas or sources speak. It does not if that was so before it,
   with a weight, or if the pool is new. A protocol that a variant no longer speaks at all is
   withdrawn on purpose.
3. Only pools that the change touches are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.fleet.view import PROTOCOLS, address_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec, VariantSpec

MAX_NAMED: Final = 8
"""Most variants, and most replicas of each, that a message names."""


class LastReplica(ValueError):  # noqa: N818 - reads as the sentence it is: raise LastReplica(...)
    """A change would take the last usable replica of a variant; the message names what remains."""

    def __init__(self, found: Sequence[Taken]) -> None:
        lines = [str(each) for each in found[:MAX_NAMED]]
        if len(found) > MAX_NAMED:
            lines.append(f"and {len(found) - MAX_NAMED} more variants")
        super().__init__(
            f"this would leave {'; '.join(lines)}. Give the variant another replica or weight 0"
            " first, or force the change (--force)"
        )


class Taken(NamedTuple):
    """A variant that a change leaves without a usable replica."""

    pool: str
    variant: str
    share: float
    """Its share of the pool's requests, 0 to 1."""
    protocol: Protocol | None
    """The protocol that no usable replica speaks; ``None`` = there is none at all."""
    remains: str
    """The variant's replicas and the state of each, and the usable ones of other variants."""

    def __str__(self) -> str:
        """Return the finding in one sentence without its end."""
        speaking = "" if self.protocol is None else f" that speaks {self.protocol}"
        return (
            f"variant {self.variant} of pool {self.pool} ({self.share:.0%} of its requests) without"
            f" a usable replica{speaking}: {self.remains}"
        )


def taken(old: Fleet, new: Fleet, left_alone: Mapping[tuple[str, str], str]) -> tuple[Taken, ...]:
    """Return what a change takes from variants (rule 2), in the order of the new fleet.

    Args:
        old: The fleet that is published.
        new: The fleet that is to be published.
        left_alone: Replicas that pickers leave alone, by pool and id, and why.
    """
    if old is new:
        return ()
    before = {pool.name: pool for pool in old.pools}
    return tuple(
        found
        for pool in new.pools
        if (was := before.get(pool.name)) is not None and was is not pool
        for found in _taken(was, pool, left_alone)
    )


def _taken(
    old: PoolSpec, new: PoolSpec, left_alone: Mapping[tuple[str, str], str]
) -> Iterator[Taken]:
    addresses = {each.id: (each.http, each.grpc) for each in old.endpoints}
    reasons = {
        each.id: reason
        for each in new.endpoints
        if (reason := left_alone.get((new.name, each.id))) is not None
        and addresses.get(each.id) == (each.http, each.grpc)
    }
    known = {
        each.id: reason
        for each in old.endpoints
        if (reason := left_alone.get((old.name, each.id))) is not None
    }
    was, now = _usable(old, known), _usable(new, reasons)
    weights = {variant.name: variant.weight for variant in old.variants}
    for variant in new.variants:
        if not variant.weight:
            continue
        drawn_before = weights.get(variant.name, 0) > 0
        here, there = now.get(variant.name, frozenset()), was.get(variant.name, frozenset())
        if not here:
            if there or not drawn_before:
                yield _finding(new, variant, None, reasons)
            continue
        for protocol in PROTOCOLS:
            lost = protocol not in here and (protocol in there or not drawn_before)
            if lost and protocol in _spoken(new, variant):
                yield _finding(new, variant, protocol, reasons)


def _usable(pool: PoolSpec, reasons: Mapping[str, str]) -> dict[str, frozenset[Protocol]]:
    """Return the protocols that usable replicas speak, by variant; absent = none is usable."""
    found: dict[str, frozenset[Protocol]] = {}
    for each in pool.endpoints:
        if not each.draining and each.id not in reasons:
            name = pool.variant_of(each)
            found[name] = found.get(name, frozenset()) | _protocols(each)
    return found


def _spoken(pool: PoolSpec, variant: VariantSpec) -> frozenset[Protocol]:
    kinds = [each.kind for each in pool.serves if each.variant == variant.name]
    kinds += [each.kind for each in pool.endpoints if pool.variant_of(each) == variant.name]
    return frozenset(
        protocol for protocol in PROTOCOLS if any(getattr(kind, protocol) for kind in kinds)
    )


def _protocols(endpoint: EndpointSpec) -> frozenset[Protocol]:
    return frozenset(each for each in PROTOCOLS if address_of(endpoint, each) is not None)


def _finding(
    pool: PoolSpec, variant: VariantSpec, protocol: Protocol | None, reasons: Mapping[str, str]
) -> Taken:
    total = sum(each.weight for each in pool.variants)
    here, elsewhere = list[str](), dict[str, int]()
    for each in pool.endpoints:
        name = pool.variant_of(each)
        usable = not each.draining and each.id not in reasons
        if name == variant.name:
            here.append(f"{each.id} {_state(each, protocol, reasons)}")
        elif usable:
            elsewhere[name] = elsewhere.get(name, 0) + 1
    if len(here) > MAX_NAMED:
        here[MAX_NAMED:] = [f"{len(here) - MAX_NAMED} more"]
    remains = ", ".join(here) or "no replica remains"
    others = [f"{count} of {name}" for name, count in elsewhere.items()][:MAX_NAMED]
    if others:
        remains += f" (usable: {', '.join(others)})"
    return Taken(pool.name, variant.name, variant.weight / total, protocol, remains)


def _state(endpoint: EndpointSpec, protocol: Protocol | None, reasons: Mapping[str, str]) -> str:
    if endpoint.draining:
        return "is a standby" if endpoint.standby else "drains"
    if endpoint.id in reasons:
        return f"is {reasons[endpoint.id]}"
    return f"does not speak {protocol}"
