"""Revisions: the numbered states of a fleet, and the incarnations of its replicas.

Rules:

1. Revision numbers start at 1 and increase by one; a revision never changes.
2. A replica's incarnation is the number of the revision that added it. So two incarnations of one
   id never have the same number, and nothing about removed replicas must be stored.
3. A replica whose address changes gets a new incarnation. A standby that is one no longer joins
   anew, so that its load ramps up.
4. The replicas of the first revision are assumed to have run before: their time of joining is 0,
   which means *warm*.
5. A revision keeps the outcome of its first publication that reached a client. Publishing it again,
   as after a restart, changes it only if clients refuse it then.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from xds_server.fleet.members.members import Members, Promoted, standbys_of, standing
from xds_server.fleet.memo import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_Addresses: TypeAlias = "tuple[str | None, str | None]"

Incarnations = dict[str, tuple[int, int]]
"""Endpoint id -> (incarnation, Unix milliseconds of joining; 0 = warm)."""

MAX_AUTHOR_CHARS = 128
MAX_REASON_CHARS = 1024
MAX_OUTCOME_CHARS = 2048
ACCEPTED = "acknowledged by"
"""How the outcome of a revision begins that no client refused."""
_BY_NO_CLIENT = f"{ACCEPTED} 0 of"
"""How the outcome of one begins that was published while no client was connected."""
REFUSED = "refused by"
"""How the outcome of one begins that clients refused."""


def reached(outcome: str) -> bool:
    """Return whether clients have accepted the revision of an outcome."""
    return outcome.startswith(ACCEPTED) and not outcome.startswith(_BY_NO_CLIENT)


def lasting_outcome(known: str, new: str) -> str:
    """Return the outcome of a revision that is published once more (rule 5).

    Args:
        known: The recorded outcome; empty = none.
        new: The outcome of the new publication.
    """
    if not known or known.startswith(_BY_NO_CLIENT) or new.startswith(REFUSED):
        return new
    return known


@dataclass(frozen=True, slots=True)
class Revision:
    """Number, time, author, reason, differences and outcome of one state of the fleet."""

    number: int
    at_unix_ms: int
    author: str
    reason: str
    changes: tuple[str, ...]
    """Differences from the previous revision, one line each."""
    outcome: str = ""
    """Outcome of its publication, in one sentence; empty until it has ended."""


@dataclass(frozen=True, slots=True)
class FileState:
    """The fleet file as it was last applied."""

    text_hash: str
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class FleetState:
    """The state that survives a restart, as of the newest revision."""

    revision: Revision
    fleet: Fleet
    incarnations: Mapping[str, tuple[int, int]]
    file: FileState | None
    """``None`` if the fleet never came from a file."""
    members: Members = field(default_factory=Members)
    """The replicas that were found; they belong to no revision."""
    promoted: Promoted = field(default_factory=lambda: MappingProxyType({}))
    """The standbys that have come in by themselves; they belong to no revision either."""

    @property
    def published(self) -> Fleet:
        """The fleet with its members in place, as clients get it."""
        return standing(self.members.published(self.fleet).fleet, self.promoted)

    @property
    def all_incarnations(self) -> Mapping[str, tuple[int, int]]:
        """The incarnations, with those of the members."""
        found = self.members.published(self.fleet).incarnations
        known = {**self.incarnations, **found} if found else self.incarnations
        risen = {
            endpoint: (known[endpoint][0], at)
            for came in self.promoted.values()
            for endpoint, at in came.items()
            if endpoint in known
        }
        return {**known, **risen} if risen else known


def text_hash(text: str) -> str:
    """Return a hash that identifies a file's content."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def next_incarnations(
    old: Fleet | None,
    known: Mapping[str, tuple[int, int]],
    new: Fleet,
    number: int,
    now_unix_ms: int,
) -> Mapping[str, tuple[int, int]]:
    """Return the incarnations of the new fleet's replicas; ``known`` itself if they are the same.

    Args:
        old: The fleet before; ``None`` for the first.
        known: Incarnations of ``old``.
        new: The fleet after.
        number: Number of the revision with the new fleet.
        now_unix_ms: Time of this revision, Unix milliseconds.
    """
    joined = 0 if old is None else now_unix_ms
    gone, here = _differing(old, new)
    before, after = _addresses(gone), _addresses(here)
    # A replica may move between a changed pool and an unchanged one.
    moved = before.keys() ^ after.keys()
    unchanged = _unchanged(new, here, moved) if moved else {}
    removed = before.keys() - after.keys() - unchanged.keys()
    added = [
        endpoint
        for endpoint, address in after.items()
        if endpoint not in known or before.get(endpoint, unchanged.get(endpoint)) != address
    ]
    risen = _standbys(gone) - _standbys(here) if old is not None else frozenset()
    risen &= after.keys()
    if not removed and not added and not risen:
        return known
    result = dict(known)
    result.update({each: (result[each][0], joined) for each in risen if each in result})
    for endpoint in removed:
        result.pop(endpoint, None)
    result.update(dict.fromkeys(added, (number, joined)))
    return result


def following(
    state: FleetState | None,
    fleet: Fleet,
    revision: Revision,
    file: FileState | None,
) -> FleetState:
    """Return the state after a revision.

    Args:
        state: The state before; ``None`` for the first.
        fleet: The fleet of the revision.
        revision: The revision; its author and reason are truncated to their bounds.
        file: The file from which it comes; ``None`` = the file applied last stays.
    """
    number, now = revision.number, revision.at_unix_ms
    return FleetState(
        replace(
            revision,
            author=revision.author[:MAX_AUTHOR_CHARS],
            reason=revision.reason[:MAX_REASON_CHARS],
        ),
        fleet,
        next_incarnations(
            None if state is None else state.fleet,
            {} if state is None else state.incarnations,
            fleet,
            number,
            now,
        ),
        file if file is not None or state is None else state.file,
        Members() if state is None else state.members,
        MappingProxyType({}) if state is None else state.promoted,
    )


def _differing(old: Fleet | None, new: Fleet) -> tuple[list[PoolSpec], list[PoolSpec]]:
    """Return the pools whose list of endpoints only one of two fleets has."""
    if old is None:
        return [], list(new.pools)
    both = {id(pool.endpoints) for pool in old.pools} & {id(pool.endpoints) for pool in new.pools}
    return (
        [pool for pool in old.pools if id(pool.endpoints) not in both],
        [pool for pool in new.pools if id(pool.endpoints) not in both],
    )


def _unchanged(
    fleet: Fleet, but: Iterable[PoolSpec], wanted: Iterable[str]
) -> dict[str, _Addresses]:
    """Return the addresses of those of the endpoints that are in other pools of the fleet."""
    left, found = set(map(id, but)), {}
    for pool in fleet.pools:
        if id(pool) not in left:
            of_pool = _addresses_of(pool)
            found.update({each: of_pool[each] for each in of_pool.keys() & wanted})
    return found


def _standbys(pools: Iterable[PoolSpec]) -> frozenset[str]:
    return frozenset().union(*map(standbys_of, pools))


def _addresses(pools: Iterable[PoolSpec]) -> dict[str, _Addresses]:
    return {each: at for pool in pools for each, at in _addresses_of(pool).items()}


@ByIdentity
def _addresses_of(pool: PoolSpec) -> dict[str, _Addresses]:
    return {e.id: (e.http, e.grpc) for e in pool.endpoints}
