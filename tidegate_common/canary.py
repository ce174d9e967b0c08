"""What pickers tell the control server of the sessions of a rollout. Pure.

Rules:

1. A session is known by a digest. Several workers and pickers may see requests of one session, and
   each tells what it saw. ``earlier`` merges two such records: what happened first is kept. It is
   associative and commutative, and a record merged with itself is that record; so a report that
   comes twice, late, or from a picker that was restarted changes nothing.
2. ``sampled`` says whether a session is in a sample. Samples of smaller limits are parts of those
   of larger ones, and independent of the arm, which another hash draws.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ALL: Final = 1 << 32
"""The limit of a sample that has all sessions."""
KINDS: Final = ("first-token", "per-token", "whole")
"""Kinds of times: to the first token, for each token after it, to the end."""
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class FirstRequest(NamedTuple):
    """The first request of a session, when it has ended."""

    minute: int
    """Minutes since 1970 at its end."""
    stratum: str
    """Its form and about how many tokens were not cached."""
    times: tuple[tuple[str, int], ...]
    """Buckets of ``fine_histogram`` by kind of time."""
    short: bool | None = None
    """Whether fewer tokens were cached than predicted; ``None`` = none predicted, or not told."""


class SessionFailure(NamedTuple):
    """The first failure of a session."""

    minute: int
    """Minutes since 1970."""
    step: int
    """Number of the step in force when the failing request was picked."""


class SessionRecord(NamedTuple):
    """A session of a rollout, as one worker saw it."""

    digest: int
    """64 bits."""
    begun_ms: int
    """Milliseconds since 1970 at which its first request was picked."""
    step: int
    """Number of the step in force then."""
    canary: bool
    first: FirstRequest | None = None
    """``None`` = it has not ended, or is not known."""
    failure: SessionFailure | None = None


def sampled(digest: int, limit: int) -> bool:
    """Return whether a session is in the sample of a limit, 0 to ``ALL``."""
    return ((digest * _MIX) & _MASK) >> 32 < limit


def earlier(one: SessionRecord, other: SessionRecord) -> SessionRecord:
    """Return what both records of one session tell together."""
    first = min(one, other, key=_order)
    failures = [each.failure for each in (one, other) if each.failure is not None]
    return first._replace(failure=min(failures, default=None))


def _order(record: SessionRecord) -> tuple[object, ...]:
    # The same beginning is that of the same worker: the record that knows more is the later one.
    first = record.first
    known = () if first is None else (*first[:3], -1 if first.short is None else int(first.short))
    return record.begun_ms, record.step, record.canary, first is None, known
