"""The emulated replica: the simulator's engine with a fake clock."""

from __future__ import annotations

import asyncio

import pytest

from bench.emulator.pages import PAGES
from bench.emulator.replica import EmulatedReplica
from bench.emulator.text import BLOCK_CHARS
from bench.engine import EngineConfig
from ext_proc.telemetry.dialects import read_all


class Clock:
    """A wall clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Heard:
    """A listener that records its calls with their times."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.log: list[tuple[str, float]] = []

    def first(self) -> None:
        """Note it."""
        self.log.append(("first", self.clock.now))

    def more(self) -> None:
        """Note it."""

    def done(self, tokens: int) -> None:
        """Note it."""
        self.log.append((f"done {tokens}", self.clock.now))

    def lost(self) -> None:
        """Note it."""
        self.log.append(("lost", self.clock.now))


@pytest.fixture
async def clock() -> Clock:
    """Return a clock within a running loop, because the replica sets timers."""
    asyncio.get_running_loop()
    return Clock()


def run_until(replica: EmulatedReplica, clock: Clock, end: float, step: float = 0.0005) -> None:
    """Move the clock in small steps."""
    while clock.now < end:
        clock.now += step
        replica.pump()


async def test_a_request_takes_the_engines_time_over_the_scale(clock: Clock) -> None:
    """800 tokens at 8,000 per second and a step of 6 ms, at a scale of 10: 10.6 ms."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    heard = Heard(clock)
    replica.submit(b"x" * 3_200, 3, heard)
    run_until(replica, clock, 0.1)
    (first, at), (done, end) = heard.log
    assert (first, done) == ("first", "done 3")
    assert at == pytest.approx(0.0106, abs=0.0006)
    # Two more tokens: two steps of 6.35 ms.
    assert end - at == pytest.approx(0.00127, abs=0.0006)


async def test_what_was_computed_is_found_again(clock: Clock) -> None:
    """The second of two equal prompts finds its full blocks, and the counters say so."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    prompt = b"y" * (2 * BLOCK_CHARS + 8)
    for _ in range(2):
        replica.submit(prompt, 1, Heard(clock))
        run_until(replica, clock, clock.now + 0.2)
    assert replica.counters.hit == 1024
    assert replica.counters.prompt == 2 * 1026
    assert replica.stats()["computed"] == 1026 + 2


async def test_a_late_loop_does_not_slow_the_engine(clock: Clock) -> None:
    """A late event loop does not delay the engine's clock."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    heard = Heard(clock)
    replica.submit(b"x" * 3_200, 100, heard)
    clock.now = 5.0
    replica.pump()
    assert [what for what, _ in heard.log] == ["first", "done 100"]


async def test_a_forgotten_listener_gets_no_calls(clock: Clock) -> None:
    """After ``forget`` the request continues without calls."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    heard = Heard(clock)
    replica.forget(replica.submit(b"x" * 400, 5, heard))
    run_until(replica, clock, 0.1)
    assert heard.log == []
    assert replica.counters.finished == 1


async def test_a_reset_loses_what_was_open_and_all_it_knew(clock: Clock) -> None:
    """A reset ends open requests as lost and clears counters and cache."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    heard = Heard(clock)
    replica.submit(b"x" * 400, 5, heard)
    replica.reset()
    assert heard.log == [("lost", 0.0)]
    assert replica.counters.requests == replica.running == replica.queued == 0


async def test_a_reset_is_a_new_process(clock: Clock) -> None:
    """The picker tells a restart by the start time that the page states."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock, iter([5.0, 9.0]).__next__)
    assert read_all(PAGES["vllm"](replica), 10.0).started_unix_s == 5.0
    replica.reset()
    assert read_all(PAGES["vllm"](replica), 10.0).started_unix_s == 9.0


async def test_half_the_speed_takes_twice_as_long(clock: Clock) -> None:
    """A slowed replica needs 21.2 ms for what takes 10.6."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    replica.set_speed(0.5)
    heard = Heard(clock)
    replica.submit(b"x" * 3_200, 1, heard)
    run_until(replica, clock, 0.1)
    assert heard.log[0][1] == pytest.approx(0.0212, abs=0.0006)


@pytest.mark.parametrize("name", sorted(PAGES))
async def test_pages_are_read_by_the_picker(clock: Clock, name: str) -> None:
    """The picker's dialects read the queue from each page."""
    replica = EmulatedReplica(EngineConfig(max_running=1), 1.0, clock)
    for _ in range(3):
        replica.submit(b"x" * 400, 5, Heard(clock))
    page = read_all(PAGES[name](replica), 0.0)
    assert [each.queued for each in page.readings] == [2.0]


async def test_a_vllm_page_counts_first_tokens(clock: Clock) -> None:
    """As a real one does: the picker learns the scale of text from them much earlier."""
    replica = EmulatedReplica(EngineConfig(), 10.0, clock)
    replica.submit(b"x" * 3_200, 3, Heard(clock))
    run_until(replica, clock, 0.1)
    (reading,) = read_all(PAGES["vllm"](replica), 0.0).readings
    assert (reading.prompts, reading.prompt_tokens) == (1, 800)
    assert reading.first_tokens_s == pytest.approx(0.0106)


@pytest.mark.parametrize("after_s", [0.0, 0.3])
async def test_an_aborted_request_frees_its_place(clock, after_s):
    """Whether it waits or runs; its listener hears nothing, and the next one is served."""
    replica = EmulatedReplica(EngineConfig(max_running=1), 1.0, clock, clock)
    first, second, third = Heard(clock), Heard(clock), Heard(clock)
    number = replica.submit(b"a" * 64, 1000, first)
    waits = replica.submit(b"b" * 64, 10, second)
    replica.submit(b"c" * 64, 10, third)
    run_until(replica, clock, after_s)
    replica.abort(number)
    replica.abort(waits)
    replica.abort(waits)
    run_until(replica, clock, after_s + 0.3)
    assert [name for name, _ in third.log] == ["first", "done 10"]
    assert not second.log
    assert "done 1000" not in dict(first.log)
    assert (replica.running, replica.queued) == (0, 0)
