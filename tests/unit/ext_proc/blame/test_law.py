"""The law of blame over every combination of evidence."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from ext_proc.blame.evidence import Attempt, Ended, Evidence
from ext_proc.blame.law import (
    RULES,
    Blame,
    Effect,
    Mark,
    Rule,
    all_alike,
    fails_alike,
    keeps_prompt,
    lacks_model,
    ruling,
    sign,
    stands_alone,
    survived,
    suspected_death,
    verdict,
)
from ext_proc.blame.retries import RETRIES, Repeat, repeat, retry

AT, OTHER = "10.0.0.1:8000", "10.0.0.2:8000"
COUNTS = {Effect.AT_ONCE, Effect.BY_ORIGIN}


@cache
def attempts() -> tuple[Attempt, ...]:
    """Return an attempt for each combination of facts, contradictory ones included."""
    return tuple(
        Attempt(*facts)
        for facts in product(
            [AT, None],
            Ended,
            [True, False, None],
            [True, False],
            [True, False],
            [0, 200, 400, 404, 503],
            [None, 0, 5, 14],
        )
    )


@cache
def cases() -> tuple[tuple[Evidence, Rule], ...]:
    """Return every combination of evidence, with the row that holds."""
    around = list(
        product([False, True], [False, True], [None, True], [None, True, False], [False, True])
    )
    found = (Evidence(attempt, *known) for attempt in attempts() for known in around)
    return tuple((case, ruling(case)) for case in found)


def evidence(ended: Ended = Ended.DONE, status: int = 0, **changes) -> Evidence:
    answered = changes.pop("answered", status > 0)
    usual = {"read": True, "answered": answered, "began": False, "grpc_status": None}
    facts = {name: changes.pop(name, value) for name, value in usual.items()}
    return Evidence(Attempt(AT, ended, status=status, **facts), **changes)


@pytest.mark.parametrize(
    ("given", "blame", "effect"),
    [
        (evidence(status=200), Blame.NONE, Effect.GOOD),
        (evidence(status=200, grpc_status=0), Blame.NONE, Effect.GOOD),
        (evidence(status=400), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=302), Blame.NONE, Effect.GOOD),
        (evidence(status=502), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(status=504), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(status=501), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=200, grpc_status=2), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(status=200, grpc_status=3), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=200, grpc_status=8), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=429), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=200, grpc_status=4), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=500), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(status=200, grpc_status=13), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(status=500, unreadable=True), Blame.CALLER, Effect.ANSWERED),
        (evidence(status=503, sibling_well=True), Blame.REPLICA, Effect.AT_ONCE),
        (evidence(status=503, alike=True), Blame.REQUEST, Effect.ANSWERED),
        (evidence(status=503, read=False), Blame.US, Effect.NOTHING),
        (evidence(Ended.UNREACHED, read=False), Blame.NETWORK, Effect.AT_ONCE),
        (evidence(Ended.UNREACHED, read=False, restarted=True), Blame.REPLICA, Effect.AT_ONCE),
        (evidence(Ended.BROKEN, read=False), Blame.NETWORK, Effect.AT_ONCE),
        (evidence(Ended.BROKEN), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(Ended.BROKEN, 200), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(Ended.BROKEN, 200, restarted=True), Blame.REPLICA, Effect.AT_ONCE),
        (evidence(Ended.BROKEN, 200, began=True, restarted=True), Blame.REPLICA, Effect.BY_ORIGIN),
        (evidence(Ended.BROKEN, alike=True), Blame.REQUEST, Effect.NOTHING),
        (evidence(Ended.BROKEN, alike=True, restarted=True), Blame.REPLICA, Effect.AT_ONCE),
        (evidence(Ended.BROKEN, sibling_well=True), Blame.REPLICA, Effect.AT_ONCE),
        (evidence(Ended.BROKEN, others_well=True), Blame.NETWORK, Effect.BY_ORIGIN),
        (evidence(Ended.TRY_TIMEOUT), Blame.US, Effect.SILENT),
        (evidence(Ended.TIMEOUT), Blame.US, Effect.NOTHING),
        (evidence(Ended.TIMEOUT, 200), Blame.US, Effect.NOTHING),
        (evidence(Ended.TIMEOUT, 200, began=True), Blame.US, Effect.ALIVE),
        (evidence(Ended.TRY_TIMEOUT, 200, began=True), Blame.US, Effect.ALIVE),
        (evidence(Ended.LEFT), Blame.CALLER, Effect.NOTHING),
        (evidence(Ended.LEFT, 200), Blame.CALLER, Effect.NOTHING),
        (evidence(Ended.LEFT, 200, began=True), Blame.CALLER, Effect.ALIVE),
        (evidence(Ended.LOCAL), Blame.US, Effect.NOTHING),
    ],
)
def test_a_verdict(given, blame, effect):
    """Who is at fault, and what ejection makes of it."""
    assert verdict(given) is blame
    assert ruling(given).effect is effect


def test_every_combination_of_evidence_has_one_verdict():
    """The first row that holds decides, and one always holds."""
    for case, rule in cases():
        first = next(number for number, each in enumerate(RULES) if each.holds(case))
        assert RULES[first] is rule
        assert rule.blame in Blame


def test_every_row_decides_something():
    """No row stands behind others that hold wherever it does."""
    assert {id(rule) for _, rule in cases()} == {id(rule) for rule in RULES}
    for rules in (RULES, RETRIES):
        assert len({rule.words for rule in rules}) == len(rules)


def test_what_the_content_decides_is_a_sign_of_life_and_nothing_else():
    """It is good for nothing: no row of failures, no share, no half-open replica, no progress."""
    for given in (
        evidence(status=400),
        evidence(status=404),
        evidence(status=422),
        evidence(status=200, grpc_status=3),
        evidence(status=200, grpc_status=5),
        evidence(status=500, unreadable=True),
        evidence(status=500, alike=True),
    ):
        marks = ruling(given).marks
        assert (marks.ejection, marks.frozen) == (Mark.ALIVE, Mark.NOTHING)
        assert marks.speed is marks.reuse is Mark.NOTHING
    for case, rule in cases():
        assert (rule.marks.ejection is Mark.GOOD) <= (case.attempt.status < 400)


def test_the_marks_agree_with_what_follows_from_attempts():
    """Each use reads its own function; the table says the same."""
    for attempt in attempts():
        reached = attempt.read is not False and attempt.address is not None
        answered = attempt.answered == (attempt.status > 0) and attempt.answered >= attempt.began
        grpc = attempt.grpc_status is None or attempt.answered
        if not answered or not grpc or (attempt.answered and not reached):
            continue  # no such attempt exists
        marks = ruling(Evidence(attempt)).marks
        assert not suspected_death(attempt) or marks.deadly is Mark.FAILED
        assert not survived(attempt) or marks.deadly is Mark.ALIVE or not attempt.reached
        assert not keeps_prompt(attempt) or marks.reuse is Mark.GOOD or not attempt.reached
        server_error = marks.ejection is Mark.BY_CLIENT
        missing = marks.placement is Mark.FAILED or server_error
        assert not lacks_model(attempt) or missing or marks.reuse is Mark.GOOD
    for rule in RULES:
        assert rule.blame is not Blame.NONE or rule.speed is Mark.GOOD


def test_a_running_request_is_the_replicas_only_once_its_client_has_sent_it():
    """Until then the replica waits for the client; any byte of an answer shows progress."""
    for delivered, answered in product([False, True], repeat=2):
        expected = Mark.ALIVE if answered else Mark.SILENT if delivered else Mark.NOTHING
        assert sign(delivered=delivered, answered=answered) is expected


def test_only_replica_and_network_lose_by_a_verdict():
    """What the caller, the request or we did counts against no replica."""
    for case, rule in cases():
        assert (rule.effect in COUNTS) <= (rule.blame in {Blame.REPLICA, Blame.NETWORK})
        assert (rule.effect is Effect.GOOD) == (rule.blame is Blame.NONE)
        if case.attempt.ended in {Ended.TIMEOUT, Ended.TRY_TIMEOUT, Ended.LEFT, Ended.LOCAL}:
            assert rule.effect not in COUNTS


def test_one_request_counts_at_once_only_where_it_cannot_be_the_cause():
    """Nothing was read, another replica answered it well, or the process was replaced."""
    for case, rule in cases():
        if rule.effect is Effect.AT_ONCE:
            unread = case.attempt.ended is Ended.UNREACHED or case.attempt.read is False
            assert unread or case.sibling_well or case.restarted


def test_what_stands_alone_is_not_changed_by_siblings():
    """Such a verdict may be given before the request's end is known."""
    for attempt in attempts():
        if not stands_alone(attempt):
            continue
        for restarted, others in product([None, True], [None, True]):
            alone = ruling(Evidence(attempt, restarted=restarted, others_well=others))
            for alike, well, unreadable in product([False, True], repeat=3):
                full = Evidence(attempt, alike, well, restarted, others, unreadable)
                assert ruling(full) is alone


