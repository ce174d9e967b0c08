"""Sessions that several pickers told, merged and counted by the minute."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_common.canary import (
    ALL,
    FirstRequest,
    SessionFailure,
    SessionRecord,
    earlier,
    sampled,
)
from xds_server.applications.canary import book as module
from xds_server.applications.canary.book import LATE_S, OUTCOME_MIN, SILENT_S, SessionBook
from xds_server.applications.canary.statistics.times import TimeCell

MINUTE = 30_000_000
AT_S = MINUTE * 60.0
SHARES = (0.05, 0.25, 0.5)


def session(
    digest: int, *, canary: bool = False, at_s: float = 1.0, **more: object
) -> SessionRecord:
    """Return a record."""
    told = {"step": 0, **more}
    return SessionRecord(digest, int((AT_S + at_s) * 1000), canary=canary, **told)  # type: ignore[arg-type]


firsts = st.builds(
    FirstRequest,
    st.integers(0, 3),
    st.sampled_from(["a", "b"]),
    st.just((("first-token", 3),)),
    st.none() | st.booleans(),
)
records = st.builds(
    SessionRecord,
    st.just(7),
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
    st.none() | firsts,
    st.none() | st.builds(SessionFailure, st.integers(0, 3), st.integers(0, 2)),
)


@given(records, records, records)
def test_records_of_a_session_may_be_merged_in_any_order_and_twice(
    one: SessionRecord, other: SessionRecord, third: SessionRecord
) -> None:
    """So a report that is repeated or late counts once."""
    assert earlier(one, other) == earlier(other, one)
    assert earlier(one, one) == one
    assert earlier(earlier(one, other), third) == earlier(one, earlier(other, third))


def test_what_several_pickers_saw_of_a_session_counts_once() -> None:
    """In the arm of its beginning, with its first request and its first failure."""
    book = SessionBook(MINUTE, SHARES)
    first = FirstRequest(MINUTE, "chat/9", (("first-token", 40),), short=False)
    book.take("p1", [session(1, canary=True, at_s=1.0, first=first)], ALL, AT_S + 60.0)
    failure = SessionFailure(MINUTE, 0)
    later = first._replace(times=(("first-token", 90),))
    seen = session(1, canary=True, at_s=5.0, first=later, failure=failure)
    for _ in range(3):
        book.take("p2", [seen], ALL, AT_S + 60.0)
    (minute,) = book.close(AT_S + 60.0)
    assert minute.begun == (1, 0)
    assert minute.failures == {(0.05, 0.95): (1, 0)}
    assert minute.times == {"first-token": {"chat/9": TimeCell({40: 1}, {})}}
    assert minute.cache[:2] == (1, 0)
    book.take("p1", [seen], ALL, AT_S + 120.0)
    book.take("p2", [], ALL, AT_S + 120.0)
    (minute,) = book.close(AT_S + 120.0)
    assert (minute.begun, minute.failures, minute.times) == ((0, 0), {}, {})


@pytest.mark.parametrize("late_first", [False, True])
def test_a_moved_session_has_no_failure_of_the_other_arm(late_first: bool) -> None:
    """A picker that sees it after the step takes it for a new one of the canary."""
    book = SessionBook(MINUTE, SHARES)
    before = session(7, at_s=1.0)
    after = session(7, canary=True, at_s=20.0, step=1, failure=SessionFailure(MINUTE, 1))
    told = [after, before] if late_first else [before, after]
    for name, record in enumerate(told):
        book.take(f"p{name}", [record], ALL, AT_S + 60.0)
    (minute,) = book.close(AT_S + 60.0)
    assert minute.begun == (0, 1)
    assert minute.failures == {}


def test_a_failure_belongs_to_the_shares_of_its_steps() -> None:
    """The canary's when the session began, and what was left to stable when it failed."""
    book = SessionBook(MINUTE, SHARES)
    told = [
        session(1, canary=True, failure=SessionFailure(MINUTE, 1)),
        session(2, failure=SessionFailure(MINUTE, 1)),
        session(3, step=1, failure=SessionFailure(MINUTE, 1)),
    ]
    book.take("p1", told, ALL, AT_S + 60.0)
    (minute,) = book.close(AT_S + 60.0)
    assert minute.failures == {(0.05, 0.75): (1, 1), (0.25, 0.75): (0, 1)}


def test_what_no_closed_minute_has_counted_is_told_apart() -> None:
    """A rollout may end within a minute; once that is closed, nothing is counted twice."""
    book = SessionBook(MINUTE, SHARES)
    failure = SessionFailure(MINUTE, 0)
    told = [session(1, canary=True, failure=failure), session(2), session(3, canary=True)]
    book.take("p1", told, ALL, AT_S + 30.0)
    assert book.uncounted() == ([2, 1], [1, 0])
    book.take("p1", [], ALL, AT_S + 60.0)
    assert len(book.close(AT_S + 60.0)) == 1
    assert book.uncounted() == ([0, 0], [0, 0])


