"""The parent process of a picker's workers: starts, restarts and stops them.

Rules:

1. Each worker is a process of its own. One that ends by itself is restarted, after a longer delay
   each time it ends soon after its start; the others continue.
2. A worker that ends with a usage error before it ever lived for ``LIVED_S`` ends all workers with
   that exit code: an address that cannot be bound would fail again. A life that ends with one was a
   start that failed, however long it took.
3. SIGTERM and SIGINT are forwarded once. Workers that have not ended ``SPARE_S`` after their drain
   are killed. The exit code is 0 only if all workers ended as requested.
4. Workers detect the parent's death by the end of their standard input, and drain.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from ext_proc.settings import EXIT_USAGE
from tidegate_common import logs
from tidegate_common.backoff import Backoff
from tidegate_common.children import child_environment, module_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.settings import PickerSettings

MODULE: Final = "ext_proc.workers"
LIVED_S: Final = 10.0
SPARE_S: Final = 5.0
_STOPPED: Final = (0, -signal.SIGTERM, -signal.SIGINT)
"""How a worker ends that was told to stop: by the signal itself where it was not ready yet, or had
stopped already when a second one came, as to all processes of a group."""

_log = structlog.stdlib.get_logger("ext_proc.workers")


async def run_workers(
    settings: PickerSettings,
    plans: Sequence[PickerSettings],
    module: str = MODULE,
    more: Sequence[str] = (),
) -> int:
    """Run workers until SIGTERM or SIGINT.

    Args:
        settings: Settings of the whole picker.
        plans: Settings of each worker.
        module: What a worker runs.
        more: Its arguments after the usual ones.

    Returns:
        0 after a requested stop, 1 if a worker did not stop properly, 2 if a worker could not
        bind an address.
    """
    logs.configure(settings.log_format, settings.log_level)
    with tempfile.TemporaryDirectory(prefix="tidegate-workers-") as folder:
        grace_s = settings.drain + SPARE_S
        return await WorkerSupervisor(
            folder, plans, grace_s=grace_s, module=module, more=more
        ).run()


class WorkerSupervisor:
    """The workers of one picker.

    Args:
        folder: Private folder that contains their sockets.
        plans: Settings of each worker.
        grace_s: Seconds from SIGTERM to SIGKILL.
        module: What a worker runs.
        more: Its arguments after the usual ones.
    """

    def __init__(
        self,
        folder: str,
        plans: Sequence[PickerSettings],
        *,
        grace_s: float,
        module: str = MODULE,
        more: Sequence[str] = (),
    ) -> None:
        self._module = module
        self._more = more
        self._folder = folder
        self._plans = plans
        self._grace_s = grace_s
        self._stop = asyncio.Event()
        self._code = 0

    async def run(self) -> int:
        """Keep the workers running until a signal; return the exit code."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._stop.set)
        _log.info(
            "workers_starting",
            ids=[plan.id for plan in self._plans],
            listen=[plan.listen for plan in self._plans],
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(len(self._plans)):
                    tasks.create_task(self._keep(number), name=f"worker {number}")
        finally:
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)
        _log.info("workers_stopped", code=self._code)
        return self._code

    async def _keep(self, number: int) -> None:
        backoff, lived_once = Backoff(random.random), False
        while not self._stop.is_set():
            began = time.monotonic()
            code = await self._live(number)
            if self._stop.is_set():
                if code not in _STOPPED:
                    _log.error("worker_ended", worker=self._plans[number].id, code=code)
                    self._fail(1)
                return
            lived = code != EXIT_USAGE and time.monotonic() - began >= LIVED_S
            lived_once = lived_once or lived
            if lived:
                backoff.reset()
            if code == EXIT_USAGE and not lived_once:
                self._fail(EXIT_USAGE)
                return
            delay = backoff.delay_s()
            _log.error(
                "worker_ended",
                worker=self._plans[number].id,
                code=code,
                again_in_s=round(delay, 2),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)

    def _fail(self, code: int) -> None:
        self._code = max(self._code, code)
        self._stop.set()

    async def _live(self, number: int) -> int:
        """Run a worker until it ends; return its exit code, negative for a signal."""
        process = await asyncio.create_subprocess_exec(
            *module_command(self._module, self._folder, str(number), str(len(self._plans))),
            self._plans[number].model_dump_json(),
            *self._more,
            env=child_environment(),
            stdin=asyncio.subprocess.PIPE,
        )
        ended = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                _send(process, signal.SIGTERM)
                await asyncio.wait({ended}, timeout=self._grace_s)
                if not ended.done():
                    _send(process, signal.SIGKILL)
            return await ended
        finally:
            stopped.cancel()
            _send(process, signal.SIGKILL)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)
