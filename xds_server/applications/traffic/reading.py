"""Turns the messages of pickers into values, within bounds. Pure.

A report is that of a process that may be broken or hostile: numbers, names and sizes are checked
before anything is kept.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_common import fine_histogram
from tidegate_common.canary import ALL, FirstRequest, SessionFailure, SessionRecord
from tidegate_common.histogram import BUCKETS
from xds_server.applications.traffic.picker_runs import Counted
from xds_server.applications.traffic.placements import PlacedState, ReplicaModels
from xds_server.applications.traffic.replicas import Condition, Reported, ToldLimit, ToldQueue
from xds_server.applications.traffic.request_counts import RequestCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate_api.fleet.v1 import report_pb2
    from xds_server.applications.traffic.picker_runs import Key

MAX_VARIANTS: Final = 1024
MAX_ENDPOINTS: Final = 65_536
MAX_KINDS: Final = 32
MAX_CONDITIONS: Final = 8
MAX_NAME_CHARS: Final = 256
MAX_WORD_CHARS: Final = 64
MAX_CAUSE_CHARS: Final = 200
MAX_COUNT: Final = 2**53
MAX_LEFT_S: Final = 86_400.0
MAX_PERCENT: Final = 100
MAX_ROWS: Final = 65_536
MAX_ROLLOUTS: Final = 256
"""Most rollouts in one report."""
MAX_SESSIONS: Final = 4_096
"""Most sessions of a rollout in one report."""
MAX_STEP: Final = 64
MAX_MINUTE: Final = 2**31
MAX_TIMES: Final = 8
MAX_QUEUES: Final = 1024
_FINE: Final = fine_histogram.BUCKETS
MODEL_STATES: Final = ("READY", "LOADING", "UNAVAILABLE")


class ReportError(ValueError):
    """A report breaks a bound; the message says which."""


def read_traffic(message: report_pb2.Traffic) -> Counted:
    """Return the counts of a report.

    Raises:
        ReportError: It breaks a bound.
    """
    age_s = message.age_seconds
    if not isfinite(age_s) or age_s < 0.0:
        raise ReportError(f"age_seconds is {age_s}; it must be finite and at least 0")
    if len(message.variants) > MAX_VARIANTS:
        raise ReportError(f"traffic has more than {MAX_VARIANTS} variants")
    if len(message.endpoints) > MAX_ENDPOINTS:
        raise ReportError(f"traffic has more than {MAX_ENDPOINTS} endpoints")
    variants: dict[Key, RequestCounts] = {}
    for each in message.variants:
        if len(each.failed) > MAX_KINDS:
            raise ReportError(f"a variant has more than {MAX_KINDS} kinds of failures")
        failed = {_text(kind, MAX_WORD_CHARS): _count(n) for kind, n in each.failed.items() if n}
        variants[_text(each.pool), _text(each.variant)] = RequestCounts(
            _count(each.requests),
            failed,
            _histogram(each.first_byte),
            _histogram(each.duration),
            _count(each.prompt_tokens),
            _count(each.cached_tokens),
        )
    endpoints: dict[Key, RequestCounts] = {}
    for one in message.endpoints:
        bad = {"error": _count(one.failed)} if one.failed else {}
        endpoints[_text(one.pool), _text(one.id)] = RequestCounts(
            _count(one.requests),
            bad,
            timed=_count(one.timed),
            timed_us=_count(one.timed_us),
            begun=_count(one.begun),
            begun_us=_count(one.begun_us),
        )
    return Counted(message.life, age_s, variants, endpoints)


class ToldSessions(NamedTuple):
    """What a report tells of the sessions of a rollout."""

    pool: str
    rollout: str
    records: list[SessionRecord]
    limit: int
    until_s: float


def read_canaries(messages: Sequence[report_pb2.CanarySessions]) -> list[ToldSessions]:
    """Return the sessions of rollouts of a report.

    Raises:
        ReportError: It breaks a bound.
    """
    if len(messages) > MAX_ROLLOUTS:
        raise ReportError(f"a report tells of more than {MAX_ROLLOUTS} rollouts")
    found = []
    for each in messages:
        if len(each.sessions) > MAX_SESSIONS:
            raise ReportError(f"a report tells of more than {MAX_SESSIONS} sessions of a rollout")
        if each.limit > ALL or not isfinite(each.until_seconds):
            raise ReportError(f"a rollout's limit is above {ALL}, or its time is not finite")
        names = _text(each.pool), _text(each.rollout)
        records = [_session(one) for one in each.sessions]
        found.append(ToldSessions(*names, records, each.limit, each.until_seconds))
    return found


def _session(message: report_pb2.CanarySession) -> SessionRecord:
    first = failure = None
    if message.HasField("first"):
        told = message.first
        if len(told.times) > MAX_TIMES or max(told.times.values(), default=0) >= _FINE:
            raise ReportError(
                f"a first request has more than {MAX_TIMES} times, or a bucket from {_FINE} on"
            )
        times = sorted((_text(kind, MAX_WORD_CHARS), at) for kind, at in told.times.items())
        short = told.short if told.HasField("short") else None
        stratum = _text(told.stratum, MAX_WORD_CHARS)
        first = FirstRequest(_below(told.minute, MAX_MINUTE), stratum, tuple(times), short)
    if message.HasField("failure"):
        step = _below(message.failure.step, MAX_STEP)
        failure = SessionFailure(_below(message.failure.minute, MAX_MINUTE), step)
    begun_ms = _below(message.begun_unix_ms, MAX_COUNT)
    step = _below(message.step, MAX_STEP)
    return SessionRecord(message.digest, begun_ms, step, message.canary, first, failure)


def _below(value: int, bound: int) -> int:
    if not 0 <= value < bound:
        raise ReportError(f"a session's number {value} is not from 0 to below {bound}")
    return value


def read_states(message: report_pb2.ReplicaStates) -> Mapping[Key, Reported]:
    """Return the states of replicas of a report, by pool and endpoint id.

    Raises:
        ReportError: It breaks a bound.
    """
    if len(message.replicas) > MAX_ENDPOINTS:
        raise ReportError(f"a report has the states of more than {MAX_ENDPOINTS} replicas")
    found: dict[Key, Reported] = {}
    for each in message.replicas:
        if max(len(each.conditions), len(each.notes), len(each.limits)) > MAX_CONDITIONS:
            raise ReportError(f"a replica has more than {MAX_CONDITIONS} conditions or limits")
        ramp = each.ramp_percent if each.HasField("ramp_percent") else None
        if ramp is not None and ramp > MAX_PERCENT:
            raise ReportError(f"ramp_percent is {ramp}; it must be at most {MAX_PERCENT}")
        found[_text(each.pool), _text(each.id)] = Reported(
            tuple(_condition(one) for one in each.conditions),
            each.reading_age_ms / 1000.0 if each.HasField("reading_age_ms") else None,
            ramp,
            tuple(_condition(one) for one in each.notes),
            tuple(
                ToldLimit(_words(one.model), one.most, _text(one.source, MAX_WORD_CHARS))
                for one in each.limits
            ),
        )
    return found


def read_queues(message: report_pb2.ReplicaStates) -> Mapping[str, ToldQueue]:
    """Return what waits in a picker, by pool.

    Raises:
        ReportError: It breaks a bound.
    """
    if len(message.queues) > MAX_QUEUES:
        raise ReportError(f"a report has queues of more than {MAX_QUEUES} pools")
    found: dict[str, ToldQueue] = {}
    for each in message.queues:
        wait_s = each.wait_seconds if each.HasField("wait_seconds") else None
        if wait_s is not None and not 0.0 <= wait_s < inf:
            raise ReportError(f"wait_seconds is {wait_s}; it must be finite and at least 0")
        found[_text(each.pool)] = ToldQueue(each.waiting, wait_s)
    return found


def read_placements(message: report_pb2.Placements) -> Mapping[str, ReplicaModels]:
    """Return what the replicas of a report have, by endpoint id.

    Raises:
        ReportError: It breaks a bound.
    """
    if len(message.replicas) > MAX_ENDPOINTS:
        raise ReportError(f"a report has the models of more than {MAX_ENDPOINTS} replicas")
    if sum(len(each.models) for each in message.replicas) > MAX_ROWS:
        raise ReportError(f"placements have more than {MAX_ROWS} rows")
    found: dict[str, ReplicaModels] = {}
    for each in message.replicas:
        models: dict[tuple[str, str], PlacedState] = {}
        for one in each.models:
            if one.state not in MODEL_STATES:
                raise ReportError(f"a state is {one.state!r:.80}; it must be one of {MODEL_STATES}")
            state = PlacedState(one.state, _words(one.reason), _count(one.for_ms) / 1000.0)
            models[_words(one.model), _words(one.version)] = state
        found[_text(each.id)] = ReplicaModels(each.age_ms / 1000.0, each.whole, models, each.moved)
    return found


def _condition(message: report_pb2.Condition) -> Condition:
    left_s = message.left_seconds if message.HasField("left_seconds") else None
    if left_s is not None and not 0.0 <= left_s <= MAX_LEFT_S:
        raise ReportError(f"left_seconds is {left_s}; it must be between 0 and {MAX_LEFT_S:g}")
    for_s = message.for_seconds if message.HasField("for_seconds") else None
    if for_s is not None and not 0.0 <= for_s < inf:
        raise ReportError(f"for_seconds is {for_s}; it must be finite and at least 0")
    name = _text(message.name, MAX_WORD_CHARS)
    return Condition(name, _text(message.cause, MAX_CAUSE_CHARS), left_s, for_s=for_s)


def _histogram(message: report_pb2.Histogram) -> Mapping[int, int]:
    buckets, counts = message.buckets, message.counts
    if len(buckets) != len(counts) or len(buckets) > BUCKETS:
        raise ReportError(f"a histogram must have as many counts as buckets, at most {BUCKETS}")
    if any(each >= BUCKETS for each in buckets):
        raise ReportError(f"a histogram has a bucket above {BUCKETS - 1}")
    return {bucket: _count(n) for bucket, n in zip(buckets, counts, strict=True) if n}


def _count(number: int) -> int:
    if number > MAX_COUNT:
        raise ReportError(f"a count is {number}; it must be at most 2**53")
    return number


def _words(text: str) -> str:
    """Return a text of a replica's own, which may have any characters, as one that can be shown."""
    if len(text) > MAX_NAME_CHARS:
        raise ReportError(f"a name has more than {MAX_NAME_CHARS} characters")
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _text(text: str, most: int = MAX_NAME_CHARS) -> str:
    if len(text) > most or not text.isprintable():
        raise ReportError(f"a name has more than {most} characters, or one that cannot be printed")
    return text
