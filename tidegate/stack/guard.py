"""Becomes a program that dies with its parent: ``python guard.py PARENT_PID PROGRAM ARGS...``.

Run as a script, so that nothing of ours is imported in the child; the process id stays the same
across the ``exec``. The kernel sends SIGKILL when the parent's *thread* that started the child
ends (prctl(2), PR_SET_PDEATHSIG), so children are started from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit("the parent ended before its child began")
    os.execvp(program[0], program)  # noqa: S606 - becoming that program is the purpose


if __name__ == "__main__":
    main(sys.argv[1:])
