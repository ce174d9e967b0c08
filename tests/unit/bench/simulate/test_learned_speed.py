"""The prefill speed that the picker learns from simulated traffic."""

from __future__ import annotations

import functools
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from bench.engine import EngineConfig
from bench.simulate.fleet import SimulatedFleet
from bench.simulate.generators import sessions
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.traces import read_trace
from bench.simulate.unseen.generators import agents, documents
from bench.simulate.workload import Workload, arrivals

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE = Path(__file__).resolve().parents[4] / "bench" / "traces" / "conversation_trace.jsonl"
REQUESTS = 300


@functools.cache
def conversation() -> Workload:
    """Return the first requests of the trace, which takes a second to read."""
    return read_trace(TRACE).first(REQUESTS)


TRAFFIC: dict[str, tuple[Callable[[], Workload], float]] = {
    # requests per second of a fleet that computes 8,000 tokens/s on each of 8 replicas
    "conversation": (conversation, 3.4),
    "sessions": (lambda: sessions(REQUESTS, Random(0), 4.8), 6.3),
    "agents": (lambda: agents(REQUESTS, 4.8), 6.4),
    "documents": (lambda: documents(REQUESTS, 4.8), 4.6),
}

RATES = [("conversation", 3e3), ("sessions", 8e3), ("agents", 24e3), ("documents", 3e3)]
"""Traffic, and tokens/s that engines compute."""


def learned(traffic: str, rate: float, *, first_tokens: bool) -> float:
    """Return the learned speed after ``REQUESTS`` requests over that of the engine."""
    engine = EngineConfig(cache_blocks=1_500, prefill_rate=rate)
    scenario = Scenario(engine=engine, first_tokens=first_tokens)
    fleet = [SimulatedReplica(engine) for _ in range(scenario.replicas)]
    made, pace = TRAFFIC[traffic]
    workload = made()
    world = World(scenario, Random(1), fleet, workload.block_tokens)
    scheduler = ProductionScheduler("auto", world)
    times = arrivals(workload, pace * rate / 8_000, Random(2))
    SimulatedFleet(scenario, fleet, scheduler).run(workload.jobs, times)
    per_token = 1.0 / rate + engine.base_s / engine.step_tokens
    return scheduler.tokens_per_s() * per_token


@pytest.mark.parametrize(("traffic", "rate"), RATES)
def test_first_tokens_tell_the_speed(traffic: str, rate: float) -> None:
    """After 300 requests the speed is within 15 % of the engine's, wherever it started."""
    assert learned(traffic, rate, first_tokens=True) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("traffic", "rate"), RATES)
def test_durations_tell_the_order_of_the_speed(traffic: str, rate: float) -> None:
    """Durations alone are within a factor of 3: the load of a replica grows with long prompts."""
    assert 1 / 3 < learned(traffic, rate, first_tokens=False) < 3
