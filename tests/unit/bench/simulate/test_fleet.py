"""One run: every job ends once, latencies count from arrival, incidents are handled."""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine import EngineConfig
from bench.simulate.fleet import End, Record, SimulatedFleet
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import SimulatedChoice, SimulatedSample, World
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.schedulers.registry import make_scheduler, names
from bench.simulate.workload import Job
from support.tries import tries


class Scripted:
    """Sends every job to the same replicas and records its notifications."""

    poll_s: float | None = None

    def __init__(self, *replicas: int) -> None:
        self.replicas = replicas
        self.heard: list[tuple[object, ...]] = []
        self.samples: list[tuple[float, int, SimulatedSample]] = []

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        del job, now
        return SimulatedChoice(self.replicas) if self.replicas else None

    def moved(self, job: Job, replica: int, now: float) -> None:
        self.heard.append(("moved", job.index, replica, round(now, 3)))

    def answering(self, job: Job, now: float) -> None:
        self.heard.append(("answering", job.index, round(now, 3)))

    def settled(self, job: Job, now: float) -> None:
        self.heard.append(("settled", job.index, round(now, 3)))

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        self.samples.append((now, replica, sample))

    def membership(self, replica: int, change: str, now: float) -> None:
        self.heard.append((change, replica, round(now, 3)))


ENGINE = EngineConfig(prefill_rate=1000.0, base_s=0.0, per_request_s=0.1, step_tokens=10_000)


def job(index: int, at: float, tokens: int = 500, output: int = 6) -> Job:
    """Return a job with an unshared prompt."""
    return Job(index, at, tokens, output, ())


def run(scenario: Scenario, scheduler: Scripted, jobs: list[Job]) -> list[Record]:
    """Run jobs at their arrival times."""
    replicas = [SimulatedReplica(scenario.engine) for _ in range(scenario.replicas)]
    return SimulatedFleet(scenario, replicas, scheduler).run(jobs, [each.at for each in jobs])


def test_latencies_count_from_the_arrival() -> None:
    """Waiting time counts in both TTFT and end-to-end latency."""
    scheduler = Scripted(0)
    first, second = run(
        Scenario(replicas=1, engine=ENGINE, telemetry_s=0),
        scheduler,
        [job(0, 1.0, output=1), job(1, 1.1, output=1)],
    )
    assert (first.ttft_s, first.e2e_s) == (pytest.approx(0.5), pytest.approx(0.5))
    assert second.ttft_s == pytest.approx(0.9)
    assert scheduler.heard == [
        ("answering", 0, 1.5),
        ("settled", 0, 1.5),
        ("answering", 1, 2.0),
        ("settled", 1, 2.0),
    ]


def test_a_refused_job_is_shed() -> None:
    """The scheduler's refusal ends the job; nothing is settled."""
    scheduler = Scripted()
    (record,) = run(Scenario(replicas=1, engine=ENGINE), scheduler, [job(0, 1.0)])
    assert (record.end, record.ttft_s, scheduler.heard) == (End.SHED, None, [])


def test_a_failure_retries_jobs_without_a_token() -> None:
    """A job without a token moves to its fallback; a job with a token is lost."""
    scenario = Scenario(replicas=3, engine=ENGINE, fail_at_s=1.0, telemetry_s=0.2)
    scheduler = Scripted(1, 2)
    records = run(scenario, scheduler, [job(0, 0.0, output=50), job(1, 0.9)])
    assert [each.end for each in records] == [End.LOST, End.SERVED]
    assert records[1].replica == 2
    assert records[1].ttft_s == pytest.approx(0.6)
    assert ("settled", 0, 1.0) in scheduler.heard
    assert ("moved", 1, 2, 1.0) in scheduler.heard
    assert ("silent", 1, 1.3) in scheduler.heard


def test_a_brake_slows_one_replica_for_a_while() -> None:
    """The braked replica has a quarter of its speed for a while; others are unaffected."""
    scenario = Scenario(replicas=2, engine=ENGINE, brake_at_s=1.0, brake_s=10.0, telemetry_s=0)
    arrivals = [0.0, 2.0, 20.0]
    for replica, seconds in ((1, [0.5, 2.0, 0.5]), (0, [0.5, 0.5, 0.5])):
        jobs = [job(number, at, output=1) for number, at in enumerate(arrivals)]
        records = run(scenario, Scripted(replica), jobs)
        assert [each.ttft_s for each in records] == pytest.approx(seconds)


