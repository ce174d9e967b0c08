"""Small simulations for tests of schedulers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from bench.engine import EngineConfig
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import SimulatedSample, World
from bench.simulate.workload import Job

if TYPE_CHECKING:
    from typing import Any


def world(replicas: int = 3, seed: int = 0, **settings: Any) -> World:
    """Return a ``World`` of idle replicas."""
    settings.setdefault("engine", EngineConfig())
    scenario = Scenario(replicas=replicas, **settings)
    fleet = [SimulatedReplica(scenario.engine, scenario.speed(index)) for index in range(replicas)]
    return World(scenario, random.Random(seed), fleet, 512)


def job(index: int, *blocks: int, tokens: int | None = None, output: int = 10) -> Job:
    """Return a job with these full blocks and a partial last block."""
    return Job(index, 0.0, 512 * len(blocks) + 10 if tokens is None else tokens, output, blocks)


def sample(at: float = 0.0, *, tokens: int = 0, kv_used: float = 0.0) -> SimulatedSample:
    """Return a telemetry sample."""
    return SimulatedSample(at, 0, 0, kv_used, tokens)
