"""What a real Envoy 1.40 says of its requests, read by us and with all of Envoy's own messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ext_proc.blame.evidence import Ended, Evidence
from ext_proc.blame.law import ruling
from ext_proc.feedback.attempts import AnswerTimes
from ext_proc.feedback.entries import attempt_of
from ext_proc.feedback.wire import entries_of
from support import full_log
from support.record_access_log import messages
from tidegate_api.names import SUMMARY_GOOD, SUMMARY_TAG

RECORDED = messages(Path(__file__).parent / "fixtures" / "envoy-1.40" / "access_log.bin")
STREAMS = messages(Path(__file__).parent / "fixtures" / "envoy-1.40" / "first_body.bin")
SUMMARIES = messages(Path(__file__).parent / "fixtures" / "envoy-1.40" / "summaries.bin")
READ = [*RECORDED, *STREAMS, *map(full_log.without_summaries, SUMMARIES)]
ENTRIES = [entry for data in RECORDED for entry in entries_of(data)]
FINAL = [entry for entry in ENTRIES if entry.final]


@pytest.mark.parametrize("data", READ, ids=range(len(READ)))
def test_our_reader_says_what_envoys_messages_say(data):
    """Entry by entry and field by field the same."""
    assert list(entries_of(data)) == full_log.entries_of(data)


@pytest.mark.parametrize("data", SUMMARIES, ids=range(len(SUMMARIES)))
def test_summaries_say_what_their_entries_say(data):
    """Times to a millisecond, of which Envoy knows when a request began."""
    for told, full in zip(entries_of(data), full_log.entries_of(data), strict=True):
        for name, value in told._asdict().items():
            other = getattr(full, name)
            near = isinstance(value, float) and isinstance(other, float)
            assert value == (pytest.approx(other, abs=2e-3) if near else other), name


def test_who_ended_well_at_once_has_a_summary():
    """HTTP and gRPC; that of any other request is not used."""
    for data in SUMMARIES:
        logged = full_log.parse(data).http_logs.log_entry
        lines = [each.common_properties.custom_tags[SUMMARY_TAG] for each in logged]
        for line, entry in zip(lines, full_log.entries_of(data), strict=True):
            well = entry.final and (entry.attempts, entry.ended) == (1, Ended.DONE)
            assert line.startswith(SUMMARY_GOOD) == well
    finals = [each for data in SUMMARIES for each in entries_of(data) if each.final]
    assert {each.grpc_status for each in finals} == {None, 0, 13}


def test_the_recording_is_of_that_version():
    """The first message of a stream names Envoy's build."""
    version = full_log.parse(RECORDED[0]).identifier.node.user_agent_build_version.version
    assert (version.major_number, version.minor_number) == (1, 40)


def test_each_way_to_end_is_there():
    """Answers, refusals, broken connections, clients that left, gRPC statuses."""
    verdicts = Counter(
        ruling(Evidence(attempt_of(entry), unreadable=entry.unreadable)).outcome for entry in FINAL
    )
    assert verdicts["good"] >= 40
    assert verdicts["error"] >= 4, "503"
    assert verdicts["client"] >= 5, "400, and 500 to a body that could not be read"
    assert verdicts["broken"] >= 4
    assert verdicts["left"] == 2, "before the answer, and in it"
    assert {entry.grpc_status for entry in FINAL} == {None, 0, 13}
    assert any(entry.unreadable for entry in FINAL)


def test_a_retried_request_names_who_was_passed_over():
    """Its picks are read; those of the others are not."""
    retried = [entry for entry in FINAL if entry.attempts > 1 and entry.status == 200]
    assert retried
    for entry in retried:
        assert entry.served == entry.picks.split(",")[entry.attempts - 1]
    assert all(not entry.picks for entry in FINAL if entry.attempts <= 1)


def test_intermediate_entries_come_before_and_after_the_first_byte():
    """A request that runs for seconds says so each second."""
    early = [entry for entry in ENTRIES if not entry.final]
    assert {entry.first_byte_s is None for entry in early} == {True, False}


def test_a_stream_begins_with_its_body():
    """Headers came at once; the body after 0.5 s and 1.3 s, or never as the client left."""
    found = [
        (written.common_properties.time_to_first_upstream_rx_byte.ToMilliseconds(), entry)
        for data in STREAMS
        for written, entry in zip(
            full_log.parse(data).http_logs.log_entry, entries_of(data), strict=True
        )
    ]
    at_once = [entry for headers_ms, entry in found if headers_ms < 10]
    begun = [entry.first_byte_s for entry in at_once if entry.final and entry.answer_bytes]
    assert sorted(begun)[-2:] == [pytest.approx(0.5, abs=0.1), pytest.approx(1.3, abs=0.1)]
    running = [entry for entry in at_once if not entry.final]
    assert [entry.first_byte_s for entry in running] == [None, None], "headers, or not even these"
    left = [entry for entry in at_once if entry.final and not entry.answer_bytes]
    assert [(attempt_of(each).answered, attempt_of(each).began) for each in left] == [(True, False)]


def test_a_stream_is_one_sample_however_long_it_runs():
    """Intermediate entries have no duration; the tag says how old the request is.

    The client that left between headers and body gives none.
    """
    entries = [entry for data in STREAMS for entry in entries_of(data)]
    times, numbers = (
        AnswerTimes(),
        {ticket: n for n, ticket in enumerate({e.ticket for e in entries})},
    )
    samples = Counter(
        each.ticket for each in entries if times.take(each, numbers[each.ticket]) is not None
    )
    began = {entry.ticket for entry in entries if entry.answer_bytes}
    assert samples == dict.fromkeys(began, 1)
    assert entries[-1].ticket not in began