def test_retries_never_exceed_the_law():
    """Unread or declined: any number. Read, unanswered: the reads left. Begun: never."""
    for attempt in attempts():
        allowed = [retry(attempt, reads) for reads in (0, 1)]
        declined = attempt.ended is Ended.DONE and (
            attempt.status == 503 or attempt.grpc_status == 14
        )
        if attempt.began or attempt.ended in {Ended.LEFT, Ended.LOCAL, Ended.TIMEOUT}:
            assert allowed == [False, False]
        elif attempt.ended is Ended.UNREACHED and not attempt.answered:
            assert allowed == [True, True]
        elif attempt.read is not False and not declined:
            assert not allowed[0]
        assert allowed[0] <= allowed[1]
        assert (repeat(attempt) in {Repeat.ALWAYS, Repeat.DECLINED}) == allowed[0]


def test_a_404_is_repeated_only_where_another_replica_has_the_model():
    """It is the only begun answer that is; one of an unknown name is final."""
    for attempt in attempts():
        marked = attempt._replace(elsewhere=True)
        missing = attempt.ended is Ended.DONE and (
            attempt.status == 404 or attempt.grpc_status == 5
        )
        assert (repeat(marked) is Repeat.LISTED) == missing == lacks_model(attempt)
        if missing:
            assert repeat(attempt) in {Repeat.NEVER, Repeat.DECLINED}
            assert retry(marked, 0)
        else:
            assert repeat(marked) is repeat(attempt)


