"""Records of requests: what is kept, for how long, and how it is found."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.exchange import Pick, Refuse
from ext_proc.observability.records import (
    FAILURES,
    KEPT,
    MAX_ANSWER,
    MAX_FOUND,
    MAX_ID,
    MINUTE_S,
    MINUTES,
    MOST_PRICES,
    REFUSALS,
    SLOWEST,
    RequestRecords,
)
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Ticket

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"x-request-id": "a", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Entry(NamedTuple):
    """A final log entry."""

    ticket: str
    lasted_s: float = 0.1
    served: str | None = "10.0.0.1:80"
    attempts: int = 1
    status: int = 200
    grpc_status: int | None = None
    cause: str = ""
    first_at_s: float | None = 0.05


def pick(number: int, **more: Any) -> Pick:
    """Return a pick with this ticket."""
    ticket = Ticket(number, EndpointKey("r1", 1), "llm", 1.0, 0.0)
    decision = Decision(ticket, ("10.0.0.1:80", "10.0.0.2:80"), "llm", "stable", "prefix", **more)
    return Pick("", (), False, str(number), decision, 4, 64, 32)


def refuse(reason: str = "saturated", body: bytes = b"busy") -> Refuse:
    """Return a refusal."""
    return Refuse(429, None, reason, body)


def test_a_request_is_found_by_its_id_and_by_its_trace() -> None:
    """With what was picked, what failed before, who served, and how it ended."""
    records = RequestRecords("life-")
    records.picked(pick(7), HEADERS, 1.0)
    records.attempted(
        "life-7",
        Attempt("10.0.0.1:80", Ended.UNREACHED, read=False, answered=False, began=False, status=0),
    )
    records.ended(Entry("life-7", served="10.0.0.2:80", attempts=2), "good", 2.0)
    (found,) = records.find("a", 3.0)
    assert found == records.find(TRACE.upper(), 3.0)[0]
    assert json.loads(json.dumps(found)) == found
    assert (found["picked"], found["reason"], found["age_s"]) == ("r1", "prefix", 2.0)
    assert found["addresses"] == ["10.0.0.1:80", "10.0.0.2:80"]
    assert (found["prompt_tokens"], found["predicted_tokens"]) == (64, 32)
    assert [each["ended"] for each in found["attempts"]] == ["unreached"]
    assert (found["end"]["served"], found["end"]["attempts"]) == ("10.0.0.2:80", 2)


def test_a_request_that_runs_has_no_end() -> None:
    """It is found at once, and its end is unknown."""
    records = RequestRecords("life-")
    records.picked(pick(7), HEADERS, 1.0)
    assert records.find("a", 1.0)[0]["end"] is None
    assert records.find("", 1.0) == records.find("other", 1.0) == []


def test_a_refusal_is_found() -> None:
    """A client that was refused asks why."""
    records = RequestRecords()
    records.refused(refuse(body=b"x" * 2 * MAX_ANSWER), "llm", HEADERS, 1.0)
    (found,) = records.find("a", 2.0)
    assert (found["refused"], found["status"], found["pool"]) == ("saturated", 429, "llm")
    assert len(found["answer"]) == MAX_ANSWER


def test_all_is_bounded() -> None:
    """Picks, ends, failures, refusals, the slowest, ids, and what one id finds."""
    records = RequestRecords("life-")
    for number in range(KEPT + 10):
        records.picked(pick(number), {"x-request-id": "a" * 1000}, number)
        records.ended(Entry(f"life-{number}"), "error", number)
        records.refused(refuse(), "llm", HEADERS, number)
    now = float(KEPT + 10)
    assert len(records.describe("failures", now)) == FAILURES
    assert len(records.describe("refusals", now)) == REFUSALS
    assert len(records.describe("slowest", now)) <= SLOWEST * MINUTES
    assert len(records.find("a" * MAX_ID, now)) == MAX_FOUND
    assert records.since_s(now) == KEPT
    records.picked(pick(1, candidates=[None] * (MOST_PRICES + 1), prices=[1.0]), HEADERS, now)
    assert records.find(TRACE, now)[0]["candidates"] is None


def test_a_failure_outlives_the_ring() -> None:
    """Good requests that come after it do not push it out."""
    records = RequestRecords("life-")
    records.picked(pick(1), HEADERS, 0.0)
    records.ended(Entry("life-1", status=500), "error", 0.0)
    for number in range(2, KEPT + 10):
        records.picked(pick(number), {}, 1.0)
        records.ended(Entry(f"life-{number}"), "good", 1.0)
    (found,) = records.find("a", 2.0)
    assert found["end"]["outcome"] == "error"
    assert found in records.describe("failures", 2.0)


@given(spans=st.lists(st.floats(0.001, 1000), min_size=1, max_size=60))
def test_the_slowest_of_a_minute_are_kept(spans: list[float]) -> None:
    """Whatever order they come in."""
    records = RequestRecords("life-")
    for number, span in enumerate(spans):
        records.picked(pick(number), HEADERS, 0.0)
        records.ended(Entry(f"life-{number}", lasted_s=span), "good", 0.0)
    found = [each["end"]["lasted_s"] for each in records.describe("slowest", 1.0)]
    assert found == [round(each, 4) for each in sorted(spans, reverse=True)[:SLOWEST]]


def test_slow_requests_are_forgotten_after_some_minutes() -> None:
    """What was slow an hour ago explains nothing now."""
    records = RequestRecords("life-")
    records.picked(pick(1), HEADERS, 0.0)
    records.ended(Entry("life-1", lasted_s=9.0), "good", 0.0)
    assert records.describe("slowest", MINUTE_S)
    assert records.describe("slowest", MINUTES * MINUTE_S) == []


def test_entries_of_another_run_change_nothing() -> None:
    """A ticket of another life, or none, belongs to no record here."""
    records = RequestRecords("life-")
    records.picked(pick(1), HEADERS, 0.0)
    for ticket in ("dead-1", "", "life-", "life-x", "life-" + "9" * 40):
        records.ended(Entry(ticket), "error", 1.0)
    assert records.find("a", 1.0)[0]["end"] is None
    assert records.describe("failures", 1.0) == []
