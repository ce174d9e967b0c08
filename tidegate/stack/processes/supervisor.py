"""Supervisor of child processes.

Rules:

1. Each child has its own process group and log file, and ends when the supervising process ends.
2. An exit is *expected* after ``kill``, ``restart`` or ``stop``; any other exit is a crash. The
   first crash is reported once through ``crash``, with the end of its log.
3. ``stop`` ends all children: SIGTERM first, then SIGKILL to their groups after a grace period.
4. One running child per name; starting a name twice raises and changes nothing.
5. After ``keep_running`` a child that exits unexpectedly is started again, with delays that double
   from ``FIRST_DELAY_S``. One that exits ``MOST_CRASHES`` times within ``WITHIN_S`` is given up,
   and only that exit is a crash. It may hold for some exits only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.stack.processes import spawning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL in ``stop``, seconds."""
FIRST_DELAY_S = 0.1
"""Time before a child is started again after its first exit within ``WITHIN_S``, seconds."""
MOST_CRASHES = 5
WITHIN_S = 60.0
TAIL_LINES = 15
TAIL_BYTES = 16_384
"""Maximum size of the log's end in a crash report."""


@dataclass(frozen=True, slots=True)
class Crash:
    """An unexpected exit of a child."""

    name: str
    code: int
    """Exit code; negative: number of the signal that ended the child."""
    log: Path
    tail: str
    """Last lines of the log."""

    @property
    def how(self) -> str:
        """The child, its end and its log in one clause."""
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"exited with {self.code}"
        return f"{self.name} {how}; its log is {self.log}"

    def __str__(self) -> str:
        """Return a report with the exit code and the end of the log."""
        text = self.how
        return f"{text}, which ends:\n{self.tail}" if self.tail else f"{text} (empty)"


class CrashError(RuntimeError):
    """A child crashed while it was needed."""

    def __init__(self, crash: Crash) -> None:
        super().__init__(str(crash))
        self.crash = crash


@dataclass(slots=True, eq=False)
class _Child:
    program: spawning.Program
    process: spawning.Process
    watch: asyncio.Task[None] = field(init=False)
    expected: bool = False
    crashes: list[float] = field(default_factory=list)
    """Times of the unexpected exits under this name within ``WITHIN_S``, loop seconds."""