def test_what_a_restart_leaves_out_stays_in_the_cost() -> None:
    """Over any number of restarts, and once; the statistics do without it."""
    book = SessionBook(MINUTE, SHARES)
    failure = SessionFailure(MINUTE, 0)
    book.take("p1", [session(1, canary=True, failure=failure), session(2)], ALL, AT_S + 30.0)
    for _ in range(2):
        book = SessionBook.restored(json.loads(json.dumps(book.dump())), SHARES)
        book.take("p1", [session(2)], ALL, AT_S + 30.0)
    assert book.uncounted() == ([1, 1], [1, 0])
    (minute,) = book.close(AT_S + 60.0 + LATE_S)
    assert (minute.begun, minute.failures) == ((0, 0), {})


def test_a_minute_waits_for_all_pickers_and_not_for_ever() -> None:
    """A silent picker is named; what it tells later counts in the next minute."""
    book = SessionBook(MINUTE, SHARES)
    book.take("p1", [session(1)], ALL, AT_S + 61.0)
    book.take("p2", [], ALL, AT_S + 10.0)
    assert book.close(AT_S + 61.0) == []
    assert book.silent(AT_S + 10.0 + SILENT_S) == ["p2"]
    (minute,) = book.close(AT_S + 60.0 + LATE_S)
    assert minute.begun == (0, 1)
    late = session(2, failure=SessionFailure(MINUTE, 0))
    for picker, told in (("p1", []), ("p2", [late])):
        book.take(picker, told, ALL, AT_S + 120.0)
    (minute,) = book.close(AT_S + 120.0)
    assert (minute.begun, minute.failures, book.late) == ((0, 1), {(0.05, 0.95): (0, 1)}, 1)
    book.gone("p2")
    assert book.silent(AT_S + 1e6) == ["p1"]


def test_the_outcome_of_a_canary_session_is_known_after_ten_minutes() -> None:
    """A later failure still counts as a failure, and not for that outcome."""
    book = SessionBook(MINUTE, SHARES)
    soon, late = SessionFailure(MINUTE + 2, 0), SessionFailure(MINUTE + OUTCOME_MIN + 5, 0)
    told = [session(1, canary=True, failure=soon), session(2, canary=True), session(3)]
    book.take("p1", told, ALL, AT_S)
    known = []
    for number in range(OUTCOME_MIN + 8):
        end_s = AT_S + 60.0 * (number + 1)
        extra = [session(2, canary=True, failure=late)] if number == OUTCOME_MIN + 5 else []
        book.take("p1", extra, ALL, end_s)
        (minute,) = book.close(end_s)
        known.append((minute.known, sum(map(sum, minute.failures.values()))))
    assert [each for each in known if each != ((0, 0), 0)] == [
        ((0, 0), 1),
        ((2, 1), 0),
        ((0, 0), 1),
    ]


def test_after_a_restart_no_session_counts_twice_and_open_ones_are_left_out() -> None:
    """Of both arms alike, also where pickers tell again what they told before."""
    rng = random.Random(11)
    book = SessionBook(MINUTE, SHARES)
    before = [session(rng.getrandbits(64), canary=rng.random() < 0.3) for _ in range(200)]
    book.take("p1", before, ALL, AT_S + 60.0)
    (first,) = book.close(AT_S + 60.0)
    book = SessionBook.restored(json.loads(json.dumps(book.dump())), SHARES)
    failing = [each._replace(failure=SessionFailure(MINUTE + 1, 0)) for each in before]
    new = [session(rng.getrandbits(64), at_s=61.0) for _ in range(10)]
    book.take("p1", failing + new, ALL, AT_S + 120.0)
    (second,) = book.close(AT_S + 120.0)
    assert sum(first.begun) == 200
    assert (second.begun, second.failures) == ((0, 10), {})
    again = SessionBook.restored(json.loads(json.dumps(book.dump())), SHARES)
    again.take("p1", failing + new, ALL, AT_S + 180.0)
    assert again._sessions == {}


def test_sessions_are_bounded_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms lose the same share, and no record of another sample comes in."""
    monkeypatch.setattr(module, "MAX_SESSIONS", 500)
    book = SessionBook(MINUTE, SHARES)
    rng = random.Random(2)
    for _ in range(40):
        told = [session(rng.getrandbits(64), canary=rng.random() < 0.5) for _ in range(100)]
        book.take("p1", told, ALL, AT_S + 60.0)
    assert len(book._sessions) <= 500
    assert book.limit < ALL
    assert all(sampled(each, book.limit) for each in book._sessions)
    (minute,) = book.close(AT_S + 60.0)
    assert 0.4 < minute.begun[0] / sum(minute.begun) < 0.6


def test_the_smallest_sample_of_all_pickers_holds() -> None:
    """A picker with more sessions than it can tell tells half; the others' other half goes too."""
    book = SessionBook(MINUTE, SHARES)
    rng = random.Random(3)
    told = [session(rng.getrandbits(64)) for _ in range(1_000)]
    book.take("p1", told, ALL, AT_S + 60.0)
    book.take("p2", [], ALL // 4, AT_S + 60.0)
    assert 180 < len(book._sessions) < 320
    book.take("p3", [session(5, step=9)], ALL, AT_S + 60.0)
    assert 5 not in book._sessions
