"""Starts the services of a supervisor as forks of a process that has imported them.

Only what differs in nothing but its arguments and its own variables is forked: other programs,
other Python options, code from another folder and variables that Python or gRPC read when they are
loaded get a start of their own, as all do with ``TIDEGATE_PREFORK=0``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from support.prefork import SERVICES
from support.started import started
from tidegate.stack.processes import spawning
from tidegate.stack.processes.spawning import service_environment
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFORK = Path(__file__).with_name("prefork.py")
_LOADED = ("PYTHON", "GRPC_", "LD_", "LC_", "LANG", "OPENSSL_", "SSL_", "TIDEGATE_COMPILED")
"""Beginnings of variables that are read before ``main`` runs."""


class Prefork:
    """The process that forks services for all test workers of a run. Use as a context manager."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-prefork-")
        self.path = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen()
            descriptor = listener.fileno()
            command = (sys.executable, "-P", str(_PREFORK), str(os.getpid()), str(descriptor))
            env = service_environment()
            self._process = subprocess.Popen(command, env=env, pass_fds=(descriptor,))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class Forks:
    """A connection to that process. Use as a context manager; what it forked ends with it.

    Args:
        path: Path of the process's socket.
    """

    def __init__(self, path: str) -> None:
        self._env = service_environment()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def takes(self, program: spawning.Program) -> bool:
        """Return whether a program is a service with the environment of this process."""
        if program.argv[:4] not in map(module_command, SERVICES):
            return False
        return _loaded(program.env) == _loaded(self._env)

    async def spawn(self, program: spawning.Program, log: IO[bytes]) -> Forked:
        """Fork a service."""
        *_, module = program.argv[:4]
        started(program.argv)
        wanted = {
            "module": module,
            "arguments": program.argv[4:],
            "env": dict(program.env),
            "cwd": str(program.cwd) if program.cwd else None,
            "group": program.group,
        }
        reader, writer = os.pipe()
        try:
            message = json.dumps(wanted).encode()
            socket.send_fds(self._socket, [message], [log.fileno(), writer])
        finally:
            os.close(writer)
        return await Forked.begun(reader)


class Forked:
    """A forked service, as ``spawning.Process`` describes it."""

    def __init__(self, pid: int, lines: asyncio.StreamReader, reading: asyncio.BaseTransport):
        self.pid = pid
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._wait(lines, reading), name=f"end of {pid}")

    @classmethod
    async def begun(cls, reader: int) -> Self:
        """Return the service whose process id comes from this pipe."""
        lines = asyncio.StreamReader()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reader, "rb")
        )
        return cls(int(await lines.readline()), lines, reading)

    async def _wait(self, lines: asyncio.StreamReader, reading: asyncio.BaseTransport) -> None:
        self.returncode = int(await lines.readline())
        reading.close()

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        await asyncio.shield(self._end)
        assert self.returncode is not None
        return self.returncode


def forking() -> bool:
    """Return whether services are forked at all."""
    return os.environ.get("TIDEGATE_PREFORK") != "0"


@contextlib.contextmanager
def preforked(path: str | None = None) -> Iterator[None]:
    """Let supervisors fork services meanwhile.

    Args:
        path: Socket of a `Prefork` that runs already; ``None`` = start one.
    """
    if not forking():
        yield
        return
    before = spawning.spawn
    with contextlib.ExitStack() as exit_:
        forks = exit_.enter_context(Forks(path or exit_.enter_context(Prefork()).path))

        async def spawn(program: spawning.Program, log: IO[bytes]) -> spawning.Process:
            taken = forks if forks.takes(program) else None
            return await (taken.spawn(program, log) if taken else before(program, log))

        spawning.spawn = spawn
        try:
            yield
        finally:
            spawning.spawn = before


def _loaded(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_LOADED)}