def test_a_dead_pick_is_passed_over() -> None:
    """A job sent to a dead replica goes to the next one at once."""
    scenario = Scenario(replicas=3, engine=ENGINE, fail_at_s=0.5)
    scheduler = Scripted(1, 0)
    (record,) = run(scenario, scheduler, [job(0, 0.7)])
    assert (record.replica, record.end) == (0, End.SERVED)
    assert scheduler.heard[0] == ("moved", 0, 0, 0.7)


def test_a_job_without_a_living_choice_is_lost() -> None:
    """If all chosen replicas are dead, the job is lost and settled once."""
    scenario = Scenario(replicas=2, engine=ENGINE, fail_at_s=0.5)
    scheduler = Scripted(1)
    (record,) = run(scenario, scheduler, [job(0, 0.7)])
    assert (record.end, record.replica) == (End.LOST, None)
    assert scheduler.heard == [("settled", 0, 0.7)]


def test_a_dead_replica_returns() -> None:
    """A failed replica returns, and the scheduler is notified."""
    scenario = Scenario(replicas=2, engine=ENGINE, fail_at_s=0.5, down_s=10.0)
    scheduler = Scripted(1)
    (record,) = run(scenario, scheduler, [job(0, 11.0)])
    assert (record.end, record.replica) == (End.SERVED, 1)
    assert ("restarted", 1, 10.5) in scheduler.heard


def test_several_replicas_restart_at_once() -> None:
    """They are told of at once and serve again; a job without a token moves to its fallback."""
    scenario = Scenario(
        replicas=3, engine=ENGINE, restart_at_s=0.3, restarted_replicas=2, telemetry_s=0
    )
    scheduler = Scripted(2, 1)
    records = run(scenario, scheduler, [job(0, 0.0), job(1, 5.0)])
    assert [(each.end, each.replica) for each in records] == [(End.SERVED, 2), (End.SERVED, 2)]
    assert ("restarted", 1, 0.3) in scheduler.heard
    assert ("restarted", 2, 0.3) in scheduler.heard
    assert ("restarted", 0, 0.3) not in scheduler.heard


def test_a_scheduler_that_polls_faster_gets_fresher_samples() -> None:
    """Samples have the scheduler's interval, and an age in proportion to it."""
    scheduler = Scripted(0)
    scheduler.poll_s = 0.25
    scenario = Scenario(replicas=1, engine=ENGINE, telemetry_s=1.0, telemetry_delay_s=0.4)
    run(scenario, scheduler, [job(0, 0.0), job(1, 0.8)])
    assert [(now, sample.at) for now, _, sample in scheduler.samples][:3] == [
        (pytest.approx(0.1), 0.0),
        (pytest.approx(0.35), 0.25),
        (pytest.approx(0.6), 0.5),
    ]


def test_a_joiner_is_announced() -> None:
    """The late replica is dead until it joins."""
    scenario = Scenario(replicas=2, engine=ENGINE, join_at_s=2.0)
    scheduler = Scripted(0, 1)
    records = run(scenario, scheduler, [job(0, 1.0), job(1, 3.0)])
    assert [each.replica for each in records] == [1, 0]
    assert ("joined", 0, 2.0) in scheduler.heard


def test_telemetry_is_late() -> None:
    """A sample arrives after the telemetry delay; the first is of the idle fleet."""
    scenario = Scenario(replicas=1, engine=ENGINE, telemetry_s=0.25, telemetry_delay_s=0.1)
    scheduler = Scripted(0)
    run(scenario, scheduler, [job(0, 0.0, tokens=1000), job(1, 0.1)])
    assert scheduler.samples[0] == (pytest.approx(0.1), 0, SimulatedSample(0.0, 0, 0, 0.0, 0, 0, 0))
    now, replica, sample = scheduler.samples[1]
    assert (now, replica) == (pytest.approx(0.35), 0)
    assert sample == SimulatedSample(0.25, 1, 1, pytest.approx(2 / 3000), 1500, 0, 0)