def test_only_a_read_request_without_an_answer_is_suspected():
    """A refused connection or a broken-off answer is no sign that a request killed the replica."""
    for attempt in attempts():
        if suspected_death(attempt):
            assert attempt.ended is Ended.BROKEN
            assert attempt.read
            assert not attempt.began
            assert not keeps_prompt(attempt)


def test_headers_alone_say_nothing_of_the_engine():
    """Servers on uvicorn send them at once, so a deadly prompt would be cleared by them."""
    headers = Attempt(AT, Ended.BROKEN, read=True, answered=True, began=False, status=200)
    assert suspected_death(headers)
    for ended in (Ended.BROKEN, Ended.LEFT, Ended.TIMEOUT):
        attempt = headers._replace(ended=ended)
        assert not survived(attempt)
        assert not keeps_prompt(attempt)
        assert survived(attempt._replace(began=True))
        assert keeps_prompt(attempt._replace(began=True))
    refused = headers._replace(ended=Ended.DONE, status=400)
    assert survived(refused), "a complete answer without a body is one"


def test_failing_alike_takes_two_replicas_and_one_kind_of_failure():
    """Refused connections are no evidence against a request, and neither is one replica."""
    broken = Attempt(AT, Ended.BROKEN, True, False, False, 0)
    elsewhere = broken._replace(address=OTHER)
    refused = Attempt("10.0.0.3:1", Ended.UNREACHED, False, False, False, 0)
    error = Attempt(OTHER, Ended.DONE, True, True, True, 500)
    assert all_alike([broken, elsewhere])
    assert all_alike([refused, broken, elsewhere])
    assert all_alike([error, error._replace(address=AT, status=503)])
    assert not all_alike([broken, broken])
    assert not all_alike([broken])
    assert not all_alike([refused, refused._replace(address=AT)])
    assert not all_alike([broken, error])
    assert not fails_alike(error, error._replace(address=AT, status=404))
