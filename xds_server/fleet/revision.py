"""Revisions: the numbered states of a fleet, and the incarnations of its replicas.

Rules:

1. Revision numbers start at 1 and increase by one; a revision never changes.
2. A replica's incarnation is the number of the revision that added it. So two incarnations of one
   id never have the same number, and nothing about removed replicas must be stored.
3. A replica whose address changes gets a new incarnation.
4. The replicas of the first revision are assumed to have run before: their time of joining is 0,
   which means *warm*.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

Incarnations = dict[str, tuple[int, int]]
"""Endpoint id -> (incarnation, Unix milliseconds of joining; 0 = warm)."""

MAX_AUTHOR_CHARS = 128
MAX_REASON_CHARS = 1024
MAX_OUTCOME_CHARS = 2048


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


def text_hash(text: str) -> str:
    """Return a hash that identifies a file's content."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def next_incarnations(
    old: Fleet | None,
    known: Mapping[str, tuple[int, int]],
    new: Fleet,
    number: int,
    now_unix_ms: int,
) -> Incarnations:
    """Return the incarnations of the new fleet's replicas.

    Args:
        old: The fleet before; ``None`` for the first.
        known: Incarnations of ``old``.
        new: The fleet after.
        number: Number of the revision with the new fleet.
        now_unix_ms: Time of this revision, Unix milliseconds.
    """
    was = () if old is None else old.pools
    kept = {id(pool) for pool in was} & {id(pool) for pool in new.pools}
    before = _addresses(pool for pool in was if id(pool) not in kept)
    after = _addresses(pool for pool in new.pools if id(pool) not in kept)
    joined = 0 if old is None else now_unix_ms
    result = dict(known)
    # A replica may move between a changed pool and an unchanged one.
    moved = bool(before.keys() ^ after.keys())
    unchanged = _addresses(pool for pool in new.pools if id(pool) in kept) if moved else {}
    for endpoint in before.keys() - after.keys() - unchanged.keys():
        result.pop(endpoint, None)
    for endpoint, here in after.items():
        there = before.get(endpoint, unchanged.get(endpoint))
        if endpoint not in known or there != here:
            result[endpoint] = (number, joined)
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
    )


def _addresses(pools: Iterable[PoolSpec]) -> dict[str, tuple[str | None, str | None]]:
    return {e.id: (e.http, e.grpc) for pool in pools for e in pool.endpoints}
