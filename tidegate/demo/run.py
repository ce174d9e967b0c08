"""The demo: starts the stack, runs the phases, prints the summary, then the live table.

Rules:

1. Every child process is stopped before ``run`` returns or raises.
2. A crash of a child ends the demo with exit code 1; the error names the child and shows the end
   of its log.
3. With ``stay`` false, the exit code is 0 only if every phase passed.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidegate.demo.clients import Clients
from tidegate.demo.live import stay
from tidegate.demo.operator import Operator
from tidegate.demo.phases import affinity, canary, forms, picker_loss, replica_loss, traffic
from tidegate.demo.report import DemoVerdict, PhaseFinding, show, show_summary
from tidegate.demo.scene import Scene, page_session
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.supervisor import CrashError
from tidegate.stack.processes.waiting import StackError
from tidegate.terminal.errors import FAILED, OK, CliError
from tidegate.terminal.output import console

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from rich.console import Console

    from tidegate.stack.envoy import XdsProtocol

T = TypeVar("T")
PHASES: Final[tuple[tuple[str, Callable[[Scene], Awaitable[PhaseFinding]]], ...]] = tuple(
    (module.TITLE, module.run)
    for module in (forms, traffic, affinity, canary, replica_loss, picker_loss)
)
INTERRUPTED: Final = 130
"""Exit code after SIGINT: 128 + signal number, as in shells."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo."""

    replicas: int
    requests: int
    stay: bool
    protocol: XdsProtocol


class Interrupt:
    """Handling of SIGINT and SIGTERM: they cancel the phases, but end the live table normally."""

    def __init__(self) -> None:
        self.happened = False
        self.stop: asyncio.Event | None = None
        """If set, an interrupt sets this event instead of cancelling the task."""
        self._main = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        self.happened = True
        if self.stop is not None:
            self.stop.set()
        elif self._main is not None:
            self._main.cancel()


async def run(options: DemoOptions) -> int:
    """Run the demo and return the exit code.

    Raises:
        CliError: A child crashed or did not start.
    """
    interrupt = Interrupt()
    out = console()
    try:
        return await _run(options, out, interrupt)
    except (CrashError, StackError, ExtraMissingError) as error:
        raise CliError(str(error)) from error
    except asyncio.CancelledError:
        if not interrupt.happened:
            raise
        out.print("stopped before the end; all processes have ended; goodbye")
        return INTERRUPTED


async def _run(options: DemoOptions, out: Console, interrupt: Interrupt) -> int:
    started = time.perf_counter()

    def progress(step: str, detail: str) -> None:
        out.print(f"[{time.perf_counter() - started:5.1f} s] {step}: {detail}", markup=False)

    out.print(
        f"starting {options.replicas} Tritons, control server, picker, gateway and Envoy "
        f"({options.protocol} xDS) on this machine",
        markup=False,
    )
    stack = LocalStack(
        replicas=options.replicas,
        protocol=options.protocol,
        gateway=True,
        model_env={"TOY_LLM_CACHE_BLOCKS": str(affinity.CACHE_BLOCKS)},
        on_progress=progress,
    )
    async with AsyncExitStack() as exit_:
        with busy(out, "starting"):
            await exit_.enter_async_context(stack)
        scene = Scene(
            stack=stack,
            clients=await exit_.enter_async_context(Clients(stack.http_url, stack.grpc_address)),
            operator=await exit_.enter_async_context(Operator(stack.admin_address)),
            pages=await exit_.enter_async_context(page_session()),
            requests=options.requests,
        )
        findings = await _unless_crashed(stack, _phases(out, scene))
        show_summary(out, findings, stack.run.path)
        if options.stay:
            interrupt.stop = asyncio.Event()
            await _unless_crashed(stack, stay(out, scene, interrupt.stop))
    if options.stay:
        out.print(f"all processes have stopped; goodbye. Logs: {stack.run.path}", markup=False)
    return OK if all(finding.verdict.holds for finding in findings) else FAILED


@contextmanager
def busy(out: Console, text: str) -> Iterator[None]:
    """Show a spinner on the console that also gets the lines, so that they do not mix."""
    if not out.is_terminal:
        yield
        return
    with out.status(text):
        yield


async def _phases(out: Console, scene: Scene) -> list[PhaseFinding]:
    findings = []
    for number, (title, phase) in enumerate(PHASES, 1):
        with busy(out, f"{number}. {title}"):
            try:
                finding = await phase(scene)
            except CrashError:
                raise
            except Exception as error:  # noqa: BLE001 - an error in a phase is a failed phase
                reason = f"{type(error).__name__}: {error}"
                finding = PhaseFinding(
                    title, ("result",), (("broken off",),), DemoVerdict(False, reason)
                )
        findings.append(finding)
        show(out, number, finding)
    return findings


async def _unless_crashed(stack: LocalStack, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``; raise ``CrashError`` as soon as a child crashes."""
    task, crashed = asyncio.create_task(work), asyncio.create_task(stack.crashed())
    try:
        await asyncio.wait({task, crashed}, return_when=asyncio.FIRST_COMPLETED)
        if crashed.done():
            raise CrashError(crashed.result())
        return await task
    finally:
        for one in (task, crashed):
            one.cancel()
        await asyncio.gather(task, crashed, return_exceptions=True)
