"""Ejection: outlier detection that keeps failing replicas of a pool from new work for a while.

Rules:

1. A replica is closed (in use), ejected until some time, or half open. A cause (rule 2) ejects it.
   When its ejection ends it is half open; there ``GOOD_TO_CLOSE`` good answers close it, and one
   bad answer ejects it for twice as long, up to ``MAX_EJECTION_S``. The doubling is reset after it
   was closed for twice the time of its last ejection.
2. Causes: consecutive failures, failure share, slow first bytes, no progress with work in flight.
   Each is relative: a replica is not ejected if the median of its peers (the closed replicas of its
   variant) is affected as well. Peers without results count as healthy.
3. At most ``max_ejection_percent`` of a variant is ejected or half open. One replica of several may
   always be, unless the share is 0; the only replica of a variant never is.
4. A half-open replica gets one request at a time; a request without a result is given up after the
   base time.
5. Results of an ejected replica are ignored, except that a frozen replica which answers is half
   open at once.
6. There is one record of fixed size per replica of the pool; a removed replica's is dropped.

Source: Envoy's outlier detection (consecutive failures, failure percentage, maximum share) and the
circuit breaker of M. Nygard's "Release It!" (half open).
"""

from __future__ import annotations

from math import log
from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.ejection_record import CLOSED, NEVER, Cause, EjectionRecord, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.settings import Outlier

MAX_EJECTION_S: Final = 300.0
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
FAST: Final = 0.5
"""Failures are fast if they take less than this share of the peers' time to the first byte."""
_RELATIVE: Final = 0.5
"""Peers are affected as well if their failure share is at least this part of the replica's own."""


