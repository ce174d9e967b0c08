"""What is published beside a revision: found replicas, standbys that came in, listed models. Pure.

It comes and goes without a revision, and a revision does not contain it. Fleets and pools of which
nothing is told stay the same objects, and so do equal results.

Rules of members, which are the found replicas of all pools:

1. The fleet that is published has the written replicas with addresses and the members; replicas
   that are written with a name are in it as members only.
2. The published fleet breaks no rule if the written one breaks none. What would is left out, and
   ``left_out`` says why. What is written goes first, then members that are listed, then the rest.
3. One id is one replica: in all pools it has the addresses at which it was found last. One address
   is one replica: found again under another id, in another pool, it keeps the first id.
4. Clusters and routes do not depend on members (``PoolSpec.serves``): a change of them is endpoints
   for Envoys and pools for pickers, nothing else.

Rules of standbys, which keep their models loaded and take no requests until they come in:

1. A written replica with ``standby`` that has not come in is published as draining: new requests go
   elsewhere, and what it has ends by itself.
2. Which ones have come in by themselves is known with the time of each: its ramp begins then.
   Promotion by an operator is another revision, in which it is no standby.

What is listed for Envoys follows from pickers' reports (``keepers.placement_keeper``), as do the
bounds of requests without a pick (``keepers.unpicked_keeper``); what leaves replicas, for
pickers, from operations (``applications.loading.leaving``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from xds_server.fleet.guards.tokens import guard_of
from xds_server.fleet.members.origins import origins_of
from xds_server.fleet.memo import ByIdentity, shared, with_pools
from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.model.fleet import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

MAX_MEMBERS: Final = 4096
"""Most members of one pool."""

MAX_LEFT_OUT: Final = 64
"""Most reasons that are kept."""


@dataclass(frozen=True, slots=True)
class Member:
    """A found replica that was admitted."""

    spec: EndpointSpec
    origin: str
    """Key of its origin."""
    identity: str
    """What the origin calls it."""
    incarnation: int
    """Unix milliseconds at which it was admitted, or later by a few: never the same twice."""
    joined_unix_ms: int
    """Unix milliseconds; 0 = warm."""
    held: bool = False
    """It has vanished, and stays until this is confirmed."""


@dataclass(frozen=True, slots=True)
class WithMembers:
    """A fleet with its members in place."""

    written: Fleet
    fleet: Fleet
    incarnations: Mapping[str, tuple[int, int]]
    """Of the members: endpoint id -> (incarnation, Unix milliseconds of joining)."""
    left_out: tuple[str, ...]
    """Members that are not in the fleet, with the reason; at most ``MAX_LEFT_OUT``."""


@dataclass(slots=True)
class Members:
    """The members of each pool; immutable except for a remembered result."""

    pools: Mapping[str, tuple[Member, ...]] = field(
        default_factory=lambda: MappingProxyType(dict[str, tuple[Member, ...]]())
    )
    low_objectives: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: MappingProxyType(dict[str, tuple[str, ...]]())
    )
    """By pool: names of InferenceObjectives whose requests are in the lower band."""
    _last: WithMembers | None = field(default=None, compare=False, repr=False)

    def published(self, fleet: Fleet, before: Fleet | None = None) -> WithMembers:
        """Return a written fleet with the members in place.

        Args:
            fleet: The written fleet.
            before: A fleet that was published before, whose equal parts are reused.
        """
        last = self._last
        if last is not None and last.written is fleet:
            return last
        if not any(map(_finds, fleet.pools)):
            self._last = WithMembers(fleet, fleet, {}, ())
            return self._last
        if before is None and last is not None:
            before = last.fleet
        merged = _Merge(fleet, self.pools, self.low_objectives)
        whole = shared(before, merged.fleet())
        found = WithMembers(
            fleet, whole, merged.incarnations, tuple(merged.left_out[:MAX_LEFT_OUT])
        )
        self._last = found
        return found


def found_ids(published: Fleet) -> dict[str, frozenset[str]]:
    """Return the ids of the members in a published fleet, by pool."""
    return {
        pool.name: frozenset(each.id for each in pool.endpoints)
        - frozenset(each.id for each in pool.written.endpoints if each.dns_name is None)
        for pool in published.pools
        if _finds(pool.written)
    }


@ByIdentity
def _finds(pool: PoolSpec) -> bool:
    return pool.finds


class _Merge:
    def __init__(
        self,
        fleet: Fleet,
        members: Mapping[str, tuple[Member, ...]],
        low_objectives: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._low_objectives = low_objectives
        self.incarnations: dict[str, tuple[int, int]] = {}
        self.left_out: list[str] = []
        self._written = fleet
        self._members = {
            pool.name: sorted(
                members.get(pool.name, ())[:MAX_MEMBERS], key=lambda m: (m.spec.draining, m.held)
            )
            for pool in fleet.pools
            if _finds(pool)
        }
        self._newest: dict[str, Member] = {}
        self._replicas: dict[str, EndpointSpec] = {}
        """What is placed, by id."""
        self._owners: dict[str, str] = {}
        """Address -> id of the replica that has it."""
        self._guards: dict[str, Any] = {}
        """What the pools of each replica ask of requests, by id."""
        self._fixed: set[str] = set()
        """Ids of written replicas."""

    def fleet(self) -> Fleet:
        for pool in self._written.pools:
            for each in pool.endpoints:
                if each.dns_name is None:
                    self._fixed.add(each.id)
                    self._own(each, pool)
        for group in self._members.values():
            for member in group:
                known = self._newest.get(member.spec.id)
                if known is None or member.incarnation > known.incarnation:
                    self._newest[member.spec.id] = member
        pools = tuple(
            self._pool(pool) if pool.name in self._members else pool for pool in self._written.pools
        )
        return self._written.model_copy(update={"pools": pools})

    def _own(self, spec: EndpointSpec, pool: PoolSpec) -> None:
        self._guards.setdefault(spec.id, guard_of(pool))
        self._replicas.setdefault(spec.id, spec)
        for address in _addresses(spec):
            self._owners.setdefault(address, spec.id)

    def _pool(self, pool: PoolSpec) -> PoolSpec:
        written = [each for each in pool.endpoints if each.dns_name is None]
        here = {each.id: each for each in written}
        drained = frozenset(pool.drained)
        ended = {
            key
            for key, each in origins_of(pool).items()
            if each.endpoint and each.endpoint.draining
        }
        variants = {variant.name for variant in pool.variants}
        for member in self._members[pool.name]:
            spec = self._placed(member)
            if isinstance(spec, str):
                self.left_out.append(
                    f"pool {pool.name}: {member.spec.id} ({member.origin}): {spec}"
                )
            elif spec.variant is not None and spec.variant not in variants:
                self.left_out.append(
                    f"pool {pool.name}: {spec.id} ({member.origin}): no variant '{spec.variant}'"
                )
            elif self._guards.get(spec.id, guard_of(pool)) != guard_of(pool):
                self.left_out.append(
                    f"pool {pool.name}: {spec.id} ({member.origin}): it is in a pool that asks for "
                    "another token"
                )
            elif spec.id not in here:
                self._own(spec, pool)
                drains = spec.id in drained or member.origin in ended
                here[spec.id] = _drain(spec) if drains else spec
                if spec.id not in self._fixed:
                    newest = self._newest.get(spec.id, member)
                    self.incarnations.setdefault(
                        spec.id, (newest.incarnation, newest.joined_unix_ms)
                    )
        low = self._low_objectives.get(pool.name, ())
        return pool.published(pool, tuple(here.values()), low)

    def _placed(self, member: Member) -> EndpointSpec | str:
        """Return the member as it can be published, or why it cannot."""
        spec = member.spec
        known = self._replicas.get(spec.id)
        if known is None:
            newest = self._newest[spec.id].spec
            spec = _as(spec, newest)
            owners = {self._owners[each] for each in _addresses(spec) if each in self._owners}
            if owners:
                known = self._replicas[min(owners)]
        if known is not None:
            if (known.http, known.grpc) != (spec.http, spec.grpc):
                return f"one of its addresses belongs to '{known.id}'"
            spec = _as(spec, known)
        return _unreachable(self._written, spec) or spec


def _as(spec: EndpointSpec, known: EndpointSpec) -> EndpointSpec:
    """Return ``spec`` with what all pools must say alike of one replica."""
    fields = ("id", "http", "grpc", "metrics", "telemetry", "device")
    update = {name: getattr(known, name) for name in fields}
    if all(getattr(spec, name) == value for name, value in update.items()):
        return spec
    return spec.model_copy(update=update)


def _drain(spec: EndpointSpec) -> EndpointSpec:
    return spec if spec.draining else spec.model_copy(update={"draining": True})


def _addresses(spec: EndpointSpec) -> Iterator[str]:
    for address in (spec.http, spec.grpc, spec.metrics):
        if address is not None:
            yield address


def _unreachable(fleet: Fleet, spec: EndpointSpec) -> str:
    listener, listener_port = split_host_port(fleet.listener.address)
    everywhere = ipaddress.ip_address(listener).is_unspecified
    for address in (spec.http, spec.grpc):
        if address is None:
            continue
        host, port = split_host_port(address)
        ip = ipaddress.ip_address(host)
        if ip.is_unspecified or ip.is_multicast:
            return f"it is impossible to connect to {address}"
        if address == fleet.listener.address or (
            everywhere and ip.is_loopback and port == listener_port
        ):
            return f"{address} is Envoy's own address (listener.address)"
        if address in fleet.pickers.addresses:
            return f"{address} is a picker's (pickers.addresses)"
    return ""


Promoted = Mapping[str, Mapping[str, int]]
"""Standbys that have come in by themselves: pool -> endpoint id -> Unix milliseconds."""


def standing(fleet: Fleet, promoted: Promoted) -> Fleet:
    """Return a fleet whose standbys, but those that have come in, drain."""
    at = _with_standbys(fleet)
    key = tuple((n, frozenset(promoted.get(fleet.pools[n].name, ()))) for n in at)
    return _standing(fleet, key) if key else fleet


@ByIdentity
def _standing(fleet: Fleet, promoted: tuple[tuple[int, frozenset[str]], ...]) -> Fleet:
    pools = list(fleet.pools)
    for n, ids in promoted:
        pools[n] = _standing_pool(pools[n], ids)
    return with_pools(fleet, pools)


@ByIdentity
def _standing_pool(pool: PoolSpec, promoted: frozenset[str]) -> PoolSpec:
    endpoints = tuple(
        _drained(each) if each.standby and each.id not in promoted else each
        for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints})


@ByIdentity
def standbys_of(pool: PoolSpec) -> frozenset[str]:
    """Return the ids of a written pool's standbys."""
    return frozenset(each.id for each in pool.endpoints if each.standby)


