"""The longest files begin; those of the lab that need real Tritons go to few of its workers."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

from xdist.scheduler import LoadFileScheduling

from support.scheduling import LONGEST, ROOT, FewTritons, LongestFirst, needs_tritons, rank

WITH = "tests/lab/test_operations.py"
WITHOUT = "tests/lab/test_retries.py"
LONG = "tests/lab/loading/test_ended_loads.py"


def next_files(*files: str) -> list[str | None]:
    """Return what each of three workers would be given of these files."""
    scheduler = object.__new__(FewTritons)
    workers = [SimpleNamespace(name=name) for name in "123"]
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
    for layer, longest in LONGEST.items():
        files = {path.stem for path in Path(ROOT, "tests", layer).rglob("test_*.py")}
        assert set(longest) <= files


def test_files_that_run_together_begin_with_the_longest_of_them(monkeypatch) -> None:
    """They are one unit, whose name is that of no file."""
    given = []
    monkeypatch.setattr(
        LoadFileScheduling, "_assign_work_unit", lambda self, _: given.extend(self.workqueue)
    )
    scheduler = object.__new__(LongestFirst)
    units = {"a": ["test_a"], "both": ["test_a", "test_failures"], "b": ["test_b"]}
    scheduler.workqueue = OrderedDict(
        (unit, {f"tests/process/{file}.py::test_it": False for file in files})
        for unit, files in units.items()
    )
    scheduler._assign_work_unit(SimpleNamespace())
    assert given == ["both", "a", "b"]