class Ejection:
    """The ejections of one pool; see the module's rules.

    Args:
        on_ejected: Called with each ejected replica and the cause.
    """

    def __init__(self, on_ejected: Callable[[EndpointKey, Cause], None]) -> None:
        self._on_ejected = on_ejected
        self._records: dict[EndpointKey, EjectionRecord] = {}
        self._out: dict[EndpointKey, EjectionRecord] = {}
        """Records that are not closed."""
        self._rules: Outlier | None = None
        self._compared_at = NEVER

    def __bool__(self) -> bool:
        """Whether any replica is ejected or half open."""
        return bool(self._out)

    def set_pool(self, pool: Pool) -> None:
        """Set the pool's replicas and outlier settings; records of replicas that stay are kept."""
        known, self._rules = self._records, pool.outlier
        self._records = {}
        for endpoint in pool.endpoints:
            record = known.get(endpoint.key)
            if record is None or record.variant != endpoint.variant:
                record = EjectionRecord(endpoint.variant)
            self._records[endpoint.key] = record
        self._out = {k: r for k, r in self._records.items() if r.phase is not Phase.CLOSED}

    def forget(self, key: EndpointKey) -> None:
        """Reset the record of a replica whose process was restarted."""
        record = self._records.get(key)
        if record is not None:
            self._records[key] = EjectionRecord(record.variant)
            self._out.pop(key, None)

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
                    self._close(key, record, now)
            return
        record.row = record.refused = 0
        record.count(now, rules.interval_s, good=times)
        if first_byte_s is not None:
            self._time(key, record, first_byte_s, now)

    def bad(
        self, key: EndpointKey, now: float, *, answered: bool, after_s: float | None = None
    ) -> None:
        """Note a failure of the replica.

        Args:
            key: The replica.
            now: Monotonic seconds.
            answered: Whether it answered with an error; False = the connection failed or broke.
            after_s: Seconds from the request's dispatch to the first byte of the error, if known.
        """
        record, rules = self._records.get(key), self._rules
        if record is None or rules is None or record.phase is Phase.EJECTED:
            return
        if answered:
            record.alive_at = now
        if after_s is not None:
            record.failed_s.put(after_s)
        record.row += 1
        record.refused += not answered
        record.count(now, rules.interval_s, bad=1)
        cause = Cause.FAILURES if record.refused else Cause.DEAD_BACKEND
        if record.phase is Phase.HALF_OPEN:
            self._eject(key, record, cause, now)
            return
        share = record.share() or 0.0
        in_row = record.row >= rules.consecutive_failures
        many = 0.0 < rules.failure_percent <= share * 100.0
        if not in_row and not (many and record.good + record.bad >= MIN_SAMPLES):
            return
        if now - self._compared_at < COMPARE_S:
            return
        peers = [one.share() or 0.0 for one in self._peers(key, record)]
        if peers and median(peers) >= _RELATIVE * (1.0 if in_row else share):
            self._compared_at = now
            return
        self._try_eject(key, record, cause if in_row else Cause.RATIO, now)

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

    def _usual_log_s(self, key: EndpointKey, record: EjectionRecord, least: int) -> float | None:
        """Return the median logarithm of the peers' times to the first byte."""
        known = [one.first_s.log for one in self._peers(key, record) if one.first_s.count >= least]
        return median(known) if known else None

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
        for key, record in self._records.items():
            if not in_flight.get(key):
                record.busy_since = None
                continue
            if record.busy_since is None:
                record.busy_since = now
            since = max(record.busy_since, record.alive_at)
            if record.phase is not Phase.CLOSED or not 0.0 < rules.frozen_after_s <= now - since:
                continue
            # A peer must have made progress for a while after this replica stopped. It need not
            # make progress now, because all clients may be waiting for this replica.
            later = since + LATER * rules.frozen_after_s
            peers = self._peers(key, record)
            if not peers or any(one.alive_at > later for one in peers):
                self._try_eject(key, record, Cause.FROZEN, now)

    def barred(self, now: float) -> set[EndpointKey]:
        """Return the replicas that must not get a new request now."""
        barred: set[EndpointKey] = set()
        for key, record in self._out.items():
            if record.phase is Phase.EJECTED:
                if now < record.until:
                    barred.add(key)
                else:
                    self._half_open(key, record)
            elif now < record.until:
                barred.add(key)
        return barred

    def picked(self, key: EndpointKey, now: float) -> None:
        """Note that a request is sent to a replica; a half-open one then gets no other for now."""
        record = self._out.get(key)
        if record is not None and record.phase is Phase.HALF_OPEN and self._rules is not None:
            record.until = now + self._rules.base_ejection_s

    # --- Phases ---------------------------------------------------------------------------------

    def _peers(self, key: EndpointKey, record: EjectionRecord) -> list[EjectionRecord]:
        return [
            one
            for other, one in self._records.items()
            if other != key and one.variant == record.variant and one.phase is Phase.CLOSED
        ]

    def _try_eject(
        self, key: EndpointKey, record: EjectionRecord, cause: Cause, now: float
    ) -> None:
        rules = self._rules
        if rules is None:
            return
        size = sum(1 for one in self._records.values() if one.variant == record.variant)
        out = sum(1 for one in self._out.values() if one.variant == record.variant)
        most = size * rules.max_ejection_percent // 100
        if size > 1 and rules.max_ejection_percent > 0:
            most = max(most, 1)
        if out < min(most, size - 1):
            self._eject(key, record, cause, now)

    def _eject(self, key: EndpointKey, record: EjectionRecord, cause: Cause, now: float) -> None:
        rules = self._rules
        if rules is None:
            return
        if record.phase is Phase.CLOSED and now - record.closed_at > 2.0 * record.span_s:
            record.times = 0
        longest = max(MAX_EJECTION_S, rules.base_ejection_s)
        record.span_s = min(rules.base_ejection_s * 2.0 ** min(record.times, 32), longest)
        record.times += 1
        if record.phase is Phase.CLOSED:
            usual = self._usual_log_s(key, record, 1)
            record.sinkhole = (
                record.failed_s.count > 0
                and usual is not None
                and record.failed_s.log < usual + log(FAST)
            )
        record.phase, record.cause, record.until = Phase.EJECTED, cause, now + record.span_s
        self._out[key] = record
        self._on_ejected(key, cause)

    def _half_open(self, key: EndpointKey, record: EjectionRecord) -> None:
        record.phase, record.until, record.good_row = Phase.HALF_OPEN, NEVER, 0
        self._out[key] = record

    def _close(self, key: EndpointKey, record: EjectionRecord, now: float) -> None:
        record.phase, record.cause, record.closed_at = Phase.CLOSED, None, now
        record.row = record.refused = 0
        record.first_s.clear()
        record.failed_s.clear()
        record.sinkhole = False
        record.good = record.bad = 0.0
        record.busy_since = None
        del self._out[key]

    # --- State ----------------------------------------------------------------------------------

    def phase(self, key: EndpointKey) -> Phase:
        """Return the phase of a replica; an unknown one is closed."""
        record = self._records.get(key)
        return Phase.CLOSED if record is None else record.phase

    def cause(self, key: EndpointKey) -> Cause | None:
        """Return why a replica is ejected or half open, ``None`` if it is closed."""
        record = self._out.get(key)
        return None if record is None else record.cause

    def out(self) -> Collection[EndpointKey]:
        """Return the replicas that are ejected or half open."""
        return self._out.keys()

    def sinkhole(self, key: EndpointKey) -> bool:
        """Return whether an ejected or half-open replica failed faster than its peers answer."""
        record = self._out.get(key)
        return record is not None and record.sinkhole

    def describe(self, key: EndpointKey, now: float) -> dict[str, object]:
        """Return the record of a replica, ready for JSON."""
        record = self._records.get(key)
        if record is None:
            return {}
        share = record.share()
        return {
            "phase": str(record.phase),
            "cause": None if record.cause is None else str(record.cause),
            "ejected_for_s": (
                round(max(0.0, record.until - now), 3) if record.phase is Phase.EJECTED else None
            ),
            "ejections": record.times,
            "failures_in_row": record.row,
            "failure_share": None if share is None else round(share, 3),
            "failed_after_s": record.failed_s.rounded(4),
        }
