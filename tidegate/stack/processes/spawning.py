"""How a supervisor starts a program: environment, a session of its own, an end with its parent."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from tidegate_common.children import ROOT, child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

_GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class Program:
    """What is to run."""

    argv: tuple[str, ...]
    """Program and arguments."""
    env: Mapping[str, str]
    """Complete environment; Python adds LC_CTYPE if it names no locale."""
    group: bool = False
    """Whether it starts processes of its own, which end with it even if its parent is killed."""
    cwd: Path | None = None
    """Folder in which it runs; default: that of this process."""


class Process(Protocol):
    """A running program."""

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""

    @property
    def returncode(self) -> int | None:
        """Exit code; negative: number of the signal that ended it; ``None`` while it runs."""

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""


async def spawn(program: Program, log: IO[bytes]) -> Process:
    """Start a program whose output goes to ``log``."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", str(_GUARD), str(os.getpid()), "1" if program.group else "0"),
        *program.argv,
        env=program.env,
        cwd=program.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def service_environment(installed: Path | None = None) -> dict[str, str]:
    """Return this process's environment, with the project importable from any folder.

    Args:
        installed: Installation of the project to import from, such as ``build/compiled``;
            default: ``ROOT``.
    """
    return {**child_environment(installed or ROOT), "PYTHONUNBUFFERED": "1"}
