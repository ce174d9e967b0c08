"""What a picker counts of sessions: once each, in their arm, and no more than its bounds."""

from __future__ import annotations

import pytest

from ext_proc import canary
from ext_proc.canary import AFTER_S, KNOWN_S, Arms, CanarySessions, stratum_of
from tidegate_common.canary import ALL, SessionFailure, SessionRecord, sampled

ARMS = Arms("r1", "v2", "v1", 0)
UNIX = 1_800_000_000.0


def counting(arms: Arms | None = ARMS) -> CanarySessions:
    """Return the sessions of a process that is old enough."""
    made = CanarySessions(-KNOWN_S)
    made.set_arms(arms, 0.0)
    return made


def pick(
    counted: CanarySessions,
    ticket: int,
    session: int | None,
    variant: str = "v1",
    at: float = 0.0,
    **more: object,
) -> None:
    """Pick a request, as the router does."""
    if session is None or not counted.goes_on(ticket, session, variant, at):
        counted.begins(ticket, session, variant, at, UNIX + at, **more)  # type: ignore[arg-type]


def request(
    counted: CanarySessions,
    ticket: int,
    session: int | None,
    variant: str = "v1",
    at: float = 0.0,
    **end: object,
) -> None:
    """Pick and end a request."""
    seen = {key: end.pop(key) for key in ("form", "uncached", "predicted") if key in end}
    pick(counted, ticket, session, variant, at, **seen)
    told = {"failed": False, "good": True, **end}
    counted.ended(ticket, UNIX + at + 1.0, **told)  # type: ignore[arg-type]


def told(counted: CanarySessions) -> dict[int, SessionRecord]:
    """Return what is told, by session."""
    return {each.digest: each for each in counted.untold()}


