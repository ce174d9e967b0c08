"""The queue: requests that wait in the picker, as a state machine. Pure: time is an argument.

Rules:

1. A request joins, and then either leaves (its caller is gone), or is told once: a decision, or a
   refusal. Whatever happens to pools, replicas and limits, it is told at the latest by the first
   ``expire`` at or after its ``due``.
2. Of a pool those that wait are tried in this order: band, then the earliest of deadline and
   arrival + ``MOST_S``, then arrival. So without deadlines the first to come is the first to go.
3. Requests of one lane (model, variant, subset, lease ...) can all go where the first can: if it
   cannot, the others of its lane are not tried in this pass, and those of other lanes are. Beyond
   ``MAX_LANES`` lanes of a pool, further requests share one.
4. A request that joins waits at most until its deadline and for ``hold_s``. It is refused at once
   if it is expected to wait longer, or longer than the patience of its line, or if its pool and
   model have ``MAX_WAITING`` requests waiting, or all together ``MAX_BYTES``. In place of one of
   the band ``HIGH`` the last of ``LOW`` is refused.
5. The rate at which requests leave predicts waits (``line``). Refusals name the predicted wait,
   and say to come again after it, or up to half as late again. None of those that wait now will
   after ``MOST_S``, so a longer wait counts as that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from ext_proc.routing.queue.line import WaitLine
from ext_proc.routing.queue.waiting import MOST_S
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import HIGH, LOW

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.queue.waiting import QueuedRequest
    from ext_proc.routing.values.rng import Rng

MAX_WAITING: Final = 1024
"""Requests of one pool and model that wait in one picker process."""
MAX_BYTES: Final = 64 * 2**20
"""Bytes that all requests together hold that wait in one picker process, about."""
MAX_LANES: Final = 64
_SHARED: Final = "shared"

_Row = tuple[int, float, int, "QueuedRequest"]
"""Band, rank and number, the order in which requests are tried, and the request."""


class Queue:
    """The requests of one picker process that wait; see the module's rules.

    Args:
        rng: Source of randomness, so that refused callers do not come again together.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._lanes: dict[str, dict[Hashable, list[_Row]]] = {}
        """Requests in their order, by pool and lane; no lane is empty."""
        self.lines: dict[tuple[str, str], WaitLine] = {}
        """Lines by pool and model; none is empty."""
        self._due: list[tuple[float, int, QueuedRequest]] = []
        self._last = 0
        self.count = 0
        """Requests that wait."""
        self.bytes = 0
        """Bytes that they hold."""

    def __repr__(self) -> str:
        return f"<Queue count={self.count} bytes={self.bytes}>"

    # --- questions --------------------------------------------------------------------------------

    def waits(self, pool: str, model: str | None) -> bool:
        """Return whether requests of a pool and model wait."""
        return (pool, model or "") in self.lines

    def low_waits(self, pool: str, model: str | None) -> bool:
        """Return whether requests of the band `LOW` of a pool and model wait."""
        line = self.lines.get((pool, model or "")) if self.count else None
        return line is not None and line.by_band[LOW] > 0

    def blocks(self, waiting: QueuedRequest) -> bool:
        """Return whether others that can go where this one can are before it."""
        lane = self._lanes.get(waiting.pool, {}).get(waiting.lane)
        return lane is not None and lane[0][:2] <= (waiting.band, waiting.rank)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many requests wait, by pool and model."""
        return {key: line.count for key, line in self.lines.items()}

    def wait_s(self, pool: str, model: str | None, now: float, band: int = LOW) -> float | None:
        """Return how long a request that comes now is expected to wait; ``None`` = unknown."""
        line = self.lines.get((pool, model or ""))
        return None if line is None else line.wait_s(band, now)

    def rate(self, pool: str, model: str | None, now: float) -> float | None:
        """Return how many requests leave in a second; ``None`` = unknown."""
        line = self.lines.get((pool, model or ""))
        return None if line is None else line.rate(now)

    def describe(self, now: float) -> dict[str, object]:
        """Return what waits, ready for JSON."""
        return {
            "waiting": self.count,
            "bytes": self.bytes,
            "lines": [
                {"pool": pool, "model": model, **line.describe(now)}
                for (pool, model), line in self.lines.items()
            ],
        }

    def line(self, pool: str, model: str | None, now: float) -> dict[str, object]:
        """Return what waits of a pool and model, ready for JSON."""
        return (self.lines.get((pool, model or "")) or WaitLine()).describe(now)

    @property
    def next_due(self) -> float | None:
        """When the next wait ends, monotonic seconds; ``None`` if no request waits."""
        return self._due[0][0] if self._due else None

    # --- changes ----------------------------------------------------------------------------------

    def join(self, waiting: QueuedRequest, now: float) -> Refusal | None:
        """Let a request wait; a refusal says why it must not (rule 4).

        Args:
            waiting: The request.
            now: Monotonic seconds.
        """
        line = self.lines.get((waiting.pool, waiting.model)) or WaitLine()
        wait_s = line.wait_s(waiting.band, now)
        most_s = min(waiting.hold_s, MOST_S)
        left_s = most_s if waiting.deadline is None else min(most_s, waiting.deadline - now)
        # A wait that is not known is no reason to refuse.
        if left_s <= 0 or (wait_s is not None and wait_s > min(left_s, line.patience_s(now))):
            soon = left_s < most_s and (wait_s is None or wait_s > left_s)
            return self._again(_cannot_wait(waiting, left_s, wait_s, by_deadline=soon))
        if line.count >= MAX_WAITING or self.bytes + waiting.size > MAX_BYTES:
            last = self._last_of_low(waiting) if waiting.band == HIGH else None
            if last is None or self.bytes - last.size + waiting.size > MAX_BYTES:
                return self._again(_full(waiting.pool, wait_s))
            self._remove(last)
            last.told(self._again(_full(waiting.pool, wait_s)))
        self._last += 1
        waiting.number, waiting.due = self._last, now + left_s
        lanes = self._lanes.setdefault(waiting.pool, {})
        if waiting.lane not in lanes and len(lanes) >= MAX_LANES:
            waiting.lane = _SHARED
        insort(lanes.setdefault(waiting.lane, []), _row(waiting))
        insort(self._due, (waiting.due, waiting.number, waiting))
        line.joined(waiting.band, now)
        self.lines[waiting.pool, waiting.model] = line
        self.count += 1
        self.bytes += waiting.size
        return None

    def leave(self, waiting: QueuedRequest) -> bool:
        """Forget a request whose caller is gone; return whether it was waiting."""
        if not waiting.number:
            return False
        self._remove(waiting)
        return True

    def take(self, waiting: QueuedRequest, now: float) -> None:
        """Note that a replica takes a request; the caller tells it."""
        line = self.lines[waiting.pool, waiting.model]
        line.departed(now)
        self._remove(waiting)

    def pump(
        self, pool: str, attempt: Callable[[QueuedRequest], Decision | Refusal | None], now: float
    ) -> int:
        """Let go what can go of a pool; return how many requests were told.

        Args:
            pool: The pool's name.
            attempt: Decides a request; ``None`` = it cannot go now.
            now: Monotonic seconds.
        """
        told = self.expire(now)
        lanes = self._lanes.get(pool)
        if lanes is None:
            return told
        heads = [lane[0] for lane in lanes.values()]
        heapify(heads)
        while heads:
            waiting = heappop(heads)[-1]
            if not waiting.number:
                continue
            result = attempt(waiting)
            if result is None:
                continue
            if isinstance(result, Refusal):
                self._remove(waiting)
            else:
                self.take(waiting, now)
            told += 1
            waiting.told(result)
            if lane := lanes.get(waiting.lane):
                heappush(heads, lane[0])
        return told

    def pools(self) -> list[str]:
        """Return the pools of the requests that wait."""
        return list(self._lanes)

    def expire(self, now: float) -> int:
        """Refuse what has waited as long as it may; return how many were told."""
        told = 0
        while self._due and self._due[0][0] <= now:
            waiting = self._due[0][-1]
            wait_s = self.wait_s(waiting.pool, waiting.model, now, waiting.band)
            self._remove(waiting)
            told += 1
            waiting.told(self._again(_waited(waiting, now, wait_s)))
        return told

    def end(self, refusal: Refusal) -> None:
        """Refuse all that waits: the picker stops."""
        while self._due:
            waiting = self._due[0][-1]
            self._remove(waiting)
            waiting.told(refusal)

    def _last_of_low(self, waiting: QueuedRequest) -> QueuedRequest | None:
        """Return the last request of the band ``LOW`` in the line of another one."""
        rows = (row for lane in self._lanes.get(waiting.pool, {}).values() for row in lane)
        low = [row for row in rows if row[0] == LOW and row[-1].model == waiting.model]
        return max(low)[-1] if low else None

    def _again(self, refusal: Refusal) -> Refusal:
        """Set when a refused caller is to come again (rule 5)."""
        if refusal.wait_s is None:
            return refusal
        return replace(refusal, wait_s=min(refusal.wait_s, MOST_S) * (1 + self._rng.random() / 2))

    def _remove(self, waiting: QueuedRequest) -> None:
        lanes = self._lanes[waiting.pool]
        lane = lanes[waiting.lane]
        del lane[bisect_left(lane, _row(waiting))]
        if not lane:
            del lanes[waiting.lane]
            if not lanes:
                del self._lanes[waiting.pool]
        del self._due[bisect_left(self._due, (waiting.due, waiting.number, waiting))]
        line = self.lines[waiting.pool, waiting.model]
        line.left(waiting.band)
        if not line.count:
            del self.lines[waiting.pool, waiting.model]
        self.count -= 1
        self.bytes -= waiting.size
        waiting.number = 0


def _row(waiting: QueuedRequest) -> _Row:
    return waiting.band, waiting.rank, waiting.number, waiting


def _full(pool: str, wait_s: float | None) -> Refusal:
    return Refusal(
        RefusalKind.QUEUE_FULL,
        f"all replicas of pool {pool!r} are at their limit, and as many requests wait as may",
        wait_s=wait_s,
    )


def _cannot_wait(
    waiting: QueuedRequest, left_s: float, wait_s: float | None, *, by_deadline: bool
) -> Refusal:
    told = "" if wait_s is None else f"; the wait would be about {wait_s:.1f} s"
    if by_deadline:
        return Refusal(
            RefusalKind.DEADLINE_UNMET,
            f"no replica of pool {waiting.pool!r} is expected to take the request before its"
            f" deadline, in {max(left_s, 0):.1f} s{told}",
            wait_s=wait_s,
        )
    return Refusal(
        RefusalKind.SATURATED,
        f"all replicas of pool {waiting.pool!r} are at their limit{told}",
        wait_s=wait_s,
    )


def _waited(waiting: QueuedRequest, now: float, wait_s: float | None) -> Refusal:
    """Return why a request's wait ends without a replica."""
    waited_s = now - waiting.since
    last = waiting.refusal
    if last is not None and last.kind is not RefusalKind.SATURATED:
        return last
    if waiting.deadline is not None and waiting.deadline <= now:
        kind, why = RefusalKind.DEADLINE_PASSED, "until its deadline"
    else:
        kind, why = RefusalKind.SATURATED, f"at most {MOST_S:.0f} s"
    text = "all replicas are at their limit" if last is None else last.message
    return Refusal(kind, f"{text}; the request waited {waited_s:.1f} s ({why})", wait_s=wait_s)
