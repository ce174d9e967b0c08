"""Forks the test workers of a run from a process that has collected the tests.

Each worker of pytest-xdist would import all files of its layer, and in a fresh clone compile them:
the same in each, for longer than most of the tests in a file take.

Rules:

1. pytest-xdist starts ``worker_client.py`` in place of Python. That passes its standard streams to
   this process, and has the exit code of the worker. Both end together.
2. This process collects the paths of the run before it forks. If it cannot, it ends, and each
   worker is a Python of its own, which says what is wrong.
3. Nothing is started here but imports, as threads do not survive a fork. Items and fixtures are
   made in each worker, by its own options.
4. It ends with the run, and each worker that is left with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pytest

from tidegate.stack.processes.guard import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLIENT: Final = Path(__file__).with_name("worker_client.py")
_BEGIN: Final = (
    "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path'];"
    " from support.worker_template import main; main(told)"
)
"""Not a script's path: its folder has modules with names of Python's own."""
LARGEST: Final = 4096
"""Bytes of a client's message, at most."""


class WorkerTemplate:
    """The process, as the run sees it. Use as a context manager.

    Args:
        paths: What the run collects, as pytest takes it.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-workers-")
        path = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            told = {
                "path": sys.path,
                "parent": os.getpid(),
                "listener": listener.fileno(),
                "paths": list(self._paths),
            }
            self._process = subprocess.Popen(
                (sys.executable, "-c", _BEGIN, json.dumps(told)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
            )
        self.python = shlex.join((sys.executable, "-I", "-S", str(_CLIENT), path))
        """What stands for the worker's Python."""
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its standard input, and waits
        self._folder.cleanup()


def main(told: dict) -> None:
    """Collect, fork workers until the run ends, and be a worker in each fork.

    Args:
        told: ``parent``, its process; ``listener``, the descriptor of the socket; ``paths``.
    """
    end_with_parent(told["parent"])
    listener = socket.socket(fileno=told["listener"])
    options = ("--collect-only", "-qqq", "-p", "no:cacheprovider")
    if pytest.main([*options, *told["paths"]]) != pytest.ExitCode.OK:
        return
    gc.collect()
    gc.freeze()
    begin = _Workers(listener).forked()
    if begin is not None:
        # As `python -c` has it.
        sys.argv[:] = ["-c"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(begin, vars(sys.modules["__main__"]))  # noqa: S102 - execnet's


class _Workers:
    """The forks, each with the connection of its client."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._wakened, self._waker = os.pipe()
        for each in (self._wakened, self._waker):
            os.set_blocking(each, False)

    def forked(self) -> str | None:
        """Fork workers until standard input ends; return in each what it is to run."""
        signal.set_wakeup_fd(self._waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)  # the run gets it too, and ends this
        while True:
            watched = [0, self._wakened, self._listener, *self._clients.values()]
            ready, _, _ = select.select(watched, [], [])
            if self._wakened in ready:
                os.read(self._wakened, 4096)
                self._reap(os.WNOHANG)
            over = 0 in ready
            for pid, client in self._clients.items():
                if over or client in ready:  # that client has ended
                    os.kill(pid, signal.SIGKILL)  # it is not reaped yet
            if over:
                self._reap(0)
                return None
            if self._listener in ready and (begin := self._fork()) is not None:
                return begin

    def _reap(self, options: int) -> None:
        """Tell clients how their workers ended."""
        while self._clients:
            pid, status = os.waitpid(-1, options)
            if not pid:
                return
            with self._clients.pop(pid) as client, contextlib.suppress(BrokenPipeError):
                client.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _fork(self) -> str | None:
        client, _ = self._listener.accept()
        begin, streams, _, _ = socket.recv_fds(client, LARGEST, 3)
        pid = os.fork()
        if pid:
            for each in streams:
                os.close(each)
            self._clients[pid] = client
            with contextlib.suppress(BrokenPipeError):
                client.send(b"forked")
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, each in enumerate(streams):
            os.dup2(each, number)
        for each in (self._wakened, self._waker, *streams):
            os.close(each)
        for each in (self._listener, client, *self._clients.values()):
            each.close()
        return begin.decode()
