"""The sessions of rollouts as messages of the reports.

Rules:

1. Every ``CANARY_S`` each rollout is told, also where nothing is new: the control server takes a
   picker that tells nothing for longer as missing.
2. A report has at most ``MAX_RECORDS`` sessions; the next one follows at once with further ones.
   Until all are told, ``until_seconds`` stays what it was.
3. What was written in the last ``LOST_S`` before a stream ended may be lost, so it is told again on
   the next stream, as far as the rollout is still told of; at most ``MAX_AGAIN`` sessions of it.
4. A rollout that has ended is told of as before for some time (``ext_proc.canary``, rule
   5): what a guard ends within seconds has cost something, too.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.canary import CanarySessions
    from tidegate_api.fleet.v1 import report_pb2
    from tidegate_common.canary import SessionRecord

CANARY_S: Final = 5.0
MAX_RECORDS: Final = 512
"""About 2 ms, for which decisions wait; the wire allows 4,096."""
LOST_S: Final = 30.0
"""Seconds after which a control server that is gone is found, with a margin."""
MAX_AGAIN: Final = 16_384
_Rollout = tuple[str, str]
"""A pool and the id of its rollout."""


class CanaryReports:
    """What reports say of rollouts, on one stream after the other; see the module's rules.

    Args:
        running: The sessions of pools with a rollout that is told of, by pool; a live view.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        running: Mapping[str, CanarySessions],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._running = running
        self._clock = clock
        self._wall_clock = wall_clock
        self._due_at = float("-inf")
        self._until: dict[_Rollout, float] = {}
        """Unix time until which all is told."""
        self._again: dict[_Rollout, list[SessionRecord]] = {}
        """What is to be told again."""
        self._lately: deque[tuple[float, _Rollout, Sequence[SessionRecord]]] = deque()
        """What was told lately, and when."""
        self._kept = 0
        """Number of sessions in it."""
        self._added: list[tuple[CanarySessions, _Rollout, list[SessionRecord]]] = []

    def begin(self) -> None:
        """Begin a new stream: tell again what may be lost."""
        self._due_at, self._added = float("-inf"), []
        self._forget()
        for _, key, records in self._lately:
            self._again.setdefault(key, []).extend(records)
        self._lately.clear()
        self._kept = 0

    @property
    def due(self) -> bool:
        """Whether the next report is to have what ``add`` adds."""
        now = self._clock()
        for each in self._running.values():
            each.settle(now)
        return now >= self._due_at and any(each.rollout for each in self._running.values())

    def add(self, report: report_pb2.PickerReport) -> None:
        """Add what is new, or may be lost, to a report."""
        left, unix_s, whole = MAX_RECORDS, self._wall_clock(), True
        self._added = []
        runs = {
            (pool, each.rollout): each
            for pool, each in self._running.items()
            if each.rollout is not None
        }
        self._again = {key: each for key, each in self._again.items() if key in runs}
        self._until = {key: each for key, each in self._until.items() if key in runs}
        for key, sessions in runs.items():
            records = [*self._again.get(key, ()), *sessions.untold()]
            told = records[:left]
            left -= len(told)
            if len(told) == len(records) or key not in self._until:
                self._until[key] = unix_s
            whole = whole and len(told) == len(records)
            self._added.append((sessions, key, told))
            message = report.canaries.add(
                pool=key[0],
                rollout=key[1],
                limit=sessions.limit,
                until_seconds=self._until[key],
            )
            for each in told:
                _write(message.sessions.add(), each)
        self._due_at = self._clock() + CANARY_S if whole else float("-inf")

    def sent(self) -> None:
        """Note that the report was written: what was added is told."""
        now = self._clock()
        for sessions, key, told in self._added:
            again = self._again.pop(key, [])
            if len(again) > len(told):
                self._again[key] = again[len(told) :]
            sessions.told(told[len(again) :])
            if told:
                self._lately.append((now, key, told))
                self._kept += len(told)
        self._added = []
        self._forget()

    def _forget(self) -> None:
        oldest = self._clock() - LOST_S
        while self._lately and (self._lately[0][0] < oldest or self._kept > MAX_AGAIN):
            self._kept -= len(self._lately.popleft()[2])


def _write(message: report_pb2.CanarySession, record: SessionRecord) -> None:
    message.digest, message.begun_unix_ms = record.digest, record.begun_ms
    message.step, message.canary = record.step, record.canary
    first, failure = record.first, record.failure
    if first is not None:
        message.first.minute, message.first.stratum = first.minute, first.stratum
        message.first.times.update(dict(first.times))
        if first.short is not None:
            message.first.short = first.short
    if failure is not None:
        message.failure.minute, message.failure.step = failure.minute, failure.step
        message.failure.SetInParent()
