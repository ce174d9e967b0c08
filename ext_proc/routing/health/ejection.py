"""Ejection: replicas of one pool that fail are left alone for a while.

Rules:

1. A replica is closed (in use), ejected until some moment, or half open. A reason ejects it; when
   its time is over it is half open; ``GOOD_TO_CLOSE`` good answers there close it, one bad answer
   ejects it for twice as long, up to ``MAX_EJECTION_S``. Closed for twice the time that it was
   out, it starts anew.
2. Reasons: failures in a row, share of failures, slow first bytes, no sign of life with work in
   flight. Each is relative: nobody is ejected for what the median of its peers (the closed
   replicas of its variant) suffers as well. Peers of which nothing is known count as well.
3. At most ``max_percent`` of a variant is out or half open, but one replica of several may always
   be unless the share is 0; the only replica of a variant never is.
4. A half-open replica gets one request at a time; one whose result does not come is given up
   after the base time.
5. What arrives about an ejected replica changes nothing, but that a frozen one which answers is
   half open at once.
6. One record of fixed size per replica of the pool; who leaves is forgotten.

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
"""Results in the window below which a share says nothing."""
MIN_LATENCIES: Final = 20
"""First bytes below which a mean says nothing."""
_EVERY: Final = 8
"""Slowness is looked at once in so many answers."""
COMPARE_S: Final = 0.01
"""After peers were found to suffer as well, nobody is compared for so long: in an outage of a
large pool each failure would cost a look at all of it."""
LATER: Final = 0.2
"""Part of the time after which a replica counts as frozen in which all that stop stop together."""
FAST: Final = 0.5
"""Failures that come in less than this part of the peers' time to a first byte are fast."""
_RELATIVE: Final = 0.5
"""Peers whose share of failures is at least this part of one's own share the trouble."""


class Ejection:
    """Who of one pool is out; see the module's rules.

    Args:
        on_ejected: Hears of each ejection: the replica and why.
    """

    def __init__(self, on_ejected: Callable[[EndpointKey, Cause], None]) -> None:
        self._on_ejected = on_ejected
        self._records: dict[EndpointKey, EjectionRecord] = {}
        self._out: dict[EndpointKey, EjectionRecord] = {}
        """Those that are not closed."""
        self._rules: Outlier | None = None
        self._compared_at = NEVER

    def __bool__(self) -> bool:
        """Tell whether anybody is out or half open."""
        return bool(self._out)

    def set_pool(self, pool: Pool) -> None:
        """Take the pool's replicas and rules; what is known of those that stay is kept."""
        known, self._rules = self._records, pool.outlier
        self._records = {}
        for endpoint in pool.endpoints:
            record = known.get(endpoint.key)
            if record is None or record.variant != endpoint.variant:
                record = EjectionRecord(endpoint.variant)
            self._records[endpoint.key] = record
        self._out = {k: r for k, r in self._records.items() if r.phase is not Phase.CLOSED}

    def forget(self, key: EndpointKey) -> None:
        """Begin anew with a replica whose process is a new one."""
        record = self._records.get(key)
        if record is not None:
            self._records[key] = EjectionRecord(record.variant)
            self._out.pop(key, None)

    # --- What happened --------------------------------------------------------------------------

    def good(
        self, key: EndpointKey, first_byte_s: float | None, now: float, times: int = 1
    ) -> None:
        """Note an answer that is not the replica's failure, or some at once.

        Args:
            key: The replica.
            first_byte_s: From the request's dispatch to the answer's first byte, if known.
            now: Monotonic seconds.
            times: How many answers; ``first_byte_s`` is then their mean, and counts once.
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
            answered: It answered with an error; False = the connection failed or broke.
            after_s: From the request's dispatch to the first byte of the error, if known.
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
        """Note that a replica does something: a first byte, other numbers than before."""
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
        """Return the median logarithm of the peers' times to a first byte."""
        known = [one.first_s.log for one in self._peers(key, record) if one.first_s.count >= least]
        return median(known) if known else None

    # --- The passage of time --------------------------------------------------------------------

    def sweep(self, in_flight: Mapping[EndpointKey, int], now: float) -> None:
        """Look who is busy without a sign of life, about once a second.

        Args:
            in_flight: Requests of this pool's picker in flight on each replica.
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
            # A peer that went on for a while after this one stopped. It need not move now: all
            # clients may be waiting for this one.
            later = since + LATER * rules.frozen_after_s
            peers = self._peers(key, record)
            if not peers or any(one.alive_at > later for one in peers):
                self._try_eject(key, record, Cause.FROZEN, now)

    def barred(self, now: float) -> set[EndpointKey]:
        """Return who must not get a new request now."""
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
        """Note that a request goes to a replica; a half-open one gets no further one for now."""
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
        most = size * rules.max_percent // 100
        if size > 1 and rules.max_percent > 0:
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

    # --- Showing --------------------------------------------------------------------------------

    def phase(self, key: EndpointKey) -> Phase:
        """Return where a replica stands; an unknown one is closed."""
        record = self._records.get(key)
        return Phase.CLOSED if record is None else record.phase

    def cause(self, key: EndpointKey) -> Cause | None:
        """Return why a replica is out or half open, ``None`` where it is not."""
        record = self._out.get(key)
        return None if record is None else record.cause

    def out(self) -> Collection[EndpointKey]:
        """Return who is ejected or half open."""
        return self._out.keys()

    def sinkhole(self, key: EndpointKey) -> bool:
        """Tell whether a replica that is out failed faster than its peers answer."""
        record = self._out.get(key)
        return record is not None and record.sinkhole

    def describe(self, key: EndpointKey, now: float) -> dict[str, object]:
        """Return what is known of a replica, ready for JSON."""
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
