"""Ejection: outlier detection that keeps failing replicas of a pool from new work for a while.

Rules:

1. A cause (rule 2) ejects a closed replica. In the half-open phase ``GOOD_TO_CLOSE`` good answers
   close it, and one bad answer ejects it again.
2. Causes: consecutive failures, failure share, slow first bytes, no progress with work in flight.
   Each is relative: a replica is not ejected if the median of its peers (the closed replicas of its
   variant) is affected as well. Peers without results count as healthy, except in rule 4.
3. Results of an ejected replica are ignored, except that a frozen replica which answers is half
   open at once.
4. A failure that its request may have caused counts once per origin (``failing_origins``).
   Anonymous failures count each. Such failures eject only where an experiment shows that they go
   with the replica, not with the requests, and not to one client alone (``experiment``); only if
   peers that had results since then are not affected; and only if they are improbable for a
   replica that is well, as failures are at its peers. So it does not matter how many callers a
   client pretends to be, nor how it finds out where its requests go.
5. A replica is a subject while its last result, or ``failure_percent`` of its results, are such
   failures, at most ``WAIT_S`` after the last of them.
6. After false alarms (``pool_results``) the requests of the clients that caused them show less.
7. An attempt that our bound on the time to a first answer ended is no failure. It is work without
   progress since it began, for a frozen replica.
8. Work without progress alone does not eject as frozen, because any request may honestly take so
   long, and one that is still being sent waits for its client. Either the replica does not answer
   our own probe; or it has whole requests of two clients (of one that is alone in the pool,
   ``ENOUGH_STANDING``) that stand for so long where peers usually answer in a tenth of that.
9. A replica is closed (in use), ejected until some time, or half open, as it is when its ejection
   ends. Each ejection lasts twice as long as the one before, up to ``MAX_EJECTION_S``. The doubling
   is reset after the replica was closed for twice the time of its last ejection.
10. At most ``max_ejection_percent`` of a variant is ejected or half open. One replica of several
    may always be, unless the share is 0; the only replica of a variant never is.
11. A half-open replica gets one request at a time; a request without a result is given up after
    the base time.
12. There is one record of fixed size per replica of the pool; a removed replica's is dropped.

Sources: Envoy's outlier detection (consecutive failures, failure percentage, maximum share); the
circuit breaker of M. Nygard's "Release It!" (half open).
"""

from __future__ import annotations

from collections import Counter
from math import log
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ext_proc.blame.origins import ANONYMOUS, UNKNOWN, number_of
from ext_proc.routing.health.ejection_record import CLOSED, NEVER, Cause, EjectionRecord, Phase
from ext_proc.routing.health.experiment import (
    DRAWN,
    MAX_CLIENTS,
    MAX_SUSPECTS,
    MORE_ODDS,
    OUTVOTED,
    ROW_ODDS,
    SHARE_ODDS,
    SUSPICIOUS,
    Part,
    fair_share,
    identity,
    shown,
)
from ext_proc.routing.health.failing_origins import FailingOrigins, Recurrence
from ext_proc.routing.health.pool_results import PoolResults, is_improbable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.routing.health.standing import Stands
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.settings import Outlier

