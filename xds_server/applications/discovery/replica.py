"""One replica as admission knows it: what its source says, and what it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from xds_server.applications.discovery.values import Found
    from xds_server.fleet.members.members import Member
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

FREE_FLAPS: Final = 2
FIRST_DELAY_S: Final = 1.0
CALM_S: Final = 600.0
"""Seconds without a change after which flaps are forgotten."""

_MOST_DOUBLINGS: Final = 30

Key = tuple[str, str]
"""Origin and identity."""


class Missing(NamedTuple):
    """Active members that are not listed as able to serve."""

    vanished: list[Key]
    ending: list[Key]
    """Their source says that they terminate."""
    replaced: list[Key]
    """Their source was removed, and the new ones have said what there is instead."""
    alone: list[Key]
    """Their source was removed, and a new one has not answered for long."""


class Hold(NamedTuple):
    """Members that have vanished and stay."""

    since: float
    """Monotonic seconds."""
    until: float | None
    """When they leave; ``None`` = not before ``confirm``."""
    ids: tuple[str, ...]
    of: int
    """Active replicas before they vanished."""


class Flaps(NamedTuple):
    """How often a replica left or moved."""

    times: int = 0
    last: float = 0.0
    """When it did so last, monotonic seconds."""

    def more(self, now: float) -> Flaps:
        """Return the count after one more."""
        return Flaps((self.times if now - self.last < CALM_S else 0) + 1, now)

    def calm_at(self, longest: float) -> float:
        """Return when it may be active again; it never waits longer than ``longest`` seconds."""
        over = self.times - FREE_FLAPS
        if over <= 0:
            return float("-inf")
        return self.last + min(longest, FIRST_DELAY_S * 2.0 ** min(over - 1, _MOST_DOUBLINGS))


@dataclass(slots=True)
class Tracked:
    """One replica of a pool. Times are monotonic seconds."""

    found: Found | None = None
    """What its source says; ``None`` = it is not listed."""
    spec: EndpointSpec | None = None
    """What it would be as a member; ``None`` = not listed, or unfit."""
    member: Member | None = None
    """What it is; ``None`` = not admitted."""
    left_at: float | None = None
    """When it began to drain; ``None`` = it is active, or no member."""
    gone_at: float | None = None
    """When it vanished while active; ``None`` = it has not."""
    ready: str = ""
    """Addresses at which its model was ready last."""
    confirmed: bool = False
    """It may go although it is held."""
    flaps: Flaps = field(default_factory=Flaps)

    @property
    def active(self) -> bool:
        """It is a member that takes work."""
        return self.member is not None and self.left_at is None

    @property
    def wanted(self) -> bool:
        """Its source lists it as able to serve."""
        found = self.found
        listed = self.spec is not None and found is not None
        return listed and found is not None and found.serving and not found.terminating

    @property
    def ending(self) -> bool:
        """Its source says that it is about to end."""
        return self.found is not None and self.found.terminating

    @property
    def serving(self) -> bool:
        """Its source lists it, and says that it still serves."""
        return self.found is not None and self.found.serving

    @property
    def moved(self) -> bool:
        """It is a member that was found at another address."""
        spec, member = self.spec, self.member
        return spec is not None and member is not None and places(spec) != places(member.spec)

    def leave(self, now: float) -> None:
        """Begin to drain."""
        if self.member is not None:
            self.left_at, self.gone_at, self.confirmed, self.ready = now, None, False, ""
            self.flaps = self.flaps.more(now)
            spec = self.member.spec.model_copy(update={"draining": True})
            self.member = replace(self.member, spec=spec)


def places(spec: EndpointSpec) -> str:
    """Return the addresses of a replica as one text."""
    return f"{spec.http} {spec.grpc}"


def with_address(spec: EndpointSpec) -> EndpointSpec | None:
    """Return the replica with its address in its id; ``None`` if it is there already."""
    address = spec.grpc or spec.http or ""
    if address in spec.id:
        return None
    return spec.model_copy(update={"id": f"{spec.id}-{address}"[-127:].lstrip("._-:]")})


def adopt(replicas: dict[Key, Tracked], origins: Collection[str]) -> None:
    """Give active members whose source was removed to the source that lists them now.

    Args:
        replicas: Replicas by origin and identity.
        origins: The present origins.
    """
    orphans = {
        (each.member.spec.id, places(each.member.spec)): key
        for key, each in replicas.items()
        if key[0] not in origins and each.member is not None and each.active
    }
    for key, each in list(replicas.items()) if orphans else ():
        if each.member is None and each.spec is not None and each.wanted:
            before = orphans.pop((each.spec.id, places(each.spec)), None)
            member = None if before is None else replicas.pop(before).member
            if member is not None:
                each.member = replace(member, origin=key[0], identity=key[1])


def last_of(pool: PoolSpec, active: Mapping[str, int], going: Mapping[Key, Tracked]) -> set[Key]:
    """Return those of ``going`` without which their variant would have no active replica.

    Args:
        pool: Their pool.
        active: Active replicas by variant.
        going: Members that are about to leave.
    """
    of: dict[str, list[Key]] = {}
    for key, each in going.items():
        if each.member is not None:
            of.setdefault(pool.variant_of(each.member.spec), []).append(key)
    kept: set[Key] = set()
    for variant, keys in of.items():
        if len(keys) >= active[variant]:
            serving = [key for key in keys if going[key].serving]
            kept.update(serving or keys)
    return kept


def counted(replicas: Iterable[Tracked], hold: Hold | None) -> Mapping[str, int]:
    """Return the number of replicas by state: active, draining, held, waiting."""
    held = set(hold.ids) if hold else set()
    states = dict.fromkeys(("active", "draining", "held", "waiting"), 0)
    for each in replicas:
        if each.member is None:
            states["waiting"] += each.wanted
        elif not each.active:
            states["draining"] += 1
        else:
            states["held" if each.member.spec.id in held else "active"] += 1
    return states


def hold_of(held: Sequence[Tracked], until: float | None, of: int) -> Hold:
    """Return the hold of these members.

    Args:
        held: The members that have vanished and stay.
        until: When the first of them leaves; ``None`` = not before ``confirm``.
        of: Active replicas before they vanished.
    """
    since = min((each.gone_at or 0.0 for each in held), default=0.0)
    ids = (each.member.spec.id for each in held if each.member is not None)
    return Hold(since, until, tuple(sorted(ids)), of)
