"""Forks our services from a process that has imported them: ``prefork.py PARENT_PID LISTENER_FD``.

The imports of a control server take 2 seconds of a processor, those of a picker 1, and the tests
start hundreds. A fork runs the same ``__main__`` module with the same arguments, environment,
folder and files; only the imports are done, and a control server's first look at each type of
Envoy's messages, which takes 0.3 seconds.

Rules:

1. Each process that runs tests has a connection. One message on it asks for one child: JSON of
   ``module``, ``arguments``, ``env``, ``cwd`` and ``group``, with two descriptors, its log and a
   pipe. What a connection asked for ends with it.
2. The pipe gets two lines: the child's process id, and its exit code once it has ended (negative:
   the signal).
3. Nothing here starts threads or touches gRPC beyond its import, as neither survives a fork.
4. This process ends with its parent, and the children with this process.
5. The parent of a picker's workers forks them in turn. The name of one in ``/proc/PID/comm`` is
   ``worker N``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tidegate.stack.processes.guard import end_group_after, end_with_parent
from tidegate_common.children import module_command
from tidegate_common.logs import quiet_grpc

SERVICES = ("ext_proc", "gateway", "tidegate", "xds_server")
FLEET = Path(__file__).parents[2] / "docs" / "examples" / "fleet.yaml"
IMPORTED_LATER = ("ext_proc.app", "gateway.app", "tidegate.picker.run", "xds_server.app")
"""What their ``__main__`` modules import once they know what is wanted."""
MAINS = (
    *(f"{each}.__main__" for each in (*SERVICES, "ext_proc.workers")),
    "tidegate.picker.worker",
)
WORKERS = ("ext_proc.workers", "tidegate.picker.worker")
"""What the parent of a picker's workers starts."""
PR_SET_NAME = 15  # linux/prctl.h
LARGEST = 1 << 20
"""Bytes of one message, at most."""


def serve(listener: socket.socket) -> dict:
    """Fork children until this process ends; return in each child, with what it is to run."""
    waker, wakened = os.pipe()
    os.set_blocking(wakened, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, tuple[int, socket.socket]] = {}
    connections: list[socket.socket] = []
    parent = os.getpid()
    while True:
        ready, _, _ = select.select([waker, listener, *connections], [], [])
        if waker in ready:
            os.read(waker, 4096)
            _report_ended(children)
        if listener in ready:
            connections.append(listener.accept()[0])
        for connection in ready:
            if connection not in connections:
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, LARGEST, 2)
            if not message:
                connections.remove(connection)
                _end_of(connection, children)
                continue
            log, pipe = descriptors
            wanted = json.loads(message)
            pid = os.fork()
            if pid == 0:
                _become(wanted, parent, log)
                return wanted
            children[pid] = pipe, connection
            os.close(log)
            _tell(pipe, pid)


def _report_ended(children: dict[int, tuple[int, socket.socket]]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe, _ = children.pop(pid)
        _tell(pipe, os.waitstatus_to_exitcode(status))
        os.close(pipe)


def _tell(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # who asked has ended
        os.write(pipe, f"{number}\n".encode())


def _end_of(connection: socket.socket, children: dict[int, tuple[int, socket.socket]]) -> None:
    connection.close()
    for pid, (_, asked_by) in children.items():
        if asked_by is connection:
            os.kill(pid, signal.SIGKILL)  # it is not reaped yet


def _become(wanted: dict, parent: int, log: int) -> None:
    """Give this fork what a program of its own would have."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number in (1, 2):
        os.dup2(log, number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.closerange(3, 1024)
    end_with_parent(parent)
    if wanted["group"]:
        end_group_after(os.getpid())
    if wanted["cwd"]:
        os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.argv[1:] = wanted["arguments"]


def write_once() -> None:
    """Write the resources of a fleet."""
    loading, views, memos, stages = (
        import_module(f"xds_server.{name}")
        for name in ("fleet.load", "fleet.view", "snapshots.build", "snapshots.stages")
    )
    fleet = loading.load_text(FLEET.read_text())
    list(stages.plan(None, views.View(fleet), memos.Memo()))


class ForkedWorker:
    """A worker, with what its parent uses of ``asyncio.subprocess.Process``."""

    def __init__(self, module: str, arguments: tuple[str, ...]) -> None:
        reader, self._stdin = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _work(module, arguments, reader)
        os.close(reader)
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._ended(), name=f"end of {self.pid}")

    async def _ended(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        _, status = os.waitpid(self.pid, 0)  # noqa: ASYNC222 - it has ended
        self.returncode = os.waitstatus_to_exitcode(status)
        os.close(self._stdin)

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        await asyncio.shield(self._end)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def fork_workers() -> None:
    """Fork workers from now on; other programs are started as before."""
    before = asyncio.create_subprocess_exec

    async def start(*argv: str, **options: Any) -> Any:
        if argv[:4] in map(module_command, WORKERS):
            return ForkedWorker(argv[3], argv[4:])
        return await before(*argv, **options)

    asyncio.create_subprocess_exec = start  # type: ignore[assignment]  # as much as is used


def _work(module: str, arguments: tuple[str, ...], reader: int) -> NoReturn:
    """Run a worker in this fork, whose stack never unwinds: the parent's loop is left alone."""
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(reader, 0)
        os.closerange(3, 4096)
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(None)
        name = f"worker {arguments[1]}".encode()
        ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as Python would at the end of a program
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def main(parent: int, descriptor: int) -> None:
    """Import what the services import, then fork them."""
    end_with_parent(parent)
    quiet_grpc(os.environ)  # as the services do before they import gRPC
    for module in IMPORTED_LATER:
        import_module(module)
    for module in MAINS:
        import_module(module)
        del sys.modules[module]  # it will run anew, with all that it imports there
    write_once()
    gc.collect()
    gc.freeze()
    wanted = serve(socket.socket(fileno=descriptor))
    fork_workers()
    runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
