"""What operations on models come to: how many are open, since when, and what they have left. Pure.

Rules:

1. A dry run is none of them.
2. A replica that could not be brought back counts until a later operation on the same model there
   is done, the fleet has the replica no more, or the operation that left it is not kept any more.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from xds_server.observability import OperationsNow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xds_server.applications.loading.operation import Operation


def operations_now(
    operations: Iterable[Operation], now_unix_ms: int, in_fleet: Callable[[str, str], bool]
) -> OperationsNow:
    """Return what operations come to at a moment.

    Args:
        operations: All that are kept, in any order.
        now_unix_ms: The moment, Unix milliseconds.
        in_fleet: Whether a pool has a replica, by name and id.
    """
    wanted = sorted((each for each in operations if not each.dry_run), key=lambda op: op.number)
    still_open = [each for each in wanted if not each.ended]
    running = [each for each in still_open if each.phase != "waiting"]
    left = {place for place in _left(wanted) if in_fleet(place[0], place[2])}

    def ages(since: Iterable[int]) -> float | None:
        oldest = min(since, default=None)
        return None if oldest is None else max(0, now_unix_ms - oldest) / 1000

    return OperationsNow(
        waiting=len(still_open) - len(running),
        running=len(running),
        age_s=ages(each.began_unix_ms for each in still_open),
        still_s=ages(_newest_step(each) for each in running),
        left=Counter(pool for pool, _, _ in left),
    )


def _left(operations: Iterable[Operation]) -> set[tuple[str, str, str]]:
    """Return pool, model and id of the replicas that could not be brought back."""
    found: set[tuple[str, str, str]] = set()
    for each in operations:
        places = {(each.pool, each.model, target.id): target.place for target in each.targets}
        if each.phase == "done":
            found -= places.keys()
        elif each.phase == "failed":
            found |= {key for key, place in places.items() if place == "stuck"}
    return found


def _newest_step(operation: Operation) -> int:
    return operation.steps[-1].at_unix_ms if operation.steps else operation.began_unix_ms
