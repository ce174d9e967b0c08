"""What an entry says of the attempts of its request."""

from __future__ import annotations

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.entries import attempt_of, passed_over
from support.log_entries import entry

ENTRY = entry()


def test_statuses_are_the_replicas_only_if_it_answered():
    """The proxy answers 503 where a replica broke off."""
    broken = ENTRY._replace(status=503, ended=Ended.BROKEN, answered=False, answer_bytes=91)
    assert attempt_of(broken) == Attempt(
        "10.0.0.1:8000", Ended.BROKEN, read=True, answered=False, began=False, status=0
    )
    assert attempt_of(ENTRY).status == 200
    assert attempt_of(ENTRY).began


def test_attempts_before_the_last_failed_on_the_picks_before_it():
    """The proxy tries the list in order."""
    assert passed_over(ENTRY) == []
    third = ENTRY._replace(attempts=3, served="10.0.0.3:8000")
    assert [each.address for each in passed_over(third)] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert {(each.ended, each.read) for each in passed_over(third)} == {(Ended.BROKEN, None)}
    assert passed_over(ENTRY._replace(attempts=2)) == [], "served by the pick after all"
    assert passed_over(third._replace(picks="")) == []
    assert len(passed_over(third._replace(attempts=99, served=None))) == 3


def test_where_the_last_attempt_reached_no_replica_the_others_did_not_either():
    """All that is known is that none of the picks served."""
    third = ENTRY._replace(attempts=3, served="10.0.0.3:8000", ended=Ended.UNREACHED)
    assert {(each.ended, each.read) for each in passed_over(third)} == {(Ended.UNREACHED, False)}
