"""Circuit breakers of one pool's replicas: their phases, and how many may be ejected.

Rules:

1. A replica is closed (in use), ejected until some time, or half open, as it is when its ejection
   ends. Each ejection lasts twice as long as the one before, up to ``MAX_EJECTION_S``. The doubling
   is reset after the replica was closed for twice the time of its last ejection.
2. At most ``max_ejection_percent`` of a variant is ejected or half open. One replica of several may
   always be, unless the share is 0; the only replica of a variant never is.
3. A half-open replica gets one request at a time; a request without a result is given up after the
   base time.
4. There is one record of fixed size per replica of the pool; a removed replica's is dropped.

Source: the circuit breaker of M. Nygard's "Release It!" (half open).
"""

from __future__ import annotations

from math import log
from statistics import median
from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.ejection_record import NEVER, Cause, EjectionRecord, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.settings import Outlier

MAX_EJECTION_S: Final = 300.0
FAST: Final = 0.5
"""Failures are fast if they take less than this share of the peers' time to the first byte."""


class Breakers:
    """The circuit breakers of one pool; see the module's rules.

    Args:
        on_ejected: Called with each ejected replica and the cause.
    """

    def __init__(self, on_ejected: Callable[[EndpointKey, Cause], None]) -> None:
        self._on_ejected = on_ejected
        self._records: dict[EndpointKey, EjectionRecord] = {}
        self._out: dict[EndpointKey, EjectionRecord] = {}
        """Records that are not closed."""
        self._rules: Outlier | None = None

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

    def _usual_log_s(self, key: EndpointKey, record: EjectionRecord, least: int) -> float | None:
        """Return the median logarithm of the peers' times to the first byte."""
        known = [one.first_s.log for one in self._peers(key, record) if one.first_s.count >= least]
        return median(known) if known else None

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

    def _size(self, record: EjectionRecord) -> int:
        """Return the number of replicas of a replica's variant."""
        return sum(1 for one in self._records.values() if one.variant == record.variant)

    def _try_eject(
        self, key: EndpointKey, record: EjectionRecord, cause: Cause, now: float
    ) -> None:
        rules = self._rules
        if rules is None:
            return
        size = self._size(record)
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
        record.end_row()
        self._out[key] = record

    def _close(self, key: EndpointKey, record: EjectionRecord, now: float) -> None:
        record.phase, record.cause, record.closed_at = Phase.CLOSED, None, now
        record.end_row()
        record.silent_at = NEVER
        record.first_s.clear()
        record.failed_s.clear()
        record.sinkhole = False
        record.good = record.bad = 0.0
        record.experiments.clear()
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

    def answered_since(self, key: EndpointKey, since: float) -> bool | None:
        """Return whether a replica gave a good answer since then; ``None`` if it is not known."""
        record = self._records.get(key)
        if record is None:
            return None
        return (record.good_at if record.row else record.at) >= since

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
