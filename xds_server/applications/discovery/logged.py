"""What is logged of membership: holds and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.applications.discovery.replica import Hold
    from xds_server.fleet.members.members import Member

MAX_IDS: Final = 10
"""Most ids of one list in a log line."""

_log = structlog.get_logger(__name__)


def log_hold(pool: str, before: tuple[str, ...], hold: Hold | None, remedy: str) -> None:
    """Log the hold of a pool if it is not of the replicas ``before``."""
    if before == (() if hold is None else hold.ids):
        return
    if hold is None:
        _log.info("membership_released", pool=pool)
        return
    _log.error(
        "membership_held",
        pool=pool,
        vanished=len(hold.ids),
        of=hold.of,
        endpoints=hold.ids[:MAX_IDS],
        remedy=remedy,
    )


def log_nothing(pool: str, before: str, now: str) -> None:
    """Log that a pool has no replica that takes work, again if the reason is another; or its end.

    Args:
        pool: The pool.
        before: Why it had none; empty = it had one.
        now: Why it has none.
    """
    if now and now != before:
        _log.error("pool_without_replicas", pool=pool, reason=now)
    elif before and not now:
        _log.info("pool_with_replicas", pool=pool)


def log_changes(
    before: Mapping[str, tuple[Member, ...]], after: Mapping[str, tuple[Member, ...]]
) -> None:
    """Log of each pool which members have joined, begun to drain, and left."""
    for name in {**before, **after}:
        was = dict(_states(before.get(name, ())))
        now = dict(_states(after.get(name, ())))
        changed = {i: state for i, state in now.items() if was.get(i) != state}
        gone = [i for i in was if i not in now]
        if changed or gone:
            _log.info(
                "membership_changed",
                pool=name,
                active=[i for i, s in changed.items() if not s.endswith("draining")][:MAX_IDS],
                draining=[i for i, s in changed.items() if s.endswith("draining")][:MAX_IDS],
                removed=gone[:MAX_IDS],
                members=len(now),
            )


def _states(members: tuple[Member, ...]) -> Iterator[tuple[str, str]]:
    for member in members:
        state = "draining" if member.spec.draining else "active"
        yield member.spec.id, f"{member.incarnation} {state}"
