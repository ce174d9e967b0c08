"""Execution of a suite in processes: saturation rates first, then every cell that is not stored."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING

from bench.simulate.experiment import Result, RunPlan, default_slo, run_one, saturation
from bench.simulate.generators import DEFAULT_JOBS, GENERATORS, PACE_PER_REPLICA
from bench.simulate.suite.plan import STANDARD, TrafficSource, picker_policies
from bench.simulate.suite.store import digest, key, router_digest, simulator_digest
from bench.simulate.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from bench.simulate.measure import RunMetrics
    from bench.simulate.scenario import Scenario
    from bench.simulate.suite.plan import Arm, Chapter
    from bench.simulate.suite.store import Store
    from bench.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulatedCell:
    """One run of the suite."""

    traffic: TrafficSource
    scenario: Scenario
    plan: RunPlan
    slo_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """One arm of a chapter at one load, with its runs by policy in the order of the seeds."""

    arm: Arm
    rate: float
    runs: dict[str, list[Result]]


@dataclass(frozen=True, slots=True)
class SuiteSection:
    """One chapter at one load."""

    chapter: Chapter
    load: float
    rate: float
    """Rate of the first arm, requests per second."""
    jobs: int
    native_rate: float
    saturation: float
    """Highest rate that least-in-flight sustains on the standard fleet, requests per second."""
    slo_s: float
    parts: tuple[Part, ...]


def workload(traces: Path, traffic: TrafficSource, replicas: int) -> Workload:
    """Read or generate the jobs; a generator's pace is proportional to the number of replicas.

    Raises:
        TraceError: A trace cannot be read.
    """
    if traffic.source in GENERATORS:
        rng = Random(0)  # noqa: S311 - one workload for all seeds
        make = GENERATORS[traffic.source]
        return make(traffic.requests or DEFAULT_JOBS, rng, PACE_PER_REPLICA * replicas)
    found = read_trace(traces / traffic.source)
    return found if traffic.requests is None else found.first(traffic.requests)


class Suite:
    """A suite with stored results.

    Args:
        chapters: Chapters to run.
        traces: Folder of the traces.
        store: Stored results.
        processes: Number of concurrent processes.
    """

    def __init__(
        self, chapters: Sequence[Chapter], traces: Path, store: Store, processes: int
    ) -> None:
        self._chapters = chapters
        self._traces = traces
        self._store = store
        self._processes = processes
        self._here = simulator_digest()
        self._both = self._here + router_digest()
        self._picker = picker_policies()

    def run(self, on_total: Callable[[str, int], None], on_done: Callable[[], None]) -> None:
        """Run all cells that are not stored.

        Args:
            on_total: Called with the name of each stage and its number of runs.
            on_done: Called after each run.

        Raises:
            TraceError: A trace cannot be read.
            CalibrationError: The saturation rate of a traffic source cannot be found.
            OSError: Results cannot be stored.
        """
        with ProcessPoolExecutor(self._processes, get_context("spawn")) as pool:
            try:
                self._saturations(pool, on_total, on_done)
                self._runs(pool, on_total, on_done)
            except BaseException:
                # After an interruption, do not wait for runs that have not started.
                pool.shutdown(cancel_futures=True)
                raise

    def _saturations(
        self, pool: Executor, on_total: Callable[[str, int], None], on_done: Callable[[], None]
    ) -> None:
        sources = dict.fromkeys(each.traffic.source for each in self._chapters)
        open_ = [each for each in sources if self._store.number(self._rate_key(each)) is None]
        on_total("finding saturation", len(open_))
        found = {
            pool.submit(_find_saturation, self._traces, TrafficSource(each)): self._rate_key(each)
            for each in open_
        }
        for future in as_completed(found):
            self._store.keep(found[future], future.result())
            on_done()

    def _runs(
        self, pool: Executor, on_total: Callable[[str, int], None], on_done: Callable[[], None]
    ) -> None:
        cells = dict.fromkeys(cell for each in self._cells() for cell in each)
        missing = [cell for cell in cells if self._store.metrics(self._key(cell)) is None]
        on_total("simulating", len(missing))
        runs = {pool.submit(_run_cell, self._traces, cell): cell for cell in missing}
        for future in as_completed(runs):
            self._store.keep(self._key(runs[future]), future.result())
            on_done()

    def sections(self) -> list[SuiteSection]:
        """Return all results, after ``run``."""
        return [
            self._section(chapter, load) for chapter in self._chapters for load in chapter.loads
        ]

    def _section(self, chapter: Chapter, load: float) -> SuiteSection:
        sustained = self._saturation(chapter.traffic.source)
        parts = []
        for arm in chapter.arms:
            runs: dict[str, list[Result]] = {policy: [] for policy in arm.policies}
            for cell in self._of_arm(chapter, load, arm):
                known = self._store.metrics(self._key(cell))
                if known is None:
                    raise RuntimeError(f"{cell} has not been run")
                runs[cell.plan.policy].append(Result(cell.plan, known))
            parts.append(Part(arm, self._rate(chapter, load, arm), runs))
        first = chapter.arms[0].scenario
        jobs = _workload(self._traces, chapter.traffic, first.replicas)
        return SuiteSection(
            chapter,
            load,
            parts[0].rate,
            len(jobs.jobs),
            jobs.rate,
            sustained,
            default_slo(jobs, first),
            tuple(parts),
        )

    def _cells(self) -> Iterator[list[SimulatedCell]]:
        for chapter in self._chapters:
            for load in chapter.loads:
                for arm in chapter.arms:
                    yield self._of_arm(chapter, load, arm)

    def _of_arm(self, chapter: Chapter, load: float, arm: Arm) -> list[SimulatedCell]:
        rate = self._rate(chapter, load, arm)
        first = chapter.arms[0].scenario
        slo_s = default_slo(_workload(self._traces, chapter.traffic, first.replicas), first)
        return [
            SimulatedCell(chapter.traffic, arm.scenario, RunPlan(policy, seed, rate), slo_s)
            for policy in arm.policies
            for seed in range(chapter.seeds)
        ]

    def _rate(self, chapter: Chapter, load: float, arm: Arm) -> float:
        replicas = chapter.arms[0].scenario.replicas
        sustained = self._saturation(chapter.traffic.source)
        return load * arm.pace * sustained * replicas / STANDARD.replicas

    def _saturation(self, source: str) -> float:
        found = self._store.number(self._rate_key(source))
        if found is None:
            raise RuntimeError(f"the saturation of {source} has not been found")
        return found

    def _rate_key(self, source: str) -> str:
        return key(
            self._both, TrafficSource(source), self._data(source), STANDARD, what="saturation"
        )

    def _key(self, cell: SimulatedCell) -> str:
        plan = cell.plan
        code = self._both if plan.policy in self._picker else self._here
        return key(
            code,
            cell.traffic,
            self._data(cell.traffic.source),
            cell.scenario,
            policy=plan.policy,
            seed=plan.seed,
            rate=plan.rate,
            slo=cell.slo_s,
        )

    def _data(self, source: str) -> str:
        return "" if source in GENERATORS else _file_digest(self._traces / source)


@cache
def _file_digest(path: Path) -> str:
    return digest((path,))


@cache
def _workload(traces: Path, traffic: TrafficSource, replicas: int) -> Workload:
    return workload(traces, traffic, replicas)


def _find_saturation(traces: Path, traffic: TrafficSource) -> float:
    jobs = _workload(traces, traffic, STANDARD.replicas)
    return saturation(jobs, STANDARD, default_slo(jobs, STANDARD))


def _run_cell(traces: Path, cell: SimulatedCell) -> RunMetrics:
    jobs = _workload(traces, cell.traffic, cell.scenario.replicas)
    return run_one(jobs, cell.scenario, cell.plan, cell.slo_s).metrics