def test_frozen_readings_come_with_new_times() -> None:
    """Frozen samples have new times and old values until the freeze ends."""
    scenario = Scenario(
        replicas=1, engine=ENGINE, telemetry_s=0.5, freeze_at_s=1.0, freeze_s=1.0, pickers=1
    )
    scheduler = Scripted(0)
    run(scenario, scheduler, [job(0, 0.0), job(1, 0.6), job(2, 3.0)])
    seen = [(sample.at, sample.queued + sample.running) for _, _, sample in scheduler.samples]
    assert seen[:5] == [(0.0, 0), (0.5, 1), (1.0, 1), (1.5, 1), (2.0, 0)]


jobs_strategy = st.lists(
    st.tuples(st.floats(0.0, 0.4), st.integers(1, 6000), st.integers(1, 40), st.integers(0, 3)),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("policy", names())
@settings(max_examples=tries(6), deadline=None)
@given(jobs_strategy, st.integers(0, 3), st.booleans(), st.booleans())
def test_every_job_ends_once(
    policy: str, drawn: list[tuple[float, int, int, int]], seed: int, fail: bool, join: bool
) -> None:
    """Under each policy, with or without incidents, every job ends exactly once."""
    scenario = Scenario(
        replicas=3,
        engine=EngineConfig(cache_blocks=40, max_running=4),
        fail_at_s=0.8 if fail else None,
        down_s=1.5,
        join_at_s=1.1 if join else None,
        telemetry_s=0.25,
        slow_replicas=1,
        slow_start_s=5.0,
    )
    jobs, times, now = [], [], 0.0
    for index, (gap, tokens, output, family) in enumerate(drawn):
        now += gap
        times.append(now)
        blocks = tuple(family * 100 + number for number in range(tokens // 512))
        jobs.append(Job(index, now, tokens, output, blocks, f"s{family}"))
    replicas = [SimulatedReplica(scenario.engine, scenario.speed(each)) for each in range(3)]
    world = World(scenario, random.Random(seed), replicas, 512)
    scheduler = make_scheduler(policy, world)
    ended: Counter[int] = Counter()
    settled = scheduler.settled

    def count(job: Job, now: float) -> None:
        ended[job.index] += 1
        settled(job, now)

    scheduler.settled = count
    records = SimulatedFleet(scenario, replicas, scheduler).run(jobs, times)
    assert [each.job for each in records] == jobs
    for record in records:
        assert ended[record.job.index] == (0 if record.end is End.SHED else 1)
        if record.end is End.SERVED:
            assert 0 < record.ttft_s <= record.e2e_s
            assert record.matched <= len(record.job.blocks)
    if not fail:
        assert all(each.end is not End.LOST for each in records)
    for replica in replicas:
        assert (replica.running, replica.queued, replica.backlog_tokens) == (0, 0, 0)
        assert replica.cache.used == 0
        assert replica.cache.held <= replica.cache.capacity


def test_refused_jobs_wait_in_order_and_not_for_ever() -> None:
    """With a limit of one the second waits for the first; the third has waited for too long."""
    scenario = Scenario(
        replicas=1, engine=ENGINE, telemetry_s=0.0, per_endpoint_in_flight=1, hold_s=1.5
    )
    fleet = [SimulatedReplica(scenario.engine)]
    scheduler = make_scheduler("auto", World(scenario, random.Random(1), fleet, 16))
    jobs = [job(number, number / 10) for number in range(3)]
    records = SimulatedFleet(scenario, fleet, scheduler).run(jobs, [each.at for each in jobs])
    assert [each.end for each in records] == [End.SERVED, End.SERVED, End.SHED]
    first, second = records[0].e2e_s, records[1].ttft_s
    assert first is not None
    assert second is not None
    assert second > first - 0.1


@pytest.mark.parametrize("tells", ["declared", "observed"])
def test_replicas_tell_of_their_slots(tells: Literal["declared", "observed"]) -> None:
    """The picker's limit is one more than a simulated engine runs at once."""
    scenario = Scenario(
        replicas=1, engine=EngineConfig(max_running=4), limit="auto", tells=tells, warmup=0.0
    )
    fleet = [SimulatedReplica(scenario.engine)]
    scheduler = make_scheduler("auto", World(scenario, random.Random(1), fleet, 16))
    jobs = [job(number, number / 10, output=200) for number in range(40)]
    SimulatedFleet(scenario, fleet, scheduler).run(jobs, [each.at for each in jobs])
    assert isinstance(scheduler, ProductionScheduler)
    assert scheduler.limits() == [(5, tells)]
