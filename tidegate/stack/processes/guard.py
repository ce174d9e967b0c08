"""Runs a program that ends with its parent: ``guard.py PARENT_PID GROUP PROGRAM ARGS...``.

It runs as a script, so that the child imports nothing of the project; ``exec`` keeps the process
id. The kernel sends SIGKILL when the *thread* that started the child ends (prctl(2),
PR_SET_PDEATHSIG), so children must be started from the main thread.

PR_SET_PDEATHSIG covers the program only. With GROUP ``1``, a second process waits for the
program's end and kills its process group: a killed Triton leaves Python stubs that hold their
interpreter lock and wait in shared memory for a response that never arrives.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Set the parent-death signal, then execute the program."""
    parent, group, program = int(arguments[0]), arguments[1] == "1", arguments[2:]
    end_with_parent(parent)
    if group:
        end_group_after(os.getpid())
    os.execvp(program[0], program)  # noqa: S606 - becoming that program is the purpose


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process with its parent.

    Raises:
        SystemExit: The parent has ended already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise SystemExit("the parent ended before its child started")


def end_group_after(program: int) -> None:
    """Fork a process that kills a process's group once that process has ended."""
    end = os.pidfd_open(program)
    if os.fork() != 0:
        os.close(end)
        return
    # SIGTERM to the group must not end the process that cleans up the group.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    select.select([end], [], [])
    os.killpg(program, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
