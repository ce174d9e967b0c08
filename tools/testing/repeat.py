"""Runs layers of the tests again and again, and goes on where it was ended.

Whether tests fail by luck is seen only in many runs::

    python -m tools.testing.repeat 5                                # whole runs
    python -m tools.testing.repeat 2 --load 4                       # beside a load of four
    python -m tools.testing.repeat 20 --layers lab,process
    python -m tools.testing.repeat 20 --layers lab,process --report # only what is known

Rules:

1. A run is a line of ``results/runs.jsonl`` once it has ended: its revision and tree, layers, load,
   seconds, exit code, and what failed. Its output is in ``build/repeat/NUMBER.log``.
2. Runs of the same tree, layers and load count together. A command does those that are missing to
   its number; one that was ended in the middle of a run begins that run again.
3. No run is repeated because it failed: all are counted. The exit code is 1 if one failed.
4. The tree is that of all files but the results: a commit of them goes on, also elsewhere. Files
   must be as committed, or runs of two states would count as those of one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.layers import LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = "results"
RUNS: Final = ROOT / RESULTS / "runs.jsonl"
LOGS: Final = ROOT / "build" / "repeat"
BUSY: Final = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""
"""What computes beside a run, until it or this program has ended."""
FAILED: Final = " failed with exit code "
"""What `tools.layers` prints above the reasons of a layer."""


class RunSeries:
    """Runs of one tree with the same layers and the same load.

    Args:
        runs: The file of all runs.
        logs: The folder of their output.
        revision: The commit.
        tree: What the commit's files are but for results (``tree_of``).
        layers: The layers.
        load: Processes that compute beside each run.
    """

    def __init__(
        self, runs: Path, logs: Path, revision: str, tree: str, layers: Sequence[str], load: int
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._list, self._logs = runs, logs
        self._load, self._revision = load, revision
        self._what = {"tree": tree, "layers": list(layers), "load": load}

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs that have ended, the first one first."""
        return [
            each for each in self._all() if {key: each[key] for key in self._what} == self._what
        ]

    def _all(self) -> list[dict[str, Any]]:
        lines = self._list.read_text("utf-8").splitlines() if self._list.exists() else []
        return [json.loads(line) for line in lines]

    def once(self, command: Sequence[str]) -> dict[str, Any]:
        """Make one run and keep it.

        Args:
            command: Runs the layers.
        """
        log = self._logs / f"{len(self._all()) + 1}.log"
        began = time.monotonic()
        with _busy(self._load), log.open("wb") as output:
            code = subprocess.run(  # noqa: S603 - this Python
                command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT
            ).returncode
        made = {
            "revision": self._revision,
            **self._what,
            "code": code,
            "wall_s": round(time.monotonic() - began, 1),
            "failed": reasons(log.read_text("utf-8", "replace")),
            "log": log.name,
        }
        with self._list.open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(made) + "\n")
        return made


@contextmanager
def _busy(count: int) -> Iterator[None]:
    with ExitStack() as ends:
        for _ in range(count):
            process = subprocess.Popen((sys.executable, "-c", BUSY))  # noqa: S603 - this Python
            ends.callback(process.wait)
            ends.callback(process.kill)
        yield


def reasons(text: str) -> list[str]:
    """Return the lines at the end of a run's output that say what failed."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if FAILED in line), len(lines))
    return [line for line in lines[first:] if line.startswith("  ") or FAILED in line]


def repeat(series: RunSeries, count: int, command: Sequence[str]) -> int:
    """Make the runs of a series that are missing, print all, and return the exit code."""
    for run in series.runs():
        _show(run)
    while len(series.runs()) < count:
        _show(series.once(command))
    runs = series.runs()
    failed = sum(bool(each["code"]) for each in runs)
    _say(f"{len(runs)} of {count} runs, {failed} failed")
    return 1 if failed else 0


def _show(run: dict[str, Any]) -> None:
    end = "failed" if run["code"] else "passed"
    _say(f"{end} in {run['wall_s']:.0f} s ({run['log']})")
    for line in run["failed"]:
        _say(f"  {line}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a tool


def _git(*words: str) -> str:
    command = ("git", *words)
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own words


def tree_of(listed: str) -> str:
    """Return a name for what a commit has beside results.

    Args:
        listed: What ``git ls-tree`` says of the commit.
    """
    rest = [line for line in listed.splitlines() if line.rpartition("\t")[2] != RESULTS]
    return hashlib.sha256("\n".join(rest).encode()).hexdigest()[:12]


def main(words: Sequence[str]) -> int:
    """Make or report the runs that the words ask for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.testing.repeat", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("runs", type=int, help="how many runs there shall be")
    parser.add_argument("--layers", default=",".join(LAYERS), help="layers, by commas")
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside")
    parser.add_argument("--report", action="store_true", help="make no run")
    asked = parser.parse_args(words)
    layers = asked.layers.split(",")
    if wrong := [each for each in layers if each not in LAYERS]:
        parser.error(f"no such layer: {', '.join(wrong)}; there are {', '.join(LAYERS)}")
    others = ("--", ".", f":!{RESULTS}")
    if not asked.report and _git("status", "--porcelain", "--untracked-files=no", *others):
        parser.error("commit the changes first: runs are kept by what was committed")
    revision, tree = _git("rev-parse", "HEAD").strip(), tree_of(_git("ls-tree", "HEAD"))
    series = RunSeries(RUNS, LOGS, revision, tree, layers, asked.load)
    count = len(series.runs()) if asked.report else asked.runs
    return repeat(series, count, (sys.executable, "-m", "tools.layers", "--only", asked.layers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
