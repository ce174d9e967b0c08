"""Files of the lab that need real Tritons go to few of its workers, the longest first."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

from support.scheduling import LONGEST, ROOT, FewTritons, needs_tritons, rank

WITH = "tests/lab/test_operations.py"
WITHOUT = "tests/lab/test_retries.py"
LONG = "tests/lab/loading/test_ended_loads.py"


def next_files(*files: str) -> list[str | None]:
    """Return what each of three workers would be given of these files."""
    scheduler = object.__new__(FewTritons)
    workers = [SimpleNamespace(name=name) for name in ("first", "second", "third")]
    scheduler.assigned_work = OrderedDict((id(each), {}) for each in workers)
    scheduler.workqueue = OrderedDict((file, {}) for file in files)
    return [scheduler._next(node) for node in scheduler.nodes]


def test_a_file_needs_tritons_if_its_tests_or_fixtures_take_them() -> None:
    """By the names of fixtures; ``stack`` is the shared one where the file has none."""
    assert needs_tritons(WITH)
    assert needs_tritons("tests/lab/test_sequences.py")
    assert not needs_tritons(WITHOUT)
    assert not needs_tritons("tests/lab/test_feedback.py")  # it has a stack of its own


def test_tritons_start_in_the_first_workers_only() -> None:
    """These help the others once no file that needs Tritons is left."""
    assert next_files(WITHOUT, WITH) == [WITH, WITH, WITHOUT]
    assert next_files(WITHOUT) == [WITHOUT] * 3
    assert next_files(WITH) == [WITH, WITH, None]
    assert next_files() == [None] * 3


def test_the_longest_files_begin() -> None:
    """Whatever the order in which they were collected; each name is one of a file."""
    assert next_files(WITH, LONG)[0] == LONG
    assert rank(LONG) < rank(WITH) < rank("tests/lab/test_sequences.py")
    files = {path.stem for path in Path(ROOT, "tests", "lab").rglob("test_*.py")}
    assert set(LONGEST) <= files
