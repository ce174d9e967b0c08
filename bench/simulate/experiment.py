"""Runs of several policies, loads and seeds over one workload and one fleet.

A run is a pure function of its plan: the same plan gives the same numbers in any process. The seed
determines arrival times and random choices; all policies of one seed have the same arrivals.

Loads are fractions of the saturation rate of least-in-flight: the highest rate at which its p99
TTFT is within the limit, found by bisection. Results state the rate as well, because a policy with
more cache hits raises the capacity of the fleet, and a fraction alone would be misleading.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING, Final

from bench.simulate.fleet import SimulatedFleet
from bench.simulate.measure import RunMetrics, measure, percentile
from bench.simulate.replica import SimulatedReplica
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.registry import make_scheduler
from bench.simulate.workload import arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.simulate.fleet import Record
    from bench.simulate.scenario import Scenario
    from bench.simulate.workload import Workload

CALIBRATOR: Final = "least-in-flight"
BISECTIONS: Final = 7
"""Bisection steps of a bracket of 1 : 2; the error of the rate is then 0.6 %."""
MAX_DOUBLINGS: Final = 12
MIN_SLO_S: Final = 1.0
START_RATE: Final = 0.5
"""Start of the search, requests per second and replica."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Policy, seed and rate of one run."""

    policy: str
    seed: int
    rate: float | None
    """Arrivals per second; ``None``: the workload's own arrival times."""
    load: float | None = None
    """The rate as a fraction of the saturation rate."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run and its metrics."""

    plan: RunPlan
    metrics: RunMetrics


def default_slo(workload: Workload, scenario: Scenario) -> float:
    """Return the TTFT limit, seconds: 1 s plus twice the prefill time of the p99 prompt alone."""
    lengths = sorted(float(job.input_tokens) for job in workload.jobs)
    return MIN_SLO_S + 2.0 * (percentile(lengths, 0.99) or 0.0) / scenario.engine.prefill_rate


def run_one(
    workload: Workload,
    scenario: Scenario,
    plan: RunPlan,
    slo_s: float | None,
    on_progress: Callable[[int], None] | None = None,
) -> Result:
    """Simulate one plan.

    Args:
        workload: The jobs.
        scenario: The fleet.
        plan: Policy, seed and rate.
        slo_s: TTFT limit of the goodput, seconds.
        on_progress: Called with the number of arrived jobs.

    Raises:
        ValueError: The policy is unknown, or a job fits into no replica.
    """
    records, fleet, times = run_records(workload, scenario, plan, on_progress)
    metrics = measure(
        records,
        fleet,
        block_tokens=workload.block_tokens,
        prefill_rate=scenario.engine.prefill_rate,
        span_s=times[-1] if times else 0.0,
        measured=scenario.measured(times),
        slo_s=slo_s,
    )
    return Result(plan, metrics)


def run_records(
    workload: Workload,
    scenario: Scenario,
    plan: RunPlan,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[Record], list[SimulatedReplica], Sequence[float]]:
    """Simulate one plan; return the jobs' records, the replicas, and the times of arrival.

    Raises:
        ValueError: The policy is unknown, or a job fits into no replica.
    """
    rng = Random(plan.seed)  # noqa: S311 - runs must repeat
    times = _calmed(arrivals(workload, plan.rate, rng), scenario.calm)
    fleet = [
        SimulatedReplica(scenario.engine, scenario.speed(index))
        for index in range(scenario.replicas)
    ]
    chance = Random(f"routing {plan.seed}")  # noqa: S311 - independent of the arrivals
    world = World(scenario, chance, fleet, workload.block_tokens)
    scheduler = make_scheduler(plan.policy, world)
    records = SimulatedFleet(scenario, fleet, scheduler, on_progress).run(workload.jobs, times)
    return records, fleet, times


def _calmed(times: Sequence[float], calm: tuple[float, float] | None) -> Sequence[float]:
    """Return the arrivals with the first share of them slowed down."""
    if calm is None:
        return times
    share, factor = calm
    begun = times[min(int(len(times) * share), len(times) - 1)] if times else 0.0
    late = begun / factor - begun
    return [each / factor if each < begun else each + late for each in times]


def run_many(
    workload: Workload,
    scenario: Scenario,
    plans: Sequence[RunPlan],
    slo_s: float | None,
    *,
    processes: int = 1,
    on_done: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Simulate several plans; the results have the order of the plans."""
    results: dict[RunPlan, Result] = {}
    for result in _each(workload, scenario, plans, slo_s, processes):
        results[result.plan] = result
        if on_done is not None:
            on_done(result)
    return [results[plan] for plan in plans]


def _each(
    workload: Workload,
    scenario: Scenario,
    plans: Sequence[RunPlan],
    slo_s: float | None,
    processes: int,
) -> Iterator[Result]:
    if processes == 1:
        for plan in plans:
            yield run_one(workload, scenario, plan, slo_s)
        return
    # Each process receives the workload once; "spawn" shares no state with this process.
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_take, initargs=(workload, scenario, slo_s)
    ) as pool:
        futures = [pool.submit(_run_taken, plan) for plan in plans]
        for future in as_completed(futures):
            yield future.result()


_taken: list[tuple[Workload, Scenario, float | None]] = []


def _take(workload: Workload, scenario: Scenario, slo_s: float | None) -> None:
    _taken[:] = [(workload, scenario, slo_s)]


def _run_taken(plan: RunPlan) -> Result:
    workload, scenario, slo_s = _taken[0]
    return run_one(workload, scenario, plan, slo_s)


class CalibrationError(Exception):
    """The saturation rate cannot be found; the message names the options to set instead."""


def saturation(
    workload: Workload,
    scenario: Scenario,
    slo_s: float,
    seed: int = 0,
    on_probe: Callable[[], None] | None = None,
    *,
    policy: str = CALIBRATOR,
    bisections: int = BISECTIONS,
) -> float:
    """Return the highest rate at which the p99 TTFT of least-in-flight is within the limit.

    Args:
        workload: The jobs.
        scenario: The fleet.
        slo_s: Limit of the p99 TTFT, seconds.
        seed: Seed of the runs.
        on_probe: Called after each run, at most ``MAX_DOUBLINGS + bisections + 1`` times.
        policy: The policy to use instead.
        bisections: Bisection steps of a bracket of 1 : 2; each halves the error.

    Raises:
        CalibrationError: The p99 TTFT is within the limit at every rate, or at none.
    """

    def holds(rate: float) -> bool:
        plan = RunPlan(policy, seed, rate)
        result = run_one(workload, scenario, plan, slo_s)
        if on_probe is not None:
            on_probe()
        p99 = result.metrics.ttft_p99
        return p99 is not None and p99 <= slo_s and result.metrics.shed == 0

    if workload.rate <= 0:
        raise CalibrationError("all requests of the workload arrive at once; give --rate")
    rate = START_RATE * scenario.replicas
    upwards = holds(rate)
    factor = 2.0 if upwards else 0.5
    for _ in range(MAX_DOUBLINGS):
        rate *= factor
        if holds(rate) != upwards:
            break
    else:
        when = "any rate" if upwards else "no rate"
        raise CalibrationError(f"the limit of {slo_s:g} s holds at {when}; give --slo or --rate")
    low, high = (rate / 2, rate) if upwards else (rate, rate * 2)
    for _ in range(bisections):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
