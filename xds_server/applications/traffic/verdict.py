"""The verdict: one word for the state of the whole, and why. Pure.

``RULES`` has the reasons in the order of their weight; the first one that holds gives the word and
the sentence. ``docs/reference/status.md`` lists them.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

MIN_FAILED: Final = 5
"""Fewer failed requests in a minute are no reason."""
OUTAGE_SHARE: Final = 0.5
"""Share of failed requests of a pool that is an outage."""
DEGRADED_SHARE: Final = 0.01
"""Share of failed or refused requests of a pool that is a degradation."""
LEAVING_SHARE: Final = 0.1
"""Share of a pool's callers that leave unanswered that is a degradation."""
SILENT_PICKER_S: Final = 8.0
"""A picker reports every 5 s; one whose last report is so old hangs, or cannot keep up."""
MAX_SHARES: Final = 2
"""Most replicas that are named as those of a pool's failures."""
MAX_NAMED: Final = 3
"""Most further replicas that are named where several have the same note."""
LATE_CLIENT_S: Final = 10.0
"""A client that has not acknowledged a change for so long is late."""
MAX_REASONS: Final = 50
_CAUSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "saturated": "every replica is at its limit",
        "queue-full": "the queue is full",
        "deadline-unmet": "no replica would have room before their deadlines",
    }
)
"""Reasons of refusals in words; others are words already."""
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0


class Word(StrEnum):
    """The verdict; the value is the word."""

    OK = "OK"
    DEGRADED = "DEGRADED"
    OUTAGE = "OUTAGE"


class VariantView(NamedTuple):
    """A variant, as far as the verdict needs it."""

    name: str
    weight: int
    replicas: int
    usable: int


class PoolView(NamedTuple):
    """A pool, as far as the verdict needs it."""

    name: str
    variants: Sequence[VariantView]
    requests: int
    """Requests that ended in the last minute."""
    failed: int
    """Those of them that failed by a fault of the service."""
    refused: int
    """Requests that were refused in the last minute though their callers made no mistake."""
    failing: Mapping[str, int] = MappingProxyType({})
    """Failed requests of the last minute by replica, such as ``r1 (canary)``."""
    reasons: Mapping[str, int] = MappingProxyType({})
    """The refused requests by reason."""
    gave_up: int = 0
    """Requests of the last minute whose callers left before an answer began."""
    expired: int = 0
    """Requests of the last minute that were refused because their deadlines had passed."""

    @property
    def drawn(self) -> list[VariantView]:
        """The variants that requests are sent to."""
        return [each for each in self.variants if each.weight > 0]


class ReplicaView(NamedTuple):
    """A replica that is not well."""

    pool: str
    endpoint: str
    words: str
    left_alone: bool
    """False = it is silent, or few pickers leave it alone."""


class NoteView(NamedTuple):
    """What is wrong with a replica that does not keep requests from it."""

    kind: str
    pool: str
    endpoint: str
    words: str


class ClientState(NamedTuple):
    """A connected client."""

    name: str
    kind: str
    rejects: str
    """The type that it rejected; empty = none."""
    late_s: float
    """Seconds for which it has not acknowledged a change."""
    quarantine: str


class CertificateState(NamedTuple):
    """A certificate that ends soon, or whose new files cannot be used."""

    owner: str
    """Whose it is, such as ``envoy edge-1``."""
    left_s: float
    fault: str = ""
    """Why the new files cannot be used; empty = there are none, or they can."""


