"""What a real Envoy 1.40 says of failed attempts, read by us and with Envoy's own messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ext_proc.blame.evidence import Ended
from ext_proc.feedback.wire import entries_of
from support import full_log
from support.record_access_log import messages

RECORDED = messages(Path(__file__).parent / "fixtures" / "envoy-1.40" / "attempts.bin")
ENTRIES = [entry for data in RECORDED for entry in entries_of(data)]
LOGGED = [entry for data in RECORDED for entry in full_log.parse(data).http_logs.log_entry]


@pytest.mark.parametrize("data", RECORDED, ids=range(len(RECORDED)))
def test_our_reader_says_what_envoys_messages_say(data):
    """Entry by entry and field by field the same."""
    assert list(entries_of(data)) == full_log.entries_of(data)


def test_each_way_to_fail_is_there():
    """Only a refused connection was not read; only an answer has a status."""
    ways = {(e.attempt.ended, e.attempt.read, e.attempt.status) for e in ENTRIES}
    assert ways == {
        (Ended.UNREACHED, False, 0),
        (Ended.BROKEN, True, 0),
        (Ended.TRY_TIMEOUT, True, 0),
        (Ended.DONE, True, 503),
    }


def test_entries_name_the_pick_without_metadata():
    """Envoy gives them no dynamic metadata, so the pick's header has to be there."""
    assert {entry.picker for entry in ENTRIES} == {"picker-1"}
    assert all(entry.ticket for entry in ENTRIES)
    assert not any(each.common_properties.metadata.filter_metadata for each in LOGGED)
    assert not any(each.common_properties.upstream_request_attempt_count for each in LOGGED)


def test_no_request_that_killed_was_read_by_a_third():
    """The recorded pool has two fallbacks and allows one further read."""
    reads = Counter(
        entry.ticket for entry in ENTRIES if entry.attempt.read and not entry.attempt.answered
    )
    assert max(reads.values()) == 2
