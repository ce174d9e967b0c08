"""Becomes a program that dies with its parent: ``guard.py PARENT_PID GROUP PROGRAM ARGS...``.

Run as a script, so that nothing of ours is imported in the child; the process id stays the same
across the ``exec``. The kernel sends SIGKILL when the parent's *thread* that started the child
ends (prctl(2), PR_SET_PDEATHSIG), so children are started from the main thread.

That reaches the program alone. With GROUP ``1`` a small process stays beside it, waits for its
end and kills its process group: a Triton that is killed leaves Python stubs which wait in shared
memory, holding their interpreter's lock, for an answer that nobody will give.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, then become the program."""
    parent, group, program = int(arguments[0]), arguments[1] == "1", arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit("the parent ended before its child began")
    if group:
        _end_group_after(os.getpid())
    os.execvp(program[0], program)  # noqa: S606 - becoming that program is the purpose


def _end_group_after(program: int) -> None:
    end = os.pidfd_open(program)
    if os.fork() != 0:
        os.close(end)
        return
    # A polite stop of the group must not end the one that cleans up behind it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([end], [], [])
    os.killpg(program, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