class Supervisor:
    """The children of one run.

    Args:
        logs: Folder of the log files, ``<name>.log``; a restarted child appends.
        on_exit: Called with a child's name after each exit, expected or not.
    """

    def __init__(self, logs: Path, on_exit: Callable[[str], None] | None = None) -> None:
        self._logs = logs
        self._on_exit = on_exit
        self._children: dict[str, _Child] = {}
        self._crash: Crash | None = None
        self._crashed = asyncio.Event()
        self._on_restart: Callable[[Crash], None] | None = None
        self._restarts_after: Callable[[Crash], bool] = _any_crash

    @property
    def crash(self) -> Crash | None:
        """The first crash, or ``None``."""
        return self._crash

    async def crashed(self) -> Crash:
        """Wait for a crash."""
        await self._crashed.wait()
        assert self._crash is not None  # noqa: S101 - set before the event is
        return self._crash

    def log(self, name: str) -> Path:
        """Return the path of a child's log."""
        return self._logs / f"{name}.log"

    def running(self, name: str) -> bool:
        """Return whether the child is running."""
        child = self._children.get(name)
        return child is not None and child.process.returncode is None

    def pid(self, name: str) -> int:
        """Return the child's process id, which is also its process group id.

        Raises:
            KeyError: No child of that name was started.
        """
        return self._children[name].process.pid

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        group: bool = False,
        cwd: Path | None = None,
    ) -> None:
        """Start a child.

        Args:
            name: Name of the child and its log.
            argv: Program and arguments.
            env: Complete environment; Python adds LC_CTYPE if it names no locale.
            group: Whether the child starts processes of its own; they end with it, even if the
                supervising process is killed.
            cwd: Folder in which it runs; default: that of this process.

        Raises:
            ValueError: A child of that name is running.
        """
        if self.running(name):
            raise ValueError(f"{name} is running already")
        await self._start(name, spawning.Program(tuple(argv), dict(env), group, cwd))

    async def _start(
        self, name: str, program: spawning.Program, crashes: list[float] | None = None
    ) -> None:
        with self.log(name).open("ab") as log:
            process = await spawning.spawn(program, log)
        child = _Child(program, process, crashes=crashes or [])
        child.watch = asyncio.create_task(self._watch(name, child), name=f"watch {name}")
        self._children[name] = child

    def keep_running(
        self,
        on_restart: Callable[[Crash], None],
        after: Callable[[Crash], bool] | None = None,
    ) -> None:
        """Start children again that exit unexpectedly from now on (rule 5).

        Args:
            on_restart: Called with each exit after which the child is started again.
            after: Returns whether this holds for an exit; default: for all.
        """
        self._on_restart, self._restarts_after = on_restart, after or _any_crash

    def expect_end(self, name: str) -> None:
        """Note that a child may end by itself: its exit is then no crash.

        Raises:
            KeyError: No child of that name was started.
        """
        self._children[name].expected = True

    async def kill(self, name: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a child's process group and wait until the child has ended.

        Raises:
            KeyError: No child of that name was started.
        """
        child = self._children[name]
        child.expected = True
        _signal(child.process, sig)
        await asyncio.shield(child.watch)

    async def restart(self, name: str) -> None:
        """Restart a child with the same command and environment; kill it first if it runs.

        Raises:
            KeyError: No child of that name was started.
        """
        child = self._children[name]
        if self.running(name):
            await self.kill(name)
        await self._start(name, child.program)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """End all children."""
        children = list(self._children.values())
        for child in children:
            child.expected = True
            _signal(child.process, signal.SIGTERM)
        watches = [child.watch for child in children]
        if watches:
            await asyncio.wait(watches, timeout=grace_s)
        for child in children:
            if not child.watch.done():
                _signal(child.process, signal.SIGKILL)
        await asyncio.gather(*watches)

    async def _watch(self, name: str, child: _Child) -> None:
        code = await child.process.wait()
        # End processes that the child left in its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        if self._on_exit is not None:
            self._on_exit(name)
        if not child.expected and self._crash is None:
            log = self.log(name)
            crash = Crash(name, code, log, read_tail(log))
            if not await self._started_again(name, child, crash):
                self._crash = crash
                self._crashed.set()

    async def _started_again(self, name: str, child: _Child, crash: Crash) -> bool:
        if self._on_restart is None or not self._restarts_after(crash):
            return False
        now = asyncio.get_running_loop().time()
        crashes = [*(at for at in child.crashes if now - at < WITHIN_S), now]
        if len(crashes) >= MOST_CRASHES:
            return False
        self._on_restart(crash)
        await asyncio.sleep(FIRST_DELAY_S * 2 ** (len(crashes) - 1))
        if not child.expected and self._children[name] is child:
            await self._start(name, child.program, crashes)
            await self._end_if_unwanted(name, child)
        return True

    async def _end_if_unwanted(self, name: str, before: _Child) -> None:
        """End a child that started while ``stop`` or ``kill`` ended the one before it."""
        if before.expected:
            await self.kill(name)


def _any_crash(_: Crash) -> bool:
    return True


async def first_crash(supervisors: Sequence[Supervisor]) -> Crash:
    """Wait for the first crash among the children of several supervisors."""
    tasks = [asyncio.create_task(supervisor.crashed()) for supervisor in supervisors]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def read_tail(path: Path) -> str:
    """Return the last lines of a log, bounded in lines and bytes; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:])


def _signal(process: spawning.Process, sig: signal.Signals) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sig)
