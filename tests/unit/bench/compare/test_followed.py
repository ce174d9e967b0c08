"""Choices of a fleet are compared with those of the simulator's router."""

from __future__ import annotations

from random import Random

import pytest

from bench.compare.followed import Compared, Follower, simulated, summary
from bench.simulate.fleet import SimulatedFleet
from bench.simulate.generators import sessions
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.workload import arrivals


def test_the_summary_counts_equal_and_close_choices() -> None:
    """A difference that two processes' clocks may cause is close, but not equal."""
    found = summary([Compared(0.0, ""), Compared(0.02, "drain_s"), Compared(1.0, "own_s")])
    assert (found["decisions"], found["others"]) == (3, {"own_s": 1})
    assert (found["equal"], found["close"]) == pytest.approx((1 / 3, 2 / 3))


def test_a_router_agrees_with_itself_on_its_own_past() -> None:
    """Followed on recorded choices, the router has the same prices at each later request."""
    workload = sessions(250, Random(0), 4.8)
    times = arrivals(workload, 6.0, Random(1))
    scenario = Scenario()

    def world() -> World:
        fleet = [SimulatedReplica(scenario.engine) for _ in range(scenario.replicas)]
        return World(scenario, Random(2), fleet, workload.block_tokens)

    first = world()
    recorded = SimulatedFleet(scenario, first.fleet, ProductionScheduler("auto", first)).run(
        workload.jobs, times
    )
    choices = {record.job.index: record.replica or 0 for record in recorded}
    again = world()
    follower = Follower(again, choices)
    records = SimulatedFleet(scenario, again.fleet, follower).run(workload.jobs, times)
    assert summary(follower.compared)["equal"] == 1.0
    assert [record.ttft_s for record in records] == [record.ttft_s for record in recorded]
    assert len(simulated(workload.jobs, times, "oracle", scenario)[0]) == 250


def test_a_fleet_whose_picker_queues_is_followed_too() -> None:
    """What its picker has sent waits in the simulator no more."""
    workload = sessions(40, Random(0), 4.8)
    times = arrivals(workload, 6.0, Random(1))
    scenario = Scenario(limit="auto", hold_s=10.0)
    choices = dict.fromkeys(range(40), 0)
    assert len(simulated(workload.jobs, times, "auto", scenario, choices)[1]) == 40