MAX_EJECTION_S: Final = 300.0
FAST: Final = 0.5
"""Failures are fast if they take less than this share of the peers' time to the first byte."""
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
SHORT: Final = 0.1
"""Share of ``frozen_after_s`` in which peers usually answer, where standing requests are a sign."""
ENOUGH_STANDING: Final = 3
WAIT_S: Final = 5.0
NONE_STANDS: Final[Mapping[EndpointKey, Sequence[Stands]]] = MappingProxyType({})
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
        self.out: dict[EndpointKey, EjectionRecord] = {}
        """The replicas that are ejected or half open."""
        """Records that are not closed."""
        self._rules: Outlier | None = None
        self._compared_at = NEVER
        self._failing = FailingOrigins()
        self._pool = PoolResults()
        self._suspects: dict[EndpointKey, EjectionRecord] = {}
        self._parts: dict[int, Part] = {}
        """By the number of their identity: four for each replica that was a suspect."""

    @property
    def failing(self) -> bool:
        """Whether any origin fails, so that picks and good answers should name theirs."""
        return bool(self._failing or self._suspects)

    def set_pool(self, pool: Pool) -> None:
        """Set the pool's replicas and outlier settings; records of replicas that stay are kept."""
        known, self._rules = self._records, pool.outlier
        self._records = {}
        for endpoint in pool.endpoints:
            record = known.get(endpoint.key)
            if record is None or record.variant != endpoint.variant:
                record = EjectionRecord(endpoint.variant)
            self._records[endpoint.key] = record
        self.out = {k: r for k, r in self._records.items() if r.phase is not Phase.CLOSED}
        self._parts = {n: part for n, part in self._parts.items() if part.subject in self._records}

    def forget(self, key: EndpointKey) -> None:
        """Reset the record of a replica whose process was restarted."""
        record = self._records.get(key)
        if record is not None:
            self._records[key] = EjectionRecord(record.variant)
            self.out.pop(key, None)

    def barred(self, now: float) -> set[EndpointKey]:
        """Return the replicas that must not get a new request now."""
        barred: set[EndpointKey] = set()
        for key, record in self.out.items():
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
        record = self.out.get(key)
        if record is not None and record.phase is Phase.HALF_OPEN and self._rules is not None:
            record.until = now + self._rules.base_ejection_s

    # --- State ----------------------------------------------------------------------------------

    def phase(self, key: EndpointKey) -> Phase:
        """Return the phase of a replica; an unknown one is closed."""
        record = self._records.get(key)
        return Phase.CLOSED if record is None else record.phase

    def cause(self, key: EndpointKey) -> Cause | None:
        """Return why a replica is ejected or half open, ``None`` if it is closed."""
        record = self.out.get(key)
        return None if record is None else record.cause

    def sinkhole(self, key: EndpointKey) -> bool:
        """Return whether an ejected or half-open replica failed faster than its peers answer."""
        record = self.out.get(key)
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

    # --- Results --------------------------------------------------------------------------------

    def good(
        self,
        key: EndpointKey,
        first_byte_s: float | None,
        now: float,
        times: int = 1,
        client: int = UNKNOWN,
    ) -> None:
        """Note one or several good answers.

        Args:
            key: The replica.
            first_byte_s: Seconds from the request's dispatch to the answer's first byte, if known.
            now: Monotonic seconds.
            times: Number of answers; ``first_byte_s`` is then their mean, and counts once.
            client: The client that was answered.
        """
        record, rules = self._records.get(key), self._rules
        if record is None or rules is None:
            return
        if client != UNKNOWN:  # as that of answers which another worker has summed up
            self._pool.answered(client, now)
        if record.phase is CLOSED:
            record.alive_at = now
        else:
            self._alive(key, record, now)
            if record.phase is Phase.HALF_OPEN:
                self._good_half_open(key, record, times, now)
            return
        record.answers(client, now)
        if record.row:
            doubted, failing = record.in_doubt, record.failing_to()
            if record.answered(client):
                if doubted >= rules.consecutive_failures:
                    self._pool.alarm(failing, now)
                record.end_row()
        self._pool.answers += times
        record.count(now, rules.interval_s, good=times)
        if first_byte_s is not None:
            self._time(key, record, first_byte_s, now)

    def _good_half_open(
        self, key: EndpointKey, record: EjectionRecord, times: int, now: float
    ) -> None:
        record.good_row += times
        record.until = NEVER
        if record.good_row >= GOOD_TO_CLOSE:
            if record.cause is Cause.DEAD_BACKEND and record.times == 1:
                self._pool.alarm(record.accused_by, now)
            self._close(key, record, now)

    def bad(
        self,
        key: EndpointKey,
        now: float,
        *,
        answered: bool,
        after_s: float | None = None,
        origin: int | None = None,
        client: int = UNKNOWN,
    ) -> None:
        """Note a failure of the replica.

        Args:
            key: The replica.
            now: Monotonic seconds.
            answered: Whether it answered with an error; False = the connection failed or broke.
            after_s: Seconds from the request's dispatch to the first byte of the error, if known.
            origin: The origin whose request may have caused it; ``None`` = no request can have.
            client: The client that sent the request.
        """
        record, rules = self._records.get(key), self._rules
        if record is None or rules is None or record.phase is Phase.EJECTED:
            return
        if after_s is not None:
            record.failed_s.put(after_s)
        recurrence, origin = self._recurrence(key, origin, client, now, rules.interval_s)
        if recurrence is Recurrence.FIRST:
            record.fail(now, rules.interval_s, origin, client, self._pool)
            record.refused += not answered
            counts = origin is None or self._pool.counts(client, now, rules.interval_s)
            if counts:
                record.counted += origin is not None
                record.count(now, rules.interval_s, bad=1)
        elif recurrence is Recurrence.AGAIN and record.row:
            record.again += 1
        if record.phase is Phase.HALF_OPEN:
            self._failed_half_open(key, record, client, now)
        elif recurrence is not Recurrence.ALIKE:
            self._judge(key, record, now, certain=origin is None)
            if origin is not None and record.phase is CLOSED:
                self._suspect(key, record)

    def _recurrence(
        self, key: EndpointKey, origin: int | None, client: int, now: float, window_s: float
    ) -> tuple[Recurrence, int | None]:
        """Note a failure where it is part of an experiment, or for its origin.

        Returns:
            What it is next to others, and the origin by which it counts.
        """
        if origin is None or origin == ANONYMOUS:
            return Recurrence.FIRST, origin
        part = self._parts.get(origin)
        if part is None:
            return self._failing.failed(origin, key, now, window_s), origin
        subject, share, gets_it = part
        if gets_it is (subject == key):
            alone = self._pool.alone(client, now, window_s)
            known = self._records[subject].experiment_of(client)
            known.failed(share, here=gets_it, alone=alone)
        closed = self._records[key].phase is CLOSED
        return Recurrence.FIRST if closed else Recurrence.AGAIN, ANONYMOUS

    def _failed_half_open(
        self, key: EndpointKey, record: EjectionRecord, client: int, now: float
    ) -> None:
        several = len(record.failing_to()) > 1 or self._is_alone(client, now)
        if record.row > record.in_doubt or (several and record.of_several()):
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
        certain_row = in_row = record.row - record.in_doubt >= least
        if not in_row and record.in_doubt:
            in_row = self._is_row(record, least, now)
        many = self._fails_often(record) and (certain or self._shows(record, SHARE_ODDS, now))
        if not in_row and not many:
            return
        peers = self._peers(key, record)
        if not certain and not certain_row:
            since = record.row_at if in_row else now - rules.interval_s
            peers = [one for one in peers if one.at >= since]
            if not peers:
                return
        affected = median([one.share() or 0.0 for one in peers]) if peers else 0.0
        if peers and affected >= _RELATIVE * (1.0 if in_row else share):
            self._compared_at = now
            return
        if not in_row and not certain and not is_improbable(record.bad, record.good, affected):
            return
        cause = Cause.FAILURES if record.refused else Cause.DEAD_BACKEND
        record.accused_by = record.failing_to()
        self._try_eject(key, record, cause if in_row else Cause.RATIO, now)

    def _is_row(self, record: EjectionRecord, least: int, now: float) -> bool:
        """Return whether failures in a row that requests may have caused are the replica's."""
        return (
            record.row + record.again >= least
            and self._shows(record, ROW_ODDS, now)
            and self._pool.answers - record.row_answers >= self._size(record)
            and record.is_improbable(self._pool)
        )

    def _shows(self, record: EjectionRecord, least: float, now: float) -> bool:
        """Return whether experiments show that failures are the replica's, and not one client's.

        Args:
            record: The replica's.
            least: Odds that eject, those of a row or those of a share.
            now: Monotonic seconds.
        """
        odds, best, client, in_row = [], 0.0, UNKNOWN, least == ROW_ODDS
        for each, known in record.experiments.items():
            found = known.row if in_row else known.failures
            if found > 0.0 and (known.bad or not in_row):
                odds.append(found - MORE_ODDS * self._pool.alarms(each, now))
                if odds[-1] > best:
                    best, client = odds[-1], each
        window_s = 0.0 if self._rules is None else self._rules.interval_s
        if in_row and record.good_since(now - window_s) >= len(odds):
            least += OUTVOTED
        return shown(odds, least, alone=self._is_alone(client, now))

    def _is_alone(self, client: int, now: float) -> bool:
        return self._rules is None or self._pool.alone(client, now, self._rules.interval_s)

    def _fails_often(self, record: EjectionRecord) -> bool:
        percent, share = self._rules.failure_percent if self._rules else 0.0, record.share() or 0.0
        return 0.0 < percent <= share * 100.0 and record.good + record.bad >= MIN_SAMPLES

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
        out = sum(1 for one in self.out.values() if one.variant == record.variant)
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
        self.out[key] = record
        self._on_ejected(key, cause)

    def _half_open(self, key: EndpointKey, record: EjectionRecord) -> None:
        record.phase, record.until, record.good_row = Phase.HALF_OPEN, NEVER, 0
        record.end_row()
        self.out[key] = record

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
        del self.out[key]

    def _usual_log_s(self, key: EndpointKey, record: EjectionRecord, least: int) -> float | None:
        """Return the median logarithm of the peers' times to the first byte."""
        known = [one.first_s.log for one in self._peers(key, record) if one.first_s.count >= least]
        return median(known) if known else None

    # --- Experiments ----------------------------------------------------------------------------

    def _is_suspect(self, key: EndpointKey, record: EjectionRecord) -> bool:
        if record.phase is not CLOSED or record is not self._records.get(key):
            return False
        return record.in_doubt > 0 or self._fails_often(record)

    def _suspect(self, key: EndpointKey, record: EjectionRecord) -> None:
        known = key in self._suspects or len(self._suspects) >= MAX_SUSPECTS
        if known or not self._is_suspect(key, record):
            return
        self._suspects[key] = record
        peers = [one.good for one in self._records.values() if one.variant == record.variant]
        if len(peers) > 1:
            usual = fair_share(record.good, sum(peers), len(peers))
            for drawn, share in ((True, DRAWN), (False, usual)):
                for gets_it in (True, False):
                    number = number_of(identity(key, drawn=drawn, gets_it=gets_it))
                    self._parts[number] = Part(key, share, gets_it)

    def _expire(self, now: float) -> None:
        for key, record in list(self._suspects.items()):
            if now - record.failed_at > WAIT_S or not self._is_suspect(key, record):
                del self._suspects[key]

    def assign(
        self, picked: EndpointKey, now: float, rng: Rng, *, drawn: bool
    ) -> tuple[EndpointKey, bool] | None:
        """Let chance decide whether the subject of an experiment gets a request.

        Args:
            picked: The replica that would get the request.
            now: Monotonic seconds.
            rng: Source of randomness.
            drawn: The request is drawn to that replica; else nothing draws it anywhere.

        Returns:
            The subject, and whether the request is for it; ``None`` if there is none.
        """
        self._expire(now)
        if not self._suspects:
            return None
        keys = list(self._suspects)
        key = picked if drawn else keys[int(rng.random() * len(keys))]
        part = self._parts.get(number_of(identity(key, drawn=drawn, gets_it=True)))
        record = self._suspects.get(key)
        if part is None or record is None:
            return None
        if drawn and record.row + record.again < SUSPICIOUS and not self._fails_often(record):
            return None
        return key, rng.random() < part.share

    def well(self, key: EndpointKey, origin: int, now: float, client: int = UNKNOWN) -> None:
        """Note that a replica answered a request well that may be part of an experiment.

        Args:
            key: The replica.
            origin: The request's origin, or its experiment.
            now: Monotonic seconds.
            client: The client that was answered.
        """
        part = self._parts.get(origin)
        if part is None or part.gets_it or part.subject == key:
            return
        record = self._records[part.subject]
        record.experiment_of(client).answered_elsewhere(part.share)
        if record.in_doubt and record.phase is CLOSED:
            self._judge(part.subject, record, now, certain=False)

    def avoided(self, origin: int, now: float) -> EndpointKey | None:
        """Return the replica to which the next request of an origin should not be sent.

        Of a suspect, chance decides instead (``assign``).
        """
        rules = self._rules
        if rules is None:
            return None
        self._expire(now)
        key = self._failing.avoided(origin, now, rules.interval_s, rules.consecutive_failures)
        return None if key in self._suspects else key

    def kept_waiting(
        self, key: EndpointKey, waited_s: float, now: float, client: int = UNKNOWN
    ) -> None:
        """Note that an attempt was ended by our bound on the time to a first answer.

        Args:
            key: The replica.
            waited_s: Seconds for which the attempt waited.
            now: Monotonic seconds.
            client: The client that sent it.
        """
        record = self._records.get(key)
        if record is None or record.alive_at > now - waited_s:
            return
        if record.silent_at <= record.alive_at:
            record.silent_at = now - waited_s
            record.silent_to.clear()
        if client in record.silent_to or len(record.silent_to) < MAX_CLIENTS:
            record.silent_to[client] = record.silent_to.get(client, 0) + 1
        if record.phase is Phase.HALF_OPEN and record.cause is Cause.FROZEN:
            self._eject(key, record, Cause.FROZEN, now)

    def undecided(self, key: EndpointKey) -> None:
        """Note that a request ended and showed nothing: a half-open replica may get another one."""
        record = self.out.get(key)
        if record is not None and record.phase is Phase.HALF_OPEN:
            record.until = NEVER

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

    def probed(self, key: EndpointKey, *, ready: bool) -> None:
        """Take the result of a probe of ours."""
        record = self._records.get(key)
        if record is not None:
            record.mute = not ready

    def sweep(
        self,
        in_flight: Mapping[EndpointKey, int],
        now: float,
        standing: Mapping[EndpointKey, Sequence[Stands]] = NONE_STANDS,
    ) -> None:
        """Eject busy replicas that make no progress; call about once a second.

        Args:
            in_flight: This picker's requests in flight on each replica.
            now: Monotonic seconds.
            standing: The requests that each replica has whole and has not begun to answer.
        """
        rules = self._rules
        if rules is None:
            return
        self._failing.expire(now, rules.interval_s)
        self._expire(now)
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
            if not record.mute and not self._stands(key, record, standing.get(key, ()), now):
                continue
            # A peer must have made progress for a while after this replica stopped. It need not
            # make progress now, because all clients may be waiting for this replica.
            later = since + LATER * rules.frozen_after_s
            peers = self._peers(key, record)
            if not peers or any(one.alive_at > later for one in peers):
                self._try_eject(key, record, Cause.FROZEN, now)

    def frozen(self) -> bool:
        """Return whether any replica is found frozen, half open ones included."""
        return any(record.cause is Cause.FROZEN for record in self.out.values())

    def hung(self, stands: Stands, now: float) -> bool | None:
        """Return whether a request stands on a hung replica.

        Returns:
            ``None`` if not; else whether the replica is mute, too: it does not answer our probe.
            A half-open replica is tried with requests, so those stand as long as others first.
        """
        record, rules = self.out.get(stands.key), self._rules
        if record is None or rules is None or record.cause is not Cause.FROZEN:
            return None
        if record.phase is Phase.HALF_OPEN and now - stands.since < rules.frozen_after_s:
            return None
        return record.mute

    def _stands(
        self, key: EndpointKey, record: EjectionRecord, standing: Sequence[Stands], now: float
    ) -> bool:
        """Return whether requests stand that should have moved (rule 8)."""
        rules = self._rules
        if rules is None:
            return False
        found: Counter[int] = Counter()
        usual = self._usual_log_s(key, record, MIN_LATENCIES)
        if usual is not None and usual <= log(rules.frozen_after_s * SHORT):
            begun = now - rules.frozen_after_s
            found.update(one.client for one in standing if max(one.since, record.alive_at) <= begun)
        if record.silent_at > record.alive_at:
            found.update(record.silent_to)
        if len(found) > 1:
            return True
        return any(
            count >= ENOUGH_STANDING and self._pool.alone(client, now, rules.frozen_after_s)
            for client, count in found.items()
        )
