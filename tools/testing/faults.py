"""Plants faults in a copy of the checkout, one at a time, and says whether the tests find them.

``tests/faults/planted.toml`` is the list::

    python -m tools.testing.faults                   # all of it, some minutes
    python -m tools.testing.faults placement sequence # those that a word names

Rules:

1. A fault replaces one text of one file of the product, which must be there exactly once. Where it
   is not, the code has changed and the fault has to be written anew: it is *stale*.
2. A fault is *found* if a test of those that are named for it fails, and *missed* if all pass. That
   these tests pass without it is what ``make test`` shows.
3. The exit code is 0 if all are found, else 1.
4. The copy has what git lists. Each file that is changed gets a time of its own, so that no
   compiled form of the one before is taken for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
LIST: Final = Path("tests", "faults", "planted.toml")
FAILED: Final = 1
"""Pytest's exit code where tests failed."""
OPTIONS: Final = ("-q", "-x", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider")
BOUND_S: Final = 600.0
"""A fault whose tests take longer makes them hang, which they find."""


class PlantedFault(NamedTuple):
    """A fault of the list."""

    defect: str
    """What goes wrong for users, a sentence."""
    file: str
    old: str
    """The text that it replaces."""
    new: str
    tests: tuple[str, ...]
    """Files and folders of tests, of which one has to fail."""

    def named(self, words: Sequence[str]) -> bool:
        """Return whether one of the words is in its defect or its file; of no words, all are."""
        return not words or any(word in f"{self.defect} {self.file}" for word in words)


def read_list(path: Path) -> list[PlantedFault]:
    """Read a list of faults.

    Raises:
        ValueError: It is not valid, or a fault has no tests.
    """
    found = []
    for each in tomllib.loads(path.read_text("utf-8"))["fault"]:
        fault = PlantedFault(
            each["defect"], each["file"], each["old"], each["new"], tuple(each["tests"])
        )
        if not fault.tests or fault.old == fault.new:
            raise ValueError(f"{path}: {fault.defect!r} names no test, or changes nothing")
        found.append(fault)
    return found


def copy_checkout(root: Path, folder: Path) -> None:
    """Copy the files that git lists."""
    listed = subprocess.run(
        ("git", "ls-files", "-z"),  # noqa: S607 - the git of this machine
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in listed.split("\0")[:-1]:
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)


def plant(fault: PlantedFault, folder: Path) -> str:
    """Apply a fault to a copy, run its tests, and take it back.

    Returns:
        ``found``, ``missed`` or ``stale``.
    """
    file = folder / fault.file
    text = file.read_text("utf-8") if file.is_file() else ""
    there = all((folder / each).exists() for each in fault.tests)
    if text.count(fault.old) != 1 or not there:
        return "stale"
    _write(file, text.replace(fault.old, fault.new))
    command = (sys.executable, "-m", "pytest", *OPTIONS, *fault.tests)
    try:
        done = subprocess.run(  # noqa: S603 - this Python
            command, cwd=folder, check=False, capture_output=True, timeout=BOUND_S
        )
    except subprocess.TimeoutExpired:
        return "found"
    finally:
        _write(file, text)
    # A fault that keeps its module from being imported would be found by any test.
    return {FAILED: "found", 0: "missed"}.get(done.returncode, "stale")


def _write(file: Path, text: str) -> None:
    last = file.stat().st_mtime
    file.write_text(text, "utf-8")
    os.utime(file, (last + 2, last + 2))


def run(faults: Sequence[PlantedFault], root: Path) -> int:
    """Plant faults one after another and print what became of each; return the exit code."""
    ends: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-faults-") as name:
        folder = Path(name)
        copy_checkout(root, folder)
        for fault in faults:
            began = time.monotonic()
            end = plant(fault, folder)
            ends[end] = ends.get(end, 0) + 1
            _say(f"{end:<6} {time.monotonic() - began:6.1f} s  {fault.defect} ({fault.file})")
    _say(", ".join(f"{count} {end}" for end, count in sorted(ends.items())) or "no such fault")
    return 0 if set(ends) == {"found"} else 1


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a tool


def main(words: Sequence[str]) -> int:
    """Plant the faults that the words name; return the exit code."""
    if "--help" in words:
        _say(__doc__ or "")
        return 0
    return run([each for each in read_list(ROOT / LIST) if each.named(words)], ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