@ByIdentity
def _with_standbys(fleet: Fleet) -> tuple[int, ...]:
    return tuple(position for position, pool in enumerate(fleet.pools) if standbys_of(pool))


@ByIdentity
def _drained(endpoint: EndpointSpec) -> EndpointSpec:
    return endpoint.model_copy(update={"draining": True})


_OfPool: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Endpoint ids and the models listed for each."""
Placed: TypeAlias = tuple[tuple[str, _OfPool], ...]
"""Pools and what is listed for their replicas; a pool that is missing has nothing listed."""

Leaving: TypeAlias = _OfPool
"""Endpoint ids and the models that leave each, in all pools."""
Unpicked: TypeAlias = tuple[tuple[str, int], ...]
"""Clusters and the most requests without a pick to each; one that is missing has no such bound."""
_Tell: TypeAlias = "Callable[[EndpointSpec, tuple[str, ...]], EndpointSpec]"


def placing(fleet: Fleet, placed: Placed) -> Fleet:
    """Return a fleet whose replicas have these models listed."""
    return _told(fleet, placed, EndpointSpec.listing)


def leaving(fleet: Fleet, marks: Leaving) -> Fleet:
    """Return a fleet whose replicas these models leave."""
    by_pool: list[tuple[str, _OfPool]] = []
    for pool in fleet.pools if marks else ():
        ids = {each.id for each in pool.endpoints}
        here = tuple(each for each in marks if each[0] in ids)
        if here:
            by_pool.append((pool.name, here))
    return _told(fleet, tuple(by_pool), EndpointSpec.losing)


def bounding(fleet: Fleet, unpicked: Unpicked) -> Fleet:
    """Return a fleet whose requests without a pick are bounded so."""
    return _bounded(fleet, unpicked) if unpicked else fleet


@ByIdentity
def _bounded(fleet: Fleet, unpicked: Unpicked) -> Fleet:
    return fleet.bounding(unpicked)


def _told(fleet: Fleet, placed: Placed, tell: _Tell) -> Fleet:
    return _told_fleet(fleet, placed, tell) if placed else fleet


@ByIdentity
def _told_fleet(fleet: Fleet, placed: Placed, tell: _Tell) -> Fleet:
    here = dict(placed)
    pools = (_told_pool(p, here[p.name], tell) if p.name in here else p for p in fleet.pools)
    return with_pools(fleet, pools)


@ByIdentity
def _told_pool(pool: PoolSpec, listed: _OfPool, tell: _Tell) -> PoolSpec:
    models = dict(listed)
    endpoints = tuple(
        tell(each, models[each.id]) if each.id in models else each for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints})
