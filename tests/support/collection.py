"""Check that pytest collects the same tests in the same order in every process.

pytest-xdist refuses to run if its workers collect different tests. Test ids that contain a time,
the order of a set, an address or a temporary path differ only occasionally. ``make check`` runs::

    python tests/support/collection.py [PATH ...]

Two processes collect concurrently, each with its own clock, hash seed and temporary folder. Both
have the same seed of the random order, like the workers of one run.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIFT_S = 100_003
"""Offset of the second process's clock, seconds; every part of date and time then differs."""
_CHILD = "--child"


def differences(paths: list[str], root: Path = ROOT) -> list[str]:
    """Collect twice and return a diff of the test ids, empty if both collections agree.

    Raises:
        RuntimeError: A collection failed; the message contains pytest's output.
    """
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("first", "second")]
        running = [_start(folder, paths, root) for folder in folders]
        texts = [each.communicate()[0].decode("utf-8", "replace") for each in running]
        for each, text in zip(running, texts, strict=True):
            if each.returncode != 0:
                raise RuntimeError(f"the tests cannot be collected:\n{text[-4000:]}")
        first, second = (_ids(folder).read_text().splitlines() for folder in folders)
    return list(difflib.unified_diff(first, second, "first", "second", lineterm="", n=0))


def _ids(folder: Path) -> Path:
    return folder / "ids"


def _start(folder: Path, paths: list[str], root: Path) -> subprocess.Popen[bytes]:
    second = folder.name == "second"
    folder.mkdir()
    search = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH")) if part)
    return subprocess.Popen(
        # -P: do not import from the script's folder, which contains no top-level module.
        (sys.executable, "-P", __file__, _CHILD, str(_ids(folder)), str(SHIFT_S * second), *paths),
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": search,
            "PYTHONHASHSEED": "2" if second else "1",
            "TMPDIR": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _collect(into: Path, shift_s: int, paths: list[str]) -> int:
    """Collect in this process, with a clock that is shifted before other code can read it."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + shift_s
    time.time_ns = lambda: now_ns() + shift_s * 10**9

    import pytest  # noqa: PLC0415 - after the clock was set

    class Writer:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            into.write_text("".join(f"{item.nodeid}\n" for item in session.items))

    options = ("--collect-only", "-qq", "--assert=plain", "-p", "no:cacheprovider")
    return pytest.main([*options, "--randomly-seed=1", *paths], plugins=[Writer()])


def main(arguments: list[str]) -> int:
    """Collect twice and print the differences; return the exit code."""
    if arguments[:1] == [_CHILD]:
        return _collect(Path(arguments[1]), int(arguments[2]), arguments[3:])
    wrong = differences(arguments)
    print("\n".join(wrong) or "two collections agree")  # noqa: T201 - a command prints
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
