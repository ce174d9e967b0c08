"""The verdict in the log."""

from __future__ import annotations

from structlog.testing import capture_logs

from xds_server.admin.status_log import DAMPED, StatusLog
from xds_server.applications.traffic.verdict import Verdict, Word


def test_a_changed_word_is_logged_once() -> None:
    """Its beginning and its end; other reasons for the same word are in status."""
    told = [None, (Word.OK, ()), (Word.DEGRADED, ("a",)), (Word.DEGRADED, ("b",)), (Word.OK, ())]
    verdicts = iter([None if each is None else Verdict(*each) for each in told])
    log = StatusLog(lambda: next(verdicts))
    with capture_logs() as logs:
        for _ in told:
            log.look()
    assert [(each["event"], each["log_level"], each["status"], each["was"]) for each in logs] == [
        ("status_changed", "warning", "DEGRADED", "OK"),
        ("status_changed", "info", "OK", "DEGRADED"),
    ]
    assert logs[0]["why"] == "a"


def _kinds(*kinds: str) -> Verdict:
    return Verdict(Word.DEGRADED, kinds, {each: [f"{each} of r1", "more"] for each in kinds})


def _begun(verdicts: list[Verdict]) -> list[str]:
    told = iter(verdicts)
    log = StatusLog(lambda: next(told))
    with capture_logs() as logs:
        for _ in verdicts:
            log.look()
    return [each["kind"] for each in logs if each["event"] == "status_reason"]


def test_another_kind_of_reasons_is_logged_although_the_word_is_the_same() -> None:
    """Otherwise the second trouble would be in no log while the first one lasts."""
    assert _begun([_kinds("late"), _kinds("late", "store"), _kinds("store")]) == ["late", "store"]


def test_a_kind_that_comes_and_goes_is_logged_once_in_a_while() -> None:
    """A reason at its threshold does not fill the log."""
    flapping = [_kinds("late"), _kinds()] * 50
    assert _begun(flapping) == ["late"]
    assert _begun([_kinds("late"), *[_kinds()] * (DAMPED + 1), _kinds("late")]) == ["late"] * 2
