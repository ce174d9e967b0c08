"""Sessions of rollouts in pickers' reports: read within bounds."""

from __future__ import annotations

import pytest

from tidegate_api.fleet.v1 import report_pb2 as api
from tidegate_common.canary import ALL, FirstRequest, SessionFailure, SessionRecord
from tidegate_common.fine_histogram import BUCKETS
from xds_server.applications.traffic.reading import (
    MAX_ROLLOUTS,
    MAX_SESSIONS,
    ReportError,
    ToldSessions,
    read_canaries,
)


def session(**other: object) -> api.CanarySession:
    """Return a session as a picker tells it."""
    return api.CanarySession(**{"digest": 7, "begun_unix_ms": 5, "step": 1, "canary": True} | other)


def test_a_session_is_read_as_it_was_told() -> None:
    """What is absent is not known."""
    first = api.CanaryFirstRequest(
        minute=9, stratum="chat 10", times={"whole": 2, "first-token": 1}
    )
    failure = api.CanaryFailure(minute=10, step=2)
    told = api.CanarySessions(
        pool="llm",
        rollout="llm-1",
        limit=ALL,
        until_seconds=3.5,
        sessions=[session(), session(first=first, failure=failure)],
    )
    bare = SessionRecord(7, 5, 1, True)
    known = FirstRequest(9, "chat 10", (("first-token", 1), ("whole", 2)))
    whole = bare._replace(first=known, failure=SessionFailure(10, 2))
    assert read_canaries([told]) == [ToldSessions("llm", "llm-1", [bare, whole], ALL, 3.5)]
    first.short = False
    told.sessions[1].first.CopyFrom(first)
    record = read_canaries([told])[0].records[1]
    assert record.first is not None
    assert record.first.short is False


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (api.CanarySessions(limit=ALL + 1), "limit"),
        (api.CanarySessions(until_seconds=float("nan")), "not finite"),
        (api.CanarySessions(sessions=[session()] * (MAX_SESSIONS + 1)), "more than 4096 sessions"),
        (api.CanarySessions(sessions=[session(begun_unix_ms=-1)]), "-1 is not from 0"),
        (api.CanarySessions(sessions=[session(step=64)]), "64 is not from 0"),
        (
            api.CanarySessions(sessions=[session(failure=api.CanaryFailure(minute=2**31))]),
            "is not from 0",
        ),
        (
            api.CanarySessions(
                sessions=[session(first=api.CanaryFirstRequest(times={"a": BUCKETS}))]
            ),
            "bucket",
        ),
        (
            api.CanarySessions(
                sessions=[
                    session(first=api.CanaryFirstRequest(times=dict.fromkeys("abcdefghi", 1)))
                ]
            ),
            "more than 8 times",
        ),
        (
            api.CanarySessions(sessions=[session(first=api.CanaryFirstRequest(stratum="s" * 99))]),
            "more than 64",
        ),
        (api.CanarySessions(pool="p" * 999), "more than 256"),
    ],
)
def test_what_breaks_a_bound_is_refused(message: api.CanarySessions, said: str) -> None:
    """A picker may be broken or hostile; nothing of its report is kept."""
    with pytest.raises(ReportError, match=said):
        read_canaries([message])


def test_the_number_of_rollouts_is_bounded() -> None:
    """As many as the control server runs."""
    with pytest.raises(ReportError, match="256 rollouts"):
        read_canaries([api.CanarySessions()] * (MAX_ROLLOUTS + 1))