def test_a_session_counts_once_with_its_first_request_and_its_first_failure() -> None:
    """Whatever follows."""
    counted = counting()
    request(counted, 1, 7, "v2", form="chat", uncached=300, times_s=[("first-token", 0.2)])
    request(counted, 2, 7, "v2", 60.0, failed=True, good=False)
    request(counted, 3, 7, "v2", 120.0, failed=True, good=False)
    request(counted, 4, 7, "v2", 180.0, times_s=[("first-token", 9.0)])
    (record,) = counted.untold()
    assert (record.canary, record.step, record.begun_ms) == (True, 0, int(UNIX * 1000))
    assert record.first is not None
    assert (record.first.stratum, record.first.minute) == ("chat/9.0", int(UNIX // 60))
    assert record.failure == SessionFailure(int(UNIX // 60) + 1, 0)


def test_requests_without_a_session_are_sessions_of_their_own() -> None:
    """Each with another digest."""
    counted = counting()
    for ticket in range(50):
        request(counted, ticket, None)
    assert len(told(counted)) == 50


def test_a_session_that_began_before_the_rollout_does_not_count() -> None:
    """Nor does one that this process is too young to know; a request of its own does."""
    counted = counting(None)
    request(counted, 1, 7)
    counted.set_arms(ARMS, 0.0)
    request(counted, 2, 7, at=5.0)
    request(counted, 3, 8, at=5.0)
    assert set(told(counted)) == {8}
    young = CanarySessions(0.0)
    young.set_arms(ARMS, 0.0)
    request(young, 1, 7, at=KNOWN_S - 1.0)
    request(young, 2, None, at=KNOWN_S - 1.0)
    request(young, 3, 9, at=KNOWN_S)
    assert len(told(young)) == 2
    assert 9 in told(young)


def test_a_session_that_was_quiet_for_long_begins_again() -> None:
    """Its cache is cold by then, in either arm."""
    counted = counting(None)
    request(counted, 1, 7)
    counted.set_arms(ARMS, 0.0)
    request(counted, 2, 7, at=KNOWN_S + 1.0)
    assert set(told(counted)) == {7}


def test_a_step_censors_the_session_that_it_moves() -> None:
    """What was told stays; failures in the other arm are told of neither."""
    counted = counting()
    request(counted, 1, 7, "v1")
    counted.set_arms(ARMS._replace(step=1), 0.0)
    request(counted, 2, 7, "v2", 1.0, failed=True, good=False)
    request(counted, 3, 7, "v1", 2.0, failed=True, good=False)
    record = told(counted)[7]
    assert (record.canary, record.failure) == (False, None)


def test_a_failure_has_the_step_in_force_when_it_was_picked() -> None:
    """The session has that of its beginning."""
    counted = counting()
    request(counted, 1, 7, "v1")
    counted.set_arms(ARMS._replace(step=2), 0.0)
    request(counted, 2, 7, "v1", 1.0, failed=True, good=False)
    record = told(counted)[7]
    assert record.step == 0
    assert record.failure is not None
    assert record.failure.step == 2


def test_variants_that_callers_chose_and_others_begin_no_session() -> None:
    """Only weights draw at random."""
    counted = counting()
    pick(counted, 1, 7, "v2", drawn=False)
    pick(counted, 2, 8, "v3")
    request(counted, 3, 7, "v2", 1.0)
    assert told(counted) == {}


@pytest.mark.parametrize(
    ("predicted", "cached", "short"),
    [
        (1_000, 1_000, False),
        (1_000, 900, True),
        (1_000, 0, True),
        (1_000, None, None),
        (100, 0, None),
    ],
)
def test_a_cache_is_judged_by_what_was_predicted(
    predicted: int, cached: int | None, short: bool | None
) -> None:
    """Not where little was, and not where the engine does not tell."""
    counted = counting()
    request(counted, 1, 7, predicted=predicted, cached=cached)
    first = told(counted)[7].first
    assert first is not None
    assert first.short is short


def test_an_abandoned_request_is_no_failure_and_has_no_times() -> None:
    """It says nothing of the variant."""
    counted = counting()
    request(counted, 1, 7, failed=False, good=False, times_s=[("first-token", 1.0)])
    assert told(counted)[7][4:] == (None, None)


def test_what_was_told_is_forgotten_unless_it_changed_meanwhile() -> None:
    """A report that is lost is told again."""
    counted = counting()
    request(counted, 1, 7)
    request(counted, 2, 8)
    sent = counted.untold()
    request(counted, 3, 8, at=1.0, failed=True, good=False)
    assert counted.untold() != sent
    counted.told(sent)
    assert set(told(counted)) == {8}


def test_another_rollout_begins_anew() -> None:
    """Its sessions are those that begin from then on."""
    counted = counting()
    request(counted, 1, 7)
    counted.set_arms(ARMS._replace(rollout="r2"), 0.0)
    request(counted, 2, 7, at=1.0)
    assert told(counted) == {}


def test_a_rollout_that_has_ended_counts_no_further_sessions() -> None:
    """Only the ends of its own are taken; after a while it is forgotten."""
    counted = counting()
    pick(counted, 1, 7, "v2")
    counted.set_arms(None, 1.0)
    pick(counted, 2, 8, "v2", 2.0)
    counted.ended(1, UNIX + 3.0, failed=True, good=False)
    counted.ended(2, UNIX + 3.0, failed=True, good=False)
    assert set(told(counted)) == {7}
    assert told(counted)[7].failure is not None
    counted.settle(0.5 + AFTER_S)
    assert counted.rollout == "r1"
    counted.settle(1.0 + AFTER_S)
    assert (counted.rollout, told(counted), counted.open) == (None, {}, {})


def test_every_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and requests by their age; what is told by a sample that is the same everywhere."""
    for name in ("MAX_SESSIONS", "MAX_OPEN", "MAX_UNTOLD"):
        monkeypatch.setattr(canary, name, 64)
    counted = counting()
    for ticket in range(2_000):
        pick(counted, ticket, ticket * 2_654_435_761)
    assert len(counted._known) == 64
    assert len(counted.open) <= 64
    assert 0 < len(counted.untold()) <= 64
    assert counted.limit < ALL
    assert all(sampled(each.digest, counted.limit) for each in counted.untold())


def test_a_stratum_is_a_quarter_of_a_doubling_of_uncached_tokens() -> None:
    """By the two bits after the first; below 128 tokens, a whole one. Below zero is zero."""
    assert stratum_of("chat", 0) == stratum_of("chat", -1) == "chat/0"
    assert stratum_of("chat", 64) == stratum_of("chat", 127) == "chat/7"
    assert stratum_of("chat", 512) == stratum_of("chat", 639) == "chat/10.0"
    assert stratum_of("chat", 640) == "chat/10.1"
    assert stratum_of("chat", 1_023) == "chat/10.3"
    assert stratum_of("infer", 1_024) == "infer/11.0"
