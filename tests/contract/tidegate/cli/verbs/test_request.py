"""The verb ``request``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

RECORD: dict[str, Any] = {
    "request_id": "a",
    "trace_id": None,
    "age_s": 3.5,
    "pool": "llm",
    "variant": "stable",
    "reason": "prefix",
    "picked": "r1",
    "addresses": ["10.0.0.1:80", "10.0.0.2:80"],
    "candidates": [{"id": "r1", "price": 0.25}, {"id": "r2", "price": 0.5}],
    "prompt_tokens": 64,
    "predicted_tokens": 32,
    "attempts": [{"address": "10.0.0.1:80", "ended": "unreached", "status": None}],
    "end": {
        "outcome": "good",
        "cause": None,
        "served": "10.0.0.2:80",
        "attempts": 2,
        "status": 200,
        "first_byte_s": 0.05,
        "lasted_s": 0.1,
    },
    "refused": None,
}


def found(*records: dict[str, Any], silent: tuple[str, ...] = ()) -> api.GetRequestResponse:
    """Return an answer with records of one picker."""
    return api.GetRequestResponse(
        records=[api.RequestRecord(picker="p1", record_json=json.dumps(each)) for each in records],
        pickers=[api.PickerAnswer(picker="p1", since_seconds=41.2)],
        silent=silent,
    )


def test_a_request_is_told_in_words(run: Run, admin: FakeAdmin) -> None:
    """Pick, prices, failed attempts, who served, how it ended."""
    admin.found = found(RECORD)
    ran = run("request", "a", "--server", admin.address)
    assert ran.code == 0
    for words in (
        "picker p1",
        "pool llm/stable: picked r1 (prefix), then 10.0.0.2:80",
        "attempt at 10.0.0.1:80: unreached",
        "ended good, status 200, served by 10.0.0.2:80 at attempt 2",
        "0.25",
    ):
        assert words in " ".join(ran.out.split())
    assert json.loads(run("request", "a", "--server", admin.address, "-o", "json").out) == [
        {"picker": "p1", **RECORD}
    ]


def test_a_refusal_is_told(run: Run, admin: FakeAdmin) -> None:
    """With its answer; what a caller wrote changes nothing on the terminal."""
    admin.found = found(
        {"request_id": "a\x1b[2J", "refused": "saturated", "status": 429, "answer": "busy"}
    )
    ran = run("request", "a", "--server", admin.address)
    assert "refused: saturated, status 429" in ran.out
    assert "\x1b" not in ran.out


def test_an_unknown_request_is_an_error(run: Run, admin: FakeAdmin) -> None:
    """The message says how far back pickers remember, and where older requests are."""
    admin.found = found(silent=("p2",))
    ran = run("request", "a", "--server", admin.address)
    assert ran.code == 1
    assert "no picker remembers a request a" in ran.err
    assert "since 41 s ago" in ran.err
    assert "no answer from p2" in ran.err


def test_without_pickers_nobody_can_be_asked(run: Run, admin: FakeAdmin) -> None:
    """That is no statement about the request."""
    admin.found = api.GetRequestResponse()
    ran = run("request", "a", "--server", admin.address)
    assert ran.code == 1
    assert "no picker is connected" in ran.err


def test_a_record_that_lacks_much_is_shown(run: Run, admin: FakeAdmin) -> None:
    """A picker of another release may know other keys."""
    admin.found = found({"request_id": "a"})
    ran = run("request", "a", "--server", admin.address)
    assert (ran.code, "it has not ended yet" in ran.out) == (0, True)
