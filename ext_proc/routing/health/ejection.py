"""Ejection: outlier detection that keeps failing replicas of a pool from new work for a while.

Rules:

1. A cause (rule 2) ejects a closed replica. In the half-open phase ``GOOD_TO_CLOSE`` good answers
   close it, and one bad answer ejects it again. The phases are those of ``breakers``.
2. Causes: consecutive failures, failure share, slow first bytes, no progress with work in flight.
   Each is relative: a replica is not ejected if the median of its peers (the closed replicas of its
   variant) is affected as well. Peers without results count as healthy, except in rule 4.
3. Results of an ejected replica are ignored, except that a frozen replica which answers is half
   open at once.
4. A failure that its request may have caused is counted once per origin (``failing_origins``).
   Anonymous failures count each. Such failures eject only with those of at least ``MIN_ORIGINS``
   origins, or where another replica answered one of these origins well; only if peers that had
   results since then are not affected; only if they are improbable for a replica that is well, as
   failures are at its peers; and only if no good answer is found for longer than the log may hold
   one back. Failures in a row must go on without a good answer besides, while peers give good ones:
   ``silence`` measures it by the pool's answers, ``EjectionRecord.suffices`` by the time in which
   the replica used to give ``QUIET_ANSWERS``. So one caller ejects nothing, and failures of several
   among the good answers to others eject nothing.
5. After false alarms (``pool_results``) failures must go on for longer, in the whole pool. So an
   adversary that meets a gap between good answers by chance has few attempts.
6. Rows of enough failures wait for a verdict. Decisions give it, at the latest ``WAIT_S`` after the
   last result.
7. An attempt that our bound on the time to a first answer ended is no failure. It is work without
   progress since it began, for a frozen replica.

Source: Envoy's outlier detection (consecutive failures, failure percentage, maximum share).
"""

from __future__ import annotations

from math import log
from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.blame.origins import ANONYMOUS
from ext_proc.routing.health.breakers import Breakers
from ext_proc.routing.health.ejection_record import (
    CLOSED,
    MIN_ORIGINS,
    Cause,
    EjectionRecord,
    Phase,
)
from ext_proc.routing.health.failing_origins import FailingOrigins, Recurrence
from ext_proc.routing.health.pool_results import PoolResults, is_improbable
from ext_proc.routing.health.silence import LOG_DELAY_S, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.pool import EndpointKey

GOOD_TO_CLOSE: Final = 2
MIN_SAMPLES: Final = 10.0
"""Minimum number of results in the window to judge the failure share."""
MIN_LATENCIES: Final = 20
"""Minimum number of first bytes to judge the latency."""
_EVERY: Final = 8
"""The latency is judged at every n-th answer."""
COMPARE_S: Final = 0.01
"""Seconds without further comparisons after the peers were found to be affected as well: in an
outage of a large pool each failure would otherwise cost a pass over the whole pool."""
LATER: Final = 0.2
"""Share of ``frozen_after_s`` within which replicas that stop count as stopped together."""
WAIT_S: Final = 5.0
_RELATIVE: Final = 0.5
"""Peers are affected as well if their failure share is at least this part of the replica's own."""


