"""Operations between the revisions of the history."""

from __future__ import annotations

from tidegate.cli.verbs.loading.operations import in_history
from tidegate_api.admin.v1 import admin_pb2 as api

OPERATION = api.ModelOperation(
    number=12,
    kind="load",
    pool="ocr",
    model="reader",
    version="3",
    phase="undone",
    ended=True,
    why="aborted by bob",
    author="ann",
    reason="a new one",
    began_unix_ms=2_000,
    ended_unix_ms=4_000,
)


def test_begin_and_end_stand_where_they_happened() -> None:
    """Each with who wanted it and why; the end with how it went."""
    revisions = [api.Revision(number=8, at_unix_ms=3_000), api.Revision(number=7, at_unix_ms=1)]
    ended, eight, began, seven = in_history(revisions, [OPERATION])
    assert [each["revision"] for each in (eight, seven)] == [8, 7]
    assert [each["operation"] for each in (ended, eight, began, seven)] == [12, None, 12, None]
    assert (ended["author"], ended["reason"]) == ("ann", "a new one")
    assert ended["changes"] == ["operation 12: load of reader version 3 in pool ocr ended"]
    assert ended["outcome"] == "undone: aborted by bob"
    assert began["changes"] == ["operation 12: load of reader version 3 in pool ocr began"]
    assert (began["at"], ended["at"]) == ("1970-01-01 00:00:02Z", "1970-01-01 00:00:04Z")
    assert list(began) == list(eight)


def test_what_has_not_ended_has_only_begun() -> None:
    """Its phase is in the list of operations."""
    running = api.ModelOperation(number=1, kind="unload", phase="changing", began_unix_ms=5)
    (began,) = in_history([], [running])
    assert began["outcome"] is None


def test_of_one_moment_the_end_is_newer() -> None:
    """The clock has milliseconds, and a check may take less."""
    short = api.ModelOperation(number=1, phase="done", ended=True, began_unix_ms=5)
    short.ended_unix_ms = 5
    assert [each["outcome"] for each in in_history([], [short])] == ["done", None]