class Situation(NamedTuple):
    """All that the verdict depends on."""

    pools: Sequence[PoolView] = ()
    replicas: Sequence[ReplicaView] = ()
    clients: Sequence[ClientState] = ()
    file_error: str = ""
    refusal: str = ""
    store_error: str = ""
    sources: Sequence[str] = ()
    """What sources of replicas have trouble with."""
    held: Sequence[str] = ()
    """Pools that hold replicas which have vanished."""
    pickers: int = 1
    """Number of pickers whose addresses the fleet has."""
    passed: Mapping[str, int] = MappingProxyType({})
    """Requests of the last minute for which pickers had no pick, by reason."""
    certificates: Sequence[CertificateState] = ()
    versions: Sequence[str] = ()
    """Which replicas answer by another version than they should, in words."""
    audit_error: str = ""
    """Why the record of operators' calls cannot be written."""
    unheard: Mapping[str, float] = MappingProxyType({})
    """Seconds since the last report of each connected picker that reports states."""
    notes: Sequence[NoteView] = ()
    relief: Mapping[str, int] = MappingProxyType({})
    """What pickers leave out whose CPU does not suffice (`PickerReport.relief`)."""
    missing: Mapping[str, Sequence[str]] = MappingProxyType({})
    """Members of their group that pickers miss (`PickerReport.missing_members`)."""
    lost: str = ""
    """Which history is lost, and what to do."""


class Verdict(NamedTuple):
    """A word, and the reasons in the order of their weight; none = all is well."""

    word: Word
    reasons: Sequence[str]
    kinds: Mapping[str, Sequence[str]] = MappingProxyType({})
    """All reasons by the kind of their rule, also those that are not listed."""

    @property
    def level(self) -> int:
        """The word as a number: 0 OK, 1 DEGRADED, 2 OUTAGE."""
        return list(Word).index(self.word)

    @property
    def why(self) -> str:
        """One sentence."""
        if not self.reasons:
            return "all replicas are usable, and all clients have the fleet in force"
        more = len(self.reasons) - 1
        return self.reasons[0] + (f" (and {more} more)" if more else "")


