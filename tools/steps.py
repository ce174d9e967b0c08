"""Runs the steps of ``make dist``: one command at a time, with its log and a sign of life.

Rules:

1. A step's output goes to ``NAME.log``; the terminal gets one line when it begins, one every
   ``BEAT_S`` seconds, and one when it ends.
2. A step that fails raises ``StepError`` with the end of its output and the path of its log.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BEAT_S: Final = 20.0
TAIL_LINES: Final = 30
_LEFT_OUT: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "TIDEGATE_COMPILE")
"""Variables of the caller that would put code of another place into a step."""


class StepError(RuntimeError):
    """A step failed; the text names it, its log, and has the end of its output."""


class Steps:
    """Runs commands one after another.

    Args:
        logs: Folder of the logs, which is made.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the seconds since the beginning."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)  # noqa: T201 - a tool

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        fails: bool = False,
    ) -> str:
        """Run a command to its end; return what it printed.

        Args:
            name: Names the step and its log.
            command: The program and its arguments.
            cwd: The folder in which it runs.
            env: Variables beside the caller's.
            fails: Return the output of a command that fails as well.

        Raises:
            StepError: It failed.
        """
        log = self._logs / f"{name.replace(' ', '-')}.log"
        self.say(name)
        base = {key: value for key, value in os.environ.items() if key not in _LEFT_OUT}
        began = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603 - commands of this tool, no shell
                [str(part) for part in command],
                cwd=cwd,
                env={**base, "PYTHONNOUSERSITE": "1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                self._wait(process, name, began)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        text = log.read_text("utf-8", "replace")
        if process.returncode != 0 and not fails:
            tail = "\n".join(text.splitlines()[-TAIL_LINES:])
            raise StepError(f"{name} failed ({process.returncode}); {log} ends:\n{tail}")
        return text

    def _wait(self, process: subprocess.Popen[bytes], name: str, began: float) -> None:
        while True:
            try:
                process.wait(BEAT_S)
            except subprocess.TimeoutExpired:
                self.say(f"  {name}: running for {time.monotonic() - began:.0f} s")
            else:
                return
