"""The verdict of one entry on its replica."""

from __future__ import annotations

import pytest

from ext_proc.feedback.entries import Entry, Verdict, judge, passed_over

ENTRY = Entry(
    picker="p",
    ticket="x-1",
    unreadable=False,
    cluster="llm/stable/http",
    served="10.0.0.1:8000",
    picks="10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000",
    attempts=1,
    status=200,
    grpc_status=None,
    broken=False,
    left=False,
    shed=False,
    final=True,
    first_byte_s=0.1,
    answer_bytes=10,
    ended_unix_s=0.0,
)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.GOOD),
        ({"grpc_status": 0}, Verdict.GOOD),
        ({"status": 400}, Verdict.CLIENT),
        ({"status": 404}, Verdict.CLIENT),
        ({"status": 429}, Verdict.CLIENT),
        ({"status": 500}, Verdict.ERROR),
        ({"status": 500, "unreadable": True}, Verdict.CLIENT),
        ({"status": 503}, Verdict.ERROR),
        ({"grpc_status": 3}, Verdict.CLIENT),
        ({"grpc_status": 13}, Verdict.ERROR),
        ({"grpc_status": 14}, Verdict.ERROR),
        ({"status": 503, "broken": True}, Verdict.BROKEN),
        ({"status": 0, "left": True}, Verdict.LEFT),
        ({"status": 200, "left": True, "broken": True}, Verdict.LEFT),
        ({"status": 503, "served": None}, Verdict.LOCAL),
        ({"status": 503, "shed": True}, Verdict.LOCAL),
    ],
)
def test_a_verdict(changes, verdict):
    """The cause may be none, the client, the replica, or the proxy itself."""
    assert judge(ENTRY._replace(**changes)) is verdict


def test_attempts_before_the_last_failed_on_the_picks_before_it():
    """The proxy tries the list in order."""
    assert passed_over(ENTRY) == []
    third = ENTRY._replace(attempts=3, served="10.0.0.3:8000")
    assert passed_over(third) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert passed_over(ENTRY._replace(attempts=2)) == [], "served by the pick after all"
    assert passed_over(third._replace(picks="")) == []
    assert len(passed_over(third._replace(attempts=99, served=None))) == 3
