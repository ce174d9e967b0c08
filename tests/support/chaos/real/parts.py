"""Processes, each on a host and a disk of its own, that are started again when they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.chaos.real.checker import Exit
from tidegate.stack.processes import spawning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGAIN_S: Final = 0.3
"""What supervises a process starts it again so much later."""
_ROOM: Final = 8 * 2**20


class Part:
    """A process that ends only with this object.

    Args:
        name: Its name, such as ``picker-1``.
        address: That of its host.
        inside: Words by which a command runs there.
        command: What runs.
        env: Its environment.
        folder: Its disk, which has its log.
    """

    def __init__(
        self,
        name: str,
        address: str,
        inside: Sequence[str],
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.name, self.address, self.folder = name, address, folder
        self._program = spawning.Program((*inside, *command), env)
        self._process: spawning.Process | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._keeping: asyncio.Task[None] | None = None
        self._filler = folder / "filler"
        self.exits: list[Exit] = []
        """Ends that no fault asked for."""

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._keeping = asyncio.create_task(self._keep())

    @property
    def pid(self) -> int:
        """Its process id; 0 = it does not run."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else 0

    async def end(self) -> None:
        """Kill it for good."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def kill(self) -> None:
        """Kill it; it stays dead until ``heal``."""
        self._wanted.clear()
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Freeze it."""
        self._signal(signal.SIGSTOP)

    def disk(self) -> None:
        """Fill its disk."""
        with contextlib.suppress(OSError), self._filler.open("wb") as file:
            while True:
                file.write(b"\0" * 2**16)
                file.flush()

    def descriptors(self) -> None:
        """Let it open one more descriptor."""
        if pid := self.pid:
            have = max(map(int, os.listdir(f"/proc/{pid}/fd")), default=0)  # noqa: PTH208 - names
            self._limit(resource.RLIMIT_NOFILE, have + 2)

    def memory(self) -> None:
        """Let it have 8 MiB more of memory."""
        if pid := self.pid:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            self._limit(resource.RLIMIT_AS, pages * resource.getpagesize() + _ROOM)

    def dark(self) -> None:
        """Let its page of metrics hang."""
        (self.folder / "dark").touch()

    def heal(self) -> None:
        """Take back all that was done to it."""
        self._wanted.set()
        self._signal(signal.SIGCONT)
        self._filler.unlink(missing_ok=True)
        (self.folder / "dark").unlink(missing_ok=True)
        self._limit(resource.RLIMIT_NOFILE, None)
        self._limit(resource.RLIMIT_AS, None)

    def used(self) -> tuple[int, int] | None:
        """Return its descriptors and resident bytes; ``None`` = it does not run."""
        with contextlib.suppress(OSError):
            if pid := self.pid:
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                return len(os.listdir(f"/proc/{pid}/fd")), resident * resource.getpagesize()  # noqa: PTH208 - a count
        return None

    def keep_log(self, folder: Path) -> None:
        """Copy its log, which goes with its disk."""
        with contextlib.suppress(OSError):
            shutil.copy(self.folder / "log", folder / f"{self.name}.log")

    def _limit(self, what: int, soft: int | None) -> None:
        with contextlib.suppress(OSError):
            if pid := self.pid:
                hard = resource.prlimit(pid, what)[1]
                resource.prlimit(pid, what, (hard if soft is None else soft, hard))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if pid := self.pid:
                os.killpg(pid, number)

    async def _keep(self) -> None:
        while True:
            await self._wanted.wait()
            with (self.folder / "log").open("ab") as log:
                self._process = await spawning.spawn(self._program, log)
            code = await self._process.wait()
            if self._wanted.is_set():
                self.exits.append(Exit(self.name, code, time.monotonic()))
                await asyncio.sleep(AGAIN_S)
