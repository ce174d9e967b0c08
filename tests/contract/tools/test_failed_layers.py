"""What is said at the end of a run about a layer that failed: pytest itself writes the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.layers import why

TESTS = """
import os
import pytest

@pytest.fixture
def broken():
    raise OSError("no such stack")

def test_passes(): pass

@pytest.mark.parametrize("name", ["a.b"])
def test_fails(name):
    assert name == "c", "two\\nlines"

def test_errs(broken): pass
"""
DIES = "import os\ndef test_dies(): os.kill(os.getpid(), 9)\n"


def run(folder: Path, *options: str) -> list[str]:
    """Run pytest over a folder; return what is said of it."""
    report = folder / "report.xml"
    command = (sys.executable, "-m", "pytest")
    done = subprocess.run(
        (*command, f"--rootdir={folder}", f"--junitxml={report}", *options, "."),
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # three seconds less
        capture_output=True,
        check=False,
    )
    return why(done.returncode, report)


def test_failed_tests_are_named_with_why(tmp_path: Path):
    """Of failures, errors of a fixture and a worker that dies, the first line."""
    (tmp_path / "test_one.py").write_text(TESTS)
    (tmp_path / "test_two.py").write_text(DIES)
    lines = run(tmp_path, "-p", "xdist", "-n", "1", "--max-worker-restart=0")
    assert lines[:2] == [
        "test_one.py::test_fails[a.b]: AssertionError: two",
        'test_one.py::test_errs: failed on setup with "OSError: no such stack"',
    ]
    assert len(lines) == 3
    assert "test_two.py::test_dies" in lines[2]
    assert "crashed" in lines[2]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("import nothing_like_it\n", (), ["test_one", "cannot be collected"]),
        ("", (), ["no test was collected"]),
        (DIES, (), ["ended before it wrote a report: signal 9"]),
        ("def test_it(): pass\n", ("--nothing",), ["ended before it wrote a report: pytest was"]),
    ],
    ids=["import", "empty", "aborted", "usage"],
)
def test_a_layer_without_a_failed_test_says_why_it_failed(tmp_path: Path, text, options, said):
    """By pytest's exit code, and beside the errors of the collection."""
    (tmp_path / "test_one.py").write_text(text)
    lines = run(tmp_path, *options)
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert words in line


def test_a_run_in_which_no_test_failed_points_to_what_was_printed(tmp_path: Path):
    """A plugin, as that of coverage, makes pytest fail after all tests passed."""
    (tmp_path / "test_one.py").write_text("def test_it(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_sessionfinish(session): session.exitstatus = 1\n"
    )
    (line,) = run(tmp_path)
    assert line.startswith("no test failed")
