"""Sessions of rollouts in reports: bounded, in order, and told again where they may be lost."""

from __future__ import annotations

from ext_proc.canary import AFTER_S, KNOWN_S, Arms, CanarySessions
from ext_proc.control.reporting import canaries
from ext_proc.control.reporting.canaries import CANARY_S, LOST_S, MAX_RECORDS, CanaryReports
from ext_proc.routing.values.request import Form
from tidegate_api.fleet.v1 import report_pb2
from tidegate_common.canary import ALL, KINDS
from tidegate_common.fine_histogram import BUCKETS, fine_bucket

UNIX = 1_800_000_000.0


class Picker:
    """Sessions of one pool, and what is reported of them on a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sessions = CanarySessions(-KNOWN_S)
        self.sessions.set_arms(Arms("r1", "v2", "v1", 0), 0.0)
        self.running = {"llm": self.sessions}
        self.reports = CanaryReports(self.running, lambda: self.now, lambda: UNIX + self.now)

    def begin(self, *names: int, variant: str = "v1") -> None:
        """Begin sessions."""
        for name in names:
            self.sessions.begins(name, name, variant, self.now, UNIX + self.now)

    def told(self, *, written: bool = True) -> report_pb2.CanarySessions:
        """Return what the next report tells of the pool."""
        report = report_pb2.PickerReport()
        self.reports.add(report)
        if written:
            self.reports.sent()
        (message,) = report.canaries
        return message


def digests(message: report_pb2.CanarySessions) -> list[int]:
    """Return which sessions are told."""
    return [each.digest for each in message.sessions]


def test_everything_of_a_session_is_told() -> None:
    """Its arm, step and beginning; its first request and its first failure."""
    picker = Picker()
    sessions = picker.sessions
    sessions.begins(
        1,
        2**64 - 1,
        "v2",
        0.0,
        UNIX,
        form="openai",
        streams=True,
        uncached=300,
        predicted=1_000,
    )
    sessions.ended(
        1, UNIX + 1.0, failed=False, good=True, times_s=[("first-token", 0.2)], cached=100
    )
    sessions.goes_on(2, 2**64 - 1, "v2", 2.0)
    sessions.ended(2, UNIX + 60.0, failed=True, good=False)
    message = picker.told()
    assert (message.pool, message.rollout, message.limit) == ("llm", "r1", ALL)
    assert message.until_seconds == UNIX
    (told,) = message.sessions
    assert (told.digest, told.begun_unix_ms, told.step, told.canary) == (
        2**64 - 1,
        int(UNIX * 1000),
        0,
        True,
    )
    assert (told.first.minute, told.first.stratum) == (int(UNIX // 60), "openai+/9.0")
    assert dict(told.first.times) == {"first-token": fine_bucket(0.2)}
    assert told.first.short
    assert (told.failure.minute, told.failure.step) == (int(UNIX // 60) + 1, 0)


def test_what_is_not_known_is_absent() -> None:
    """No first request, no failure, no prediction."""
    picker = Picker()
    picker.begin(1)
    (told,) = picker.told().sessions
    assert not told.HasField("first")
    assert not told.HasField("failure")
    picker.sessions.ended(1, UNIX, failed=False, good=True)
    (told,) = picker.told().sessions
    assert told.HasField("first")
    assert not told.first.HasField("short")


def test_a_rollout_is_told_every_few_seconds_also_without_news() -> None:
    """The server takes a silent picker as missing after half a minute."""
    picker = Picker()
    assert picker.reports.due
    assert digests(picker.told()) == []
    assert not picker.reports.due
    picker.now += CANARY_S
    assert picker.reports.due
    assert picker.told().until_seconds == UNIX + CANARY_S
    picker.running.clear()
    picker.now += CANARY_S
    assert not picker.reports.due


def test_a_report_is_bounded_and_the_next_ones_follow_at_once() -> None:
    """Until all are told, the time until which they are stays what it was."""
    picker = Picker()
    picker.told()
    picker.now = 60.0
    picker.begin(*range(2 * MAX_RECORDS + 5))
    found: list[int] = []
    for until, count in ((0.0, MAX_RECORDS), (0.0, MAX_RECORDS), (60.0, 5)):
        assert picker.reports.due
        message = picker.told()
        assert (message.until_seconds, len(message.sessions)) == (UNIX + until, count)
        found += digests(message)
    assert found == list(range(2 * MAX_RECORDS + 5))
    assert not picker.reports.due


def test_a_report_of_the_longest_records_is_within_the_bounds_of_the_wire() -> None:
    """Sessions, characters of a stratum, known buckets: else the server ends the stream."""
    picker = Picker()
    for number in range(MAX_RECORDS):
        longest = {"form": max(Form, key=len), "streams": True, "uncached": 2**40}
        picker.sessions.begins(number, number, "v1", 0.0, UNIX, **longest)  # type: ignore[arg-type]
        times = [(kind, 1e9) for kind in KINDS]
        picker.sessions.ended(number, UNIX, failed=False, good=True, times_s=times)
    message = picker.told()
    assert len(message.sessions) == MAX_RECORDS <= 4_096
    for each in message.sessions:
        assert len(each.first.stratum) <= 64
        assert all(0 <= bucket < BUCKETS for bucket in each.first.times.values())


def test_what_may_be_lost_is_told_again_on_the_next_stream() -> None:
    """What was written, or was about to be; not what a living server must have read."""
    picker = Picker()
    picker.begin(1)
    picker.told()
    picker.now += LOST_S + 1.0
    picker.begin(2)
    picker.told()
    picker.begin(3)
    picker.told(written=False)
    picker.reports.begin()
    picker.begin(4)
    assert digests(picker.told()) == [2, 3, 4]
    picker.now += CANARY_S
    assert digests(picker.told()) == []
    for _ in range(2):  # streams that end at once
        picker.reports.begin()
    assert digests(picker.told()) == [2, 3, 4]


def test_what_is_told_again_is_bounded(monkeypatch) -> None:
    """The oldest is given up."""
    monkeypatch.setattr(canaries, "MAX_AGAIN", 10)
    picker = Picker()
    for first in range(0, 24, 4):
        picker.begin(*range(first, first + 4))
        picker.told()
    picker.reports.begin()
    assert digests(picker.told()) == list(range(16, 24))


def test_a_rollout_that_has_ended_is_told_until_it_is_forgotten() -> None:
    """What a guard ended within seconds, and the ends of what was under way then."""
    picker = Picker()
    picker.begin(1, variant="v2")
    picker.sessions.set_arms(None, picker.now)
    message = picker.told()
    assert (message.rollout, digests(message)) == ("r1", [1])
    picker.sessions.ended(1, UNIX + 1.0, failed=True, good=False)
    picker.now += CANARY_S
    (told,) = picker.told().sessions
    assert told.HasField("failure")
    picker.now += AFTER_S
    assert not picker.reports.due


def test_a_rollout_that_was_replaced_is_told_no_more() -> None:
    """Neither what was new of it, nor what may be lost."""
    picker = Picker()
    picker.begin(1)
    picker.told()
    picker.begin(2)
    picker.sessions.set_arms(Arms("r2", "v2", "v1", 0), 0.0)
    picker.reports.begin()
    message = picker.told()
    assert (message.rollout, digests(message)) == ("r2", [])