class Ejection(Breakers):
    """The ejections of one pool; the arguments are those of ``Breakers``."""

    def __init__(self, on_ejected: Callable[[EndpointKey, Cause], None]) -> None:
        super().__init__(on_ejected)
        self._compared_at = NEVER
        self._failing = FailingOrigins()
        self._pool = PoolResults()
        self._waiting: dict[EndpointKey, EjectionRecord] = {}
        """Replicas with rows of enough failures that requests may have caused."""

    def __bool__(self) -> bool:
        """Whether any replica is ejected or half open, or waits for a verdict."""
        return bool(self._out or self._waiting)

    @property
    def failing(self) -> bool:
        """Whether any origin fails, so that picks and good answers should name theirs."""
        return bool(self._failing)

    # --- Results --------------------------------------------------------------------------------

    def good(
        self, key: EndpointKey, first_byte_s: float | None, now: float, times: int = 1
    ) -> None:
        """Note one or several answers that are not failures of the replica.

        Args:
            key: The replica.
            first_byte_s: Seconds from the request's dispatch to the answer's first byte, if known.
            now: Monotonic seconds.
            times: Number of answers; ``first_byte_s`` is then their mean, and counts once.
        """
        record, rules = self._records.get(key), self._rules
        if record is None or rules is None:
            return
        if record.phase is CLOSED:
            record.alive_at = now
        else:
            self._alive(key, record, now)
            if record.phase is Phase.HALF_OPEN:
                record.good_row += times
                record.until = NEVER
                if record.good_row >= GOOD_TO_CLOSE:
                    if record.cause is Cause.DEAD_BACKEND and record.times == 1:
                        self._pool.alarm(now)
                    self._close(key, record, now)
                    record.silence.resume(self._pool)
            return
        if record.row:
            if record.in_doubt >= rules.consecutive_failures:
                self._pool.alarm(now)
            record.end_row()
        record.silence.answered(self._pool, times)
        record.count(now, rules.interval_s, good=times)
        if first_byte_s is not None:
            self._time(key, record, first_byte_s, now)

    def bad(
        self,
        key: EndpointKey,
        now: float,
        *,
        answered: bool,
        after_s: float | None = None,
        origin: int | None = None,
    ) -> None:
        """Note a failure of the replica.

        Args:
            key: The replica.
            now: Monotonic seconds.
            answered: Whether it answered with an error; False = the connection failed or broke.
            after_s: Seconds from the request's dispatch to the first byte of the error, if known.
            origin: The origin whose request may have caused it; ``None`` = no request can have.
        """
        record, rules = self._records.get(key), self._rules
        if record is None or rules is None or record.phase is Phase.EJECTED:
            return
        if answered:
            record.alive_at = now
        if after_s is not None:
            record.failed_s.put(after_s)
        if origin is None or origin == ANONYMOUS:
            recurrence = Recurrence.FIRST
        else:
            recurrence = self._failing.failed(origin, key, now, rules.interval_s)
        if recurrence is Recurrence.FIRST:
            record.fail(now, origin, self._pool)
            record.refused += not answered
            record.count(now, rules.interval_s, bad=1)
        elif recurrence is Recurrence.AGAIN and record.row:
            record.again += 1
        if record.phase is Phase.HALF_OPEN:
            self._failed_half_open(key, record, now)
        elif recurrence is not Recurrence.ALIKE:
            self._judge(key, record, now, certain=origin is None)
            if record.in_doubt >= rules.consecutive_failures and record.phase is CLOSED:
                self._waiting[key] = record

    def _failed_half_open(self, key: EndpointKey, record: EjectionRecord, now: float) -> None:
        if record.row > record.in_doubt or record.proven or record.of_several():
            cause = Cause.FAILURES if record.refused else Cause.DEAD_BACKEND
            self._eject(key, record, cause, now)
        else:  # another origin's request decides
            record.until = NEVER

    def _judge(
        self, key: EndpointKey, record: EjectionRecord, now: float, *, certain: bool
    ) -> None:
        """Eject a closed replica after a failure, if there is a cause.

        Args:
            key: The replica.
            record: Its record.
            now: Monotonic seconds.
            certain: No request can have caused the failure.
        """
        rules = self._rules
        if rules is None or now - self._compared_at < COMPARE_S:
            return
        share, least = record.share() or 0.0, rules.consecutive_failures
        in_row = certain_row = record.row - record.in_doubt >= least
        if not in_row and record.in_doubt:
            in_row = record.is_sudden(now, least, self._pool)
            in_row = in_row or record.suffices(now, least, rules.interval_s, self._pool)
        many = 0.0 < rules.failure_percent <= share * 100.0
        many = many and record.good + record.bad >= MIN_SAMPLES
        if many and not in_row and not certain:
            # Good answers of that time must be in by now.
            since = now - LOG_DELAY_S
            several = record.of_several() and record.row_at <= since
            many = several or self._failing.count(key, since) >= MIN_ORIGINS
        if not in_row and not many:
            return
        peers = self._peers(key, record)
        if not certain and not certain_row:
            since = record.row_at if in_row else now - rules.interval_s
            peers = [one for one in peers if one.at >= since]
            if not peers and not record.proven:
                return
        affected = median([one.share() or 0.0 for one in peers]) if peers else 0.0
        if peers and affected >= _RELATIVE * (1.0 if in_row else share):
            self._compared_at = now
            return
        if not in_row and not certain and not is_improbable(record.bad, record.good, affected):
            return
        cause = Cause.FAILURES if record.refused else Cause.DEAD_BACKEND
        self._try_eject(key, record, cause if in_row else Cause.RATIO, now)

    def _judge_waiting(self, now: float) -> None:
        least = self._rules.consecutive_failures if self._rules else 0
        for key, record in list(self._waiting.items()):
            stale = now - record.at > WAIT_S or record is not self._records.get(key)
            if stale or not record.in_doubt or record.phase is not CLOSED:
                del self._waiting[key]
            elif record.is_sudden(now, least, self._pool):
                self._judge(key, record, now, certain=False)

    def barred(self, now: float) -> set[EndpointKey]:
        """Return the replicas that must not get a new request now."""
        if self._waiting:
            self._judge_waiting(now)
        return super().barred(now)

    def well(self, key: EndpointKey, origin: int, now: float) -> None:
        """Note that a replica answered an origin well; it may convict another one.

        Args:
            key: The replica.
            origin: The origin.
            now: Monotonic seconds.
        """
        rules = self._rules
        if rules is None or not self._failing:
            return
        least = rules.consecutive_failures
        convicted = self._failing.well(origin, key, now, rules.interval_s, least)
        record = None if convicted is None else self._records.get(convicted)
        if convicted is None or record is None or record.phase is Phase.EJECTED or not record.row:
            return
        record.proven = True
        if record.phase is Phase.HALF_OPEN:
            self._failed_half_open(convicted, record, now)
        else:
            self._judge(convicted, record, now, certain=False)

    def avoided(self, origin: int, now: float) -> EndpointKey | None:
        """Return the replica to which the next request of an origin should not be sent."""
        rules = self._rules
        if rules is None:
            return None
        return self._failing.avoided(origin, now, rules.interval_s, rules.consecutive_failures)

    def kept_waiting(self, key: EndpointKey, waited_s: float, now: float) -> None:
        """Note that an attempt was ended by our bound on the time to a first answer.

        Args:
            key: The replica.
            waited_s: Seconds for which the attempt waited.
            now: Monotonic seconds.
        """
        record = self._records.get(key)
        if record is None or record.alive_at > now - waited_s:
            return
        if record.silent_at <= record.alive_at:
            record.silent_at = now - waited_s
        if record.phase is Phase.HALF_OPEN and record.cause is Cause.FROZEN:
            self._eject(key, record, Cause.FROZEN, now)

    def alive(self, key: EndpointKey, now: float) -> None:
        """Note that a replica makes progress: a first byte, or changed readings."""
        record = self._records.get(key)
        if record is not None:
            self._alive(key, record, now)

    def _alive(self, key: EndpointKey, record: EjectionRecord, now: float) -> None:
        record.alive_at = now
        if record.phase is CLOSED:
            return
        if record.phase is Phase.EJECTED and record.cause is Cause.FROZEN:
            self._half_open(key, record)

    def _time(
        self, key: EndpointKey, record: EjectionRecord, first_byte_s: float, now: float
    ) -> None:
        first, rules = record.first_s, self._rules
        first.put(first_byte_s)
        if rules is None or rules.latency_factor <= 0.0:
            return
        if first.count < MIN_LATENCIES or first.count % _EVERY:
            return
        usual = self._usual_log_s(key, record, MIN_LATENCIES)
        if usual is not None and first.log > usual + log(rules.latency_factor):
            self._try_eject(key, record, Cause.SLOW, now)

    # --- Time -----------------------------------------------------------------------------------

    def sweep(self, in_flight: Mapping[EndpointKey, int], now: float) -> None:
        """Eject busy replicas that make no progress; call about once a second.

        Args:
            in_flight: This picker's requests in flight on each replica.
            now: Monotonic seconds.
        """
        rules = self._rules
        if rules is None:
            return
        self._failing.expire(now, rules.interval_s)
        for key, record in self._records.items():
            silent = record.silent_at > record.alive_at
            if not silent and not in_flight.get(key):
                record.busy_since = None
                continue
            if record.busy_since is None:
                record.busy_since = now
            if silent:
                record.busy_since = min(record.busy_since, record.silent_at)
            since = max(record.busy_since, record.alive_at)
            if record.phase is not Phase.CLOSED or not 0.0 < rules.frozen_after_s <= now - since:
                continue
            # A peer must have made progress for a while after this replica stopped. It need not
            # make progress now, because all clients may be waiting for this replica.
            later = since + LATER * rules.frozen_after_s
            peers = self._peers(key, record)
            if not peers or any(one.alive_at > later for one in peers):
                self._try_eject(key, record, Cause.FROZEN, now)