def _no_replica(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        if pool.drawn and not any(each.usable for each in pool.drawn):
            total = sum(each.replicas for each in pool.drawn)
            yield f"pool {pool.name}: none of {total} replicas is usable"


def _most_fail(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        if pool.failed >= MIN_FAILED and pool.failed >= OUTAGE_SHARE * pool.requests:
            yield _failing(pool)


def _no_replica_of_variant(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        if any(each.usable for each in pool.drawn):
            for each in pool.drawn:
                if not each.usable:
                    share = each.weight / sum(one.weight for one in pool.drawn)
                    which = f"pool {pool.name}: variant {each.name} ({share:.0%} of its requests)"
                    yield f"{which} has no usable replica"


def _some_fail(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        share = DEGRADED_SHARE * pool.requests
        if pool.failed >= MIN_FAILED and share <= pool.failed < OUTAGE_SHARE * pool.requests:
            yield _failing(pool)


def _failing(pool: PoolView) -> str:
    said = f"pool {pool.name}: {pool.failed} of {pool.requests} requests failed in the last minute"
    worst = sorted(pool.failing.items(), key=lambda each: (-each[1], each[0]))[:MAX_SHARES]
    named = ", ".join(f"{count} at {name}" for name, count in worst)
    return f"{said}, {named}" if named else said


def _some_refused(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        total = pool.requests + pool.refused
        if pool.refused >= MIN_FAILED and pool.refused >= DEGRADED_SHARE * total:
            where = f"pool {pool.name}: " if pool.name else ""
            counts = f"{pool.refused} of {total} requests ({pool.refused / total:.0%})"
            named = {_CAUSES.get(reason, reason): n for reason, n in pool.reasons.items()}
            why = f": {_counted(named)}" if named else ""
            yield f"{where}{counts} were refused in the last minute{why}"


def _callers_leave(seen: Situation) -> Iterator[str]:
    for pool in seen.pools:
        left, total = pool.gave_up + pool.expired, pool.requests + pool.expired
        if left >= MIN_FAILED and left >= LEAVING_SHARE * total:
            counts = f"{left} of {total} callers ({left / total:.0%})"
            yield f"pool {pool.name}: {counts} left in the last minute before an answer began"


def _passed(seen: Situation) -> Iterator[str]:
    passed = sum(seen.passed.values())
    total = passed + sum(pool.requests for pool in seen.pools)
    if passed >= MIN_FAILED and passed >= DEGRADED_SHARE * total:
        yield f"{passed} requests got no pick in the last minute: {_counted(seen.passed)}"


def _counted(by_reason: Mapping[str, int]) -> str:
    ordered = sorted(by_reason.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} ({count})" for reason, count in ordered)


def _versions(seen: Situation) -> Iterator[str]:
    yield from seen.versions


def _left_alone(seen: Situation) -> Iterator[str]:
    for each in seen.replicas:
        if each.left_alone:
            yield f"replica {each.endpoint} of pool {each.pool} is {each.words}"


def _rejecting(seen: Situation) -> Iterator[str]:
    for each in seen.clients:
        if each.quarantine:
            yield f"{each.kind} {each.name} is in quarantine: {each.quarantine}"
        elif each.rejects:
            yield f"{each.kind} {each.name} rejects the fleet in force ({each.rejects})"


def _late(seen: Situation) -> Iterator[str]:
    for each in seen.clients:
        if not each.rejects and each.late_s >= LATE_CLIENT_S:
            yield f"{each.kind} {each.name} has not acknowledged a change for {each.late_s:.0f} s"


def _missing_pickers(seen: Situation) -> Iterator[str]:
    connected = sum(each.kind == "picker" for each in seen.clients)
    if not connected:
        yield "no picker is connected: what happens to requests is not known"
    elif connected < seen.pickers:
        yield f"only {connected} of {seen.pickers} pickers are connected"


def _silent_pickers(seen: Situation) -> Iterator[str]:
    for picker, age_s in sorted(seen.unheard.items()):
        if age_s >= SILENT_PICKER_S:
            yield f"picker {picker} is connected and has not reported for {age_s:.0f} s: it hangs"


def _busy_pickers(seen: Situation) -> Iterator[str]:
    for picker, level in sorted(seen.relief.items()):
        left_out = "prompts and prices" if level == 1 else "prompts and prices, and some picks"
        yield f"the CPU of picker {picker} does not suffice: it leaves out {left_out}"


def _groups(seen: Situation) -> Iterator[str]:
    for picker, missing in sorted(seen.missing.items()):
        yield f"picker {picker} misses members of its group: {'; '.join(missing)}"


def _doubtful(seen: Situation) -> Iterator[str]:
    for each in seen.replicas:
        if not each.left_alone:
            yield f"replica {each.endpoint} of pool {each.pool} is {each.words}"


def _slow(seen: Situation) -> Iterator[str]:
    for each in seen.notes:
        if each.kind == "slow":
            yield f"replica {each.endpoint} of pool {each.pool} is {each.words}"


def _slower(seen: Situation) -> Iterator[str]:
    for pool, first, others in _by_pool(seen, "slower"):
        yield f"replica {first.endpoint} of pool {pool} is {first.words}{others}"


def _queue(seen: Situation) -> Iterator[str]:
    for pool, first, others in _by_pool(seen, "queue"):
        yield f"pool {pool} has a {first.words} at {first.endpoint}{others}"


def _tokens(seen: Situation) -> Iterator[str]:
    for pool, first, others in _by_pool(seen, "tokens"):
        yield f"replica {first.endpoint} of pool {pool} has other {first.words}{others}"


def _by_pool(seen: Situation, kind: str) -> Iterator[tuple[str, NoteView, str]]:
    """Yield each pool with such a note, its first one, and words for the other replicas'.

    What is true of several replicas of a pool is one reason.
    """
    pools: dict[str, list[NoteView]] = {}
    for each in seen.notes:
        if each.kind == kind:
            pools.setdefault(each.pool, []).append(each)
    for pool, (first, *others) in pools.items():
        names = ", ".join(each.endpoint for each in others[:MAX_NAMED])
        more = len(others) - MAX_NAMED
        also = f"; also {names}{f' and {more} more' if more > 0 else ''}" if others else ""
        yield pool, first, also


def _kv_events(seen: Situation) -> Iterator[str]:
    for each in seen.notes:
        if each.kind == "kv-events":
            yield f"replica {each.endpoint} of pool {each.pool}, {each.words}"


def _file(seen: Situation) -> Iterator[str]:
    if seen.file_error:
        yield f"the fleet file on disk is not in force: {seen.file_error}"
    if seen.refusal and seen.refusal != seen.file_error:
        yield seen.refusal


def _store(seen: Situation) -> Iterator[str]:
    if seen.lost:
        yield seen.lost
    if seen.store_error:
        yield f"revisions cannot be stored: {seen.store_error}"
    if seen.audit_error:
        yield f"the record of admin calls cannot be written: {seen.audit_error}"


def _sources(seen: Situation) -> Iterator[str]:
    yield from seen.held
    yield from seen.sources


def _certificates(seen: Situation) -> Iterator[str]:
    for each in seen.certificates:
        if each.fault:
            yield f"the new certificate of {each.owner} is not in force: {each.fault}"
        else:
            yield f"the certificate of {each.owner} {_ends(each.left_s)}"
    for pool, first, others in _by_pool(seen, "certificate"):
        yield f"replica {first.endpoint} of pool {pool}, {first.words}{others}"


def _ends(left_s: float) -> str:
    if left_s <= 0.0:
        return "has ended"
    if left_s < _HOUR_S:
        return f"ends in {left_s / 60.0:.0f} min"
    if left_s < 2.0 * _DAY_S:
        return f"ends in {left_s / _HOUR_S:.0f} h"
    return f"ends in {left_s / _DAY_S:.0f} days"


class ReasonRule(NamedTuple):
    """One kind of reasons."""

    word: Word
    kind: str
    """Its name in metrics and logs."""
    find: Callable[[Situation], Iterable[str]]


RULES: Final[Sequence[ReasonRule]] = (
    ReasonRule(Word.OUTAGE, "no-replica", _no_replica),
    ReasonRule(Word.OUTAGE, "most-fail", _most_fail),
    ReasonRule(Word.DEGRADED, "variant-without-replica", _no_replica_of_variant),
    ReasonRule(Word.DEGRADED, "some-fail", _some_fail),
    ReasonRule(Word.DEGRADED, "refused", _some_refused),
    ReasonRule(Word.DEGRADED, "callers-leave", _callers_leave),
    ReasonRule(Word.DEGRADED, "passed", _passed),
    ReasonRule(Word.DEGRADED, "version", _versions),
    ReasonRule(Word.DEGRADED, "left-alone", _left_alone),
    ReasonRule(Word.DEGRADED, "rejecting", _rejecting),
    ReasonRule(Word.DEGRADED, "late", _late),
    ReasonRule(Word.DEGRADED, "picker-missing", _missing_pickers),
    ReasonRule(Word.DEGRADED, "picker-silent", _silent_pickers),
    ReasonRule(Word.DEGRADED, "picker-group", _groups),
    ReasonRule(Word.DEGRADED, "picker-busy", _busy_pickers),
    ReasonRule(Word.DEGRADED, "in-doubt", _doubtful),
    ReasonRule(Word.DEGRADED, "queue", _queue),
    ReasonRule(Word.DEGRADED, "slow", _slow),
    ReasonRule(Word.DEGRADED, "slower", _slower),
    ReasonRule(Word.DEGRADED, "tokens", _tokens),
    ReasonRule(Word.DEGRADED, "kv-events", _kv_events),
    ReasonRule(Word.DEGRADED, "not-in-force", _file),
    ReasonRule(Word.DEGRADED, "store", _store),
    ReasonRule(Word.DEGRADED, "sources", _sources),
    ReasonRule(Word.DEGRADED, "certificate", _certificates),
)
"""What the verdict depends on, the weightiest first."""
KINDS: Final = tuple(rule.kind for rule in RULES)


def verdict(seen: Situation) -> Verdict:
    """Return the word and at most ``MAX_REASONS`` reasons."""
    word = Word.OK
    reasons: list[str] = []
    kinds: dict[str, Sequence[str]] = {}
    for rule in RULES:
        found = [_line(each) for each in rule.find(seen)]
        if found:
            word = word if reasons else rule.word
            reasons += found
            kinds[rule.kind] = found
    return Verdict(word, reasons[:MAX_REASONS], kinds)


def _line(text: str) -> str:
    return " ".join(text.split())
