"""Threads of simulated hosts: one runs at a time, and each waits in virtual time.

A *strand* is a thread that runs until it waits for something of the simulated world, and goes on
when that is due on its host: not while the host is stopped, and never after it was killed. What it
waits for then raises ``Killed``, so that it ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from support.chaos.hosts import Handle, HostLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from support.chaos.hosts import Network

SHARE_S: Final = 0.002
"""Longest time until a thread that may run does."""

TURNS: Final = 1000
"""Most turns of the clean-up of a process that has ended."""


class Killed(BaseException):
    """The host of this strand was killed; no code may take it for an error of its own."""


class Strand:
    """A thread of a host; see the module."""

    now: Strand | None = None
    """The one that runs."""

    def __init__(self, host: ThreadedLoop, run: Callable[[], Any]) -> None:
        self.host = host
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.then: list[Callable[[], None]] = []
        """Called once it has ended."""
        self._run = run
        self._waits = 0
        """Number of the wait that it is in."""
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._life, daemon=True)
        host.strands[self] = None
        self.later(host.rng.random() * SHARE_S)

    def later(self, delay_s: float) -> None:
        """Go on then with what it waits for now, or next if it runs."""
        self.host.call_later(delay_s, self.go_on, self._waits)

    def go_on(self, waits: int | None = None) -> None:
        """Let it run until it waits again or has ended; called by the world."""
        if self.ended or waits not in {None, self._waits}:
            return
        self._waits += 1
        before, Strand.now = Strand.now, self
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()
        self._theirs.acquire()
        Strand.now = before
        if self.ended:
            self._thread.join()
            self.host.strands.pop(self, None)
            for each in self.then:
                each()

    def wait(self) -> None:
        """Let others run until something calls ``go_on``; called by the strand.

        Raises:
            Killed: Its host was killed.
        """
        if not self.host.alive:
            raise Killed
        self._theirs.release()
        self._mine.acquire()
        if not self.host.alive:
            raise Killed

    def _life(self) -> None:
        try:
            self.result = self._run()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for it
            self.error = error
        self.ended = True
        self._theirs.release()


def running() -> Strand:
    """Return the strand that runs."""
    if Strand.now is None:
        raise RuntimeError("only threads may block")
    return Strand.now


def sleep(seconds: float) -> None:
    """Wait in virtual time."""
    strand = running()
    strand.later(seconds)
    strand.wait()


class ThreadedLoop(HostLoop):
    """The event loop of a host that has threads, too."""

    def __init__(self, network: Network, address: str, rng: Random) -> None:
        super().__init__(network, address)
        self.rng = rng
        self.strands: dict[Strand, None] = {}
        self._last: deque[Handle] = deque()

    def run_in_executor(self, _: Any, call: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread."""
        future = self.create_future()
        if not self.alive:
            future.set_result(None)
            return future
        strand = Strand(self, lambda: call(*args))

        def done() -> None:
            if future.cancelled() or not self.alive:
                return
            if strand.error is not None:
                self.do(future.set_exception, strand.error)
            else:
                self.do(future.set_result, strand.result)

        strand.then.append(done)
        return future

    def _done(self, task: asyncio.Task[Any]) -> None:
        """Forget a task; whoever waits for it gets its error."""
        self._tasks.pop(task, None)
        if not task.cancelled():
            task.exception()

    def put_last(self, handle: Handle) -> Handle:
        """Take a call of the clean-up of a process that has ended."""
        self._last.append(handle)
        return handle

    def call_soon(self, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call after what runs now."""
        if self.alive:
            return super().call_soon(call, *args)
        return self.put_last(Handle(self, self.network.now, call, args))

    def call_at(self, when: float, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call at a time."""
        if self.alive:
            return super().call_at(when, call, *args)
        return self.put_last(Handle(self, when, call, args))

    def call_later(self, delay: float, call: Any, *args: Any, context: Any = None) -> Any:  # noqa: ARG002
        """Call later."""
        return self.call_at(self.network.now + max(0.0, delay), call, *args)

    def end(self, *, power: bool = True) -> None:
        """End the process with its threads; the one that runs ends when it waits next.

        What it would clean up it does at once and without an effect, so that Python can forget it.
        """
        network = self.network
        if self.alive:
            self._last.extend(network.due_of(self))
        self.alive = False
        if Strand.now is not None and Strand.now.host is self:
            network.at(network.now, self.end)  # it holds what the clean-up needs
            return
        if network.hosts.get(self.address) is self:
            del network.hosts[self.address]
        self.lost_power = power
        for each in tuple(self.strands):
            if each is not Strand.now:
                each.go_on()
        turns = 0
        while (self._tasks or self._last) and turns < TURNS:
            turns += 1
            self._clean_up()
        for task in tuple(self._tasks):
            task._log_destroy_pending = False

    def _clean_up(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for _ in range(len(self._last)):
            handle = self._last.popleft()
            if handle.call is not None:
                self.do(handle.call, *handle.args)


class Event:
    """As ``threading.Event``."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Strand] = []

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._set

    def set(self) -> None:
        """Let all go on."""
        self._set = True
        for each in self._waiting:
            each.later(0.0)

    def wait(self, timeout: float) -> bool:
        """Wait until it is set."""
        if not self._set:
            strand = running()
            strand.later(max(0.0, timeout) + strand.host.rng.random() * SHARE_S)
            self._waiting.append(strand)
            try:
                strand.wait()
            finally:
                self._waiting.remove(strand)
        return self._set


class Thread:
    """As ``threading.Thread``."""

    def __init__(self, target: Callable[[], Any], **_: Any) -> None:
        self._target = target
        self._strand: Strand | None = None

    def start(self) -> None:
        """Start it on the host of the thread that runs."""
        self._strand = Strand(running().host, self._target)

    def join(self) -> None:
        """Wait for its end."""
        if self._strand is not None and not self._strand.ended:
            waiting = running()
            self._strand.then.append(lambda: waiting.later(0.0))
            waiting.wait()


class Lock:
    """As ``threading.Lock``."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Strand] = deque()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take it."""
        while self._held:
            if not blocking:
                return False
            strand = running()
            self._waiting.append(strand)
            try:
                strand.wait()
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(strand)
        self._held = True
        return True

    def release(self) -> None:
        """Give it to the next."""
        self._held = False
        if self._waiting:
            self._waiting.popleft().later(0.0)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


THREADING: Final = SimpleNamespace(Event=Event, Thread=Thread, Lock=Lock)
"""As the module ``threading``."""
