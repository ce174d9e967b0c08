"""One emulated replica: the simulator's engine in wall time.

Rules:

1. The engine's clock is the wall clock times ``scale``: with a scale of 8, a step of 8 ms takes
   1 ms. A late event loop delays responses by the same time, but never the engine.
2. The engine core (``bench.engine``) implements batching, chunked prefill and the block cache;
   blocks and token counts are derived from the prompt's text alone (``text.py``).
3. A listener gets ``first`` once, then ``done`` or ``lost`` once. After ``forget`` it gets no more
   calls; the request continues, as Triton's, or is dropped, as vLLM's (``abort``).
4. Tokens after the first are delivered in batches: every ``STREAM_S``, and at the end.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Protocol

from bench.emulator.text import blocks_of, tokens_of
from bench.simulate.replica import ReplicaTask, SimulatedReplica
from bench.simulate.workload import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.engine import EngineConfig

STREAM_S: Final = 0.25
"""Interval between two pieces of an answer, wall seconds."""


class ResponseListener(Protocol):
    """Listener of one request."""

    def first(self) -> None:
        """Handle the first token."""

    def more(self) -> None:
        """Handle further tokens."""

    def done(self, tokens: int) -> None:
        """Handle the end of the answer, which has ``tokens`` tokens."""

    def lost(self) -> None:
        """Handle the loss of the request."""


@dataclass(slots=True)
class EmulatedCounters:
    """Counters of a replica since its reset; in tokens unless documented otherwise."""

    requests: int = 0
    finished: int = 0
    prompt: int = 0
    hit: int = 0
    """Prompt tokens found in the cache."""
    generated: int = 0


class EmulatedReplica:
    """An emulated replica.

    Args:
        engine: Parameters of the engine.
        scale: Engine seconds per wall second.
        clock: Wall clock, seconds.
        unix: Wall clock, Unix seconds.
    """

    def __init__(
        self,
        engine: EngineConfig,
        scale: float,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self.engine = engine
        self.scale = scale
        self.counters = EmulatedCounters()
        self.started_unix_s = unix()
        """Start of the emulated process."""
        self._clock = clock
        self._unix = unix
        self._start = clock()
        self._replica = SimulatedReplica(engine)
        self._hearers: dict[int, ResponseListener] = {}
        self._tasks: dict[int, ReplicaTask] = {}
        self._begun: set[int] = set()
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<EmulatedReplica {self._replica!r} open={len(self._hearers)}>"

    @property
    def now(self) -> float:
        """Return the engine's time."""
        return (self._clock() - self._start) * self.scale

    @property
    def queued(self) -> int:
        """Return the number of requests that wait for admission."""
        return self._replica.queued

    @property
    def running(self) -> int:
        """Return the number of requests in the batch."""
        return self._replica.running

    @property
    def kv_used(self) -> float:
        """Return the fraction of the cache that running requests hold."""
        return self._replica.kv_used

    @property
    def first_tokens(self) -> tuple[int, float]:
        """Return how many answers have begun, and the sum of the seconds until then, wall time."""
        return self._replica.prompts, self._replica.first_tokens_s / self.scale

    def stats(self) -> dict[str, float]:
        """Return all counters and the current load."""
        return {
            **asdict(self.counters),
            "computed": self._replica.computed_tokens,
            "busy_s": self._replica.busy_s,
            "queued": self.queued,
            "running": self.running,
        }

    def submit(self, prompt: bytes, output: int, listener: ResponseListener) -> int:
        """Queue a request; return its number for ``forget``.

        Raises:
            ValueError: The cache is too small for the request alone.
        """
        self.pump()
        number = self._next
        job = Job(number, 0.0, tokens_of(prompt), output, blocks_of(prompt))
        now = self.now
        task = ReplicaTask(job, now)
        self._replica.arrive(task, now)
        self._tasks[number] = task
        self._next += 1
        self.counters.requests += 1
        self._hearers[number] = listener
        self._schedule()
        return number

    def forget(self, number: int) -> None:
        """Stop calling the listener of a request."""
        self._hearers.pop(number, None)
        self._begun.discard(number)

    def abort(self, number: int) -> None:
        """Drop a request at the end of the current step, unless it has ended."""
        self.forget(number)
        self.pump()
        task = self._tasks.pop(number, None)
        if task is not None:
            self._replica.leave(task, self.now)
            self._schedule()

    def set_speed(self, speed: float) -> None:
        """Set the factor on the rate, from the next step on."""
        self._replica.speed = speed

    def reset(self) -> None:
        """Restart at once: drop the cache, counters and all requests."""
        listeners = list(self._hearers.values())
        self._hearers.clear()
        self._tasks.clear()
        self._begun.clear()
        self._replica = SimulatedReplica(self.engine)
        self.counters = EmulatedCounters()
        self.started_unix_s = self._unix()
        for listener in listeners:
            listener.lost()

    def pump(self) -> None:
        """Advance the engine to the current time."""
        now = self.now
        while self._replica.next_at <= now:
            ended = self._replica.advance()
            for task in ended.first:
                self._first(task)
            for task in ended.finished:
                self._finished(task)

    # --- Internals ------------------------------------------------------------------------------

    def _first(self, task: ReplicaTask) -> None:
        counters, job = self.counters, task.job
        counters.prompt += job.input_tokens
        counters.hit += min(job.input_tokens - 1, task.matched * self.engine.block_tokens)
        listener = self._hearers.get(job.index)
        if listener is not None:
            self._begun.add(job.index)
            listener.first()

    def _finished(self, task: ReplicaTask) -> None:
        self.counters.finished += 1
        self.counters.generated += task.job.output_tokens
        self._tasks.pop(task.job.index, None)
        listener = self._hearers.pop(task.job.index, None)
        self._begun.discard(task.job.index)
        if listener is not None:
            listener.done(task.job.output_tokens)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._replica.next_at == float("inf"):
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            max(0.0, (self._replica.next_at - self.now) / self.scale), self._due
        )
        if self._ticker is None:
            self._ticker = loop.call_later(STREAM_S, self._tick)

    def _due(self) -> None:
        self._timer = None
        self.pump()
        self._schedule()

    def _tick(self) -> None:
        self._ticker = None
        for number in list(self._begun):
            listener = self._hearers.get(number)
            if listener is not None:
                listener.more()
        if self._hearers:
            self._ticker = asyncio.get_running_loop().call_later(STREAM_S, self._tick)
