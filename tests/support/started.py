"""Counts what each file of tests starts, and what it costs: a plugin of pytest.

With ``TIDEGATE_STARTED=1`` a table at the end of a run says, for each file, how many Envoys,
Tritons and services were started while its tests ran, and how many seconds and CPU seconds passed.
What a fixture of the session starts counts for the file that asks for it first. CPU seconds are
those of the test process and of what it started itself; where workers share the process that forks
services, the services are not among them.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS: Final = ("envoy", "tritonserver", "xds_server", "ext_proc", "gateway")
_TICKS_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_counts: dict[str, Counter[str]] = {}
_file = ""


def started(argv: Sequence[object]) -> None:
    """Count a program by its name: that of a file, or of a module of ours after ``-m``."""
    names = {os.path.basename(str(part)) for part in argv[:12]}  # noqa: PTH119 - no path is made
    for kind in KINDS:
        if kind in names:
            _counts.setdefault(_file, Counter())[kind] += 1


def count() -> None:
    """Begin to count the programs that this process starts; those it has forked are told."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and not isinstance(arguments[1], str):
        started(arguments[1])


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of all below it, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        each = left.pop()
        total += ticks.get(each, 0)
        left += children.get(each, ())
    return total * _TICKS_S


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item,
) -> Iterator[None, Any, Any]:
    """Count for the file of the running test."""
    global _file  # noqa: PLW0603 - a process runs one test at a time
    _file = item.nodeid.partition("::")[0]
    began, cpu = time.monotonic(), _cpu_s()
    try:
        return (yield)
    finally:
        counts = _counts.setdefault(_file, Counter())
        counts["tests"] += 1
        counts["ms"] += round((time.monotonic() - began) * 1000)
        counts["cpu ms"] += round((_cpu_s() - cpu) * 1000)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a worker counted to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["started"] = {file: dict(n) for file, n in _counts.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what a worker counted."""
    for file, counts in getattr(node, "workeroutput", {}).get("started", {}).items():
        _counts.setdefault(file, Counter()).update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, dearest file first."""
    terminalreporter.section("started")
    total = sum(_counts.values(), Counter())
    rows = sorted(_counts.items(), key=lambda row: -row[1]["cpu ms"])
    head = f"{'tests':>6}{'s':>8}{'CPU s':>8}" + "".join(f"{kind[:8]:>9}" for kind in KINDS)
    terminalreporter.write_line(head)
    for file, counts in (*rows, ("all", total)):
        times = f"{counts['tests']:>6}{counts['ms'] / 1e3:>8.1f}{counts['cpu ms'] / 1e3:>8.1f}"
        kinds = "".join(f"{counts[kind] or '':>9}" for kind in KINDS)
        terminalreporter.write_line(f"{times}{kinds}  {file}")
