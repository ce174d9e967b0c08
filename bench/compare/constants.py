"""What it costs if a number of the picker that stands for engines or texts is wrong.

    python bench/compare/constants.py [--seeds 2] [--requests 1500] [--only IN_FLIGHT_TOKENS]

Each constant is divided and multiplied by 2 and by 10, and `auto` is simulated on two fleets under
two traffics at 95 % of what least-in-flight sustains. A cell is the change of the mean and of the
p99 of the time to the first token in the worst of the four, each the mean over seeds. Without a
change they differ by nothing: a run is a function of its seed. The table is Markdown; about 25 s of
CPU for each constant.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bench.compare.oracles import workload
from bench.engine import EngineConfig
from bench.simulate.experiment import RunPlan, default_slo, run_one, saturation
from bench.simulate.scenario import Scenario
from ext_proc.routing.values.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from bench.simulate.workload import Workload

FLEETS = (
    Scenario(engine=EngineConfig(cache_blocks=1_500), bytes_per_token=4.0),
    Scenario(
        engine=EngineConfig(
            prefill_rate=25_000.0, step_tokens=8_192, max_running=64, cache_blocks=700
        ),
        bytes_per_token=0.6,
        telemetry_s=3.0,
    ),
)
TRAFFIC = ("conversation", "sessions")
LOAD = 0.95
FACTORS = (0.1, 0.5, 2.0, 10.0)
POOL = "pool"


@dataclass(frozen=True)
class Constant:
    """A number and where it is."""

    place: str
    """Its module in ``ext_proc``, or ``pool`` for a setting's default."""
    name: str
    counts: bool = True
    """Whether the fleets count prompt tokens."""


CONSTANTS = (
    Constant("routing.values.scale", "BYTES_PER_TOKEN"),
    Constant("routing.values.scale", "BYTES_PER_TOKEN", counts=False),
    Constant("routing.latency.model", "COLD_TOKENS_PER_S"),
    Constant("routing.latency.model", "COLD_TAIL_S"),
    Constant("routing.latency.model", "TOO_FAST"),
    Constant("routing.latency.model", "IN_FLIGHT_TOKENS"),
    Constant("routing.latency.model", "NOISE"),
    Constant("routing.latency.model", "PRIOR_TOKENS"),
    Constant("routing.policies.auto", "ALPHA"),
    Constant("routing.policies.auto", "BETA"),
    Constant("routing.policies.auto", "LAMBDA_S"),
    Constant("routing.cache.forks", "BRANCHES"),
    Constant("routing.state.candidates", "FRESH_S"),
    Constant("routing.state.candidates", "LAG_TOKENS"),
    Constant("routing.latency.slowdown", "THRESHOLD_S"),
    Constant("routing.latency.slowdown", "CLEAR_S"),
    Constant("routing.latency.slowdown", "TOLERANCE"),
    Constant("routing.latency.pending_first_bytes", "GRACE_S"),
    Constant("routing.latency.pending_first_bytes", "TOLERANCE"),
    Constant(POOL, "block_chars"),
    Constant(POOL, "index_blocks"),
    Constant(POOL, "index_ttl_s"),
)


@cache
def importers(module: ModuleType, name: str) -> tuple[ModuleType, ...]:
    """Return the loaded modules that import a name from a module."""
    found = []
    for each in list(sys.modules.values()):
        if not each.__name__.startswith(("ext_proc", "bench")) or not hasattr(each, name):
            continue
        for node in ast.walk(ast.parse(inspect.getsource(each))):
            if isinstance(node, ast.ImportFrom) and node.module == module.__name__:
                found += [each for alias in node.names if alias.name == name]
    return tuple(found)


def defaults(module: ModuleType, value: object) -> Iterator[Any]:
    """Yield the functions of a module's classes whose defaults hold a value."""
    for owner in vars(module).values():
        if inspect.isclass(owner) and owner.__module__ == module.__name__:
            for each in vars(owner).values():
                if inspect.isfunction(each) and any(x is value for x in each.__defaults__ or ()):
                    yield each


@contextmanager
def changed(constant: Constant, factor: float) -> Iterator[None]:
    """Multiply a constant."""
    if constant.place == POOL:
        init: Any = Pool.__init__
        names = [each.name for each in inspect.signature(Pool).parameters.values()]
        at, kept = names.index(constant.name) - len(names), init.__defaults__
        new = type(kept[at])(kept[at] * factor)
        init.__defaults__ = (*kept[:at], new, *kept[len(kept) + at + 1 :])
        try:
            yield
        finally:
            init.__defaults__ = kept
        return
    module = import_module(f"ext_proc.{constant.place}")
    old: Any = getattr(module, constant.name)
    new = type(old)(old * factor)
    places = [module, *importers(module, constant.name)]
    functions = [(each, each.__defaults__) for each in defaults(module, old)]
    for each in places:
        setattr(each, constant.name, new)
    for function, kept in functions:
        function.__defaults__ = tuple(new if x is old else x for x in kept)
    try:
        yield
    finally:
        for each in places:
            setattr(each, constant.name, old)
        for function, kept in functions:
            function.__defaults__ = kept


def measured(jobs: Workload, fleet: Scenario, rate: float, seeds: int) -> tuple[float, float]:
    """Return mean and p99 of the time to the first token under `auto`, seconds."""
    found = [
        run_one(jobs, fleet, RunPlan("auto", seed, rate), None).metrics for seed in range(seeds)
    ]
    mean = sum(each.ttft_mean or 0.0 for each in found) / seeds
    return mean, sum(each.ttft_p99 or 0.0 for each in found) / seeds


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description="The cost of a wrong constant.")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=1_500)
    parser.add_argument("--only", default="", help="comma-separated names")
    args = parser.parse_args()
    only: Sequence[str] = [each for each in args.only.split(",") if each]
    cases = []
    for fleet in FLEETS:
        for name in TRAFFIC:
            jobs = workload(name).first(args.requests)
            cases.append((jobs, fleet, LOAD * saturation(jobs, fleet, default_slo(jobs, fleet))))
    usual: dict[tuple[int, bool], tuple[float, float]] = {}
    print("| constant | value | / 10 | / 2 | * 2 | * 10 |\n|---|---|---|---|---|---|")
    for constant in CONSTANTS:
        if only and constant.name not in only:
            continue
        cells = []
        for factor in FACTORS:
            worst = [-1.0, -1.0]
            for number, (jobs, scenario, rate) in enumerate(cases):
                fleet = replace(scenario, counts=constant.counts)
                key = (number, constant.counts)
                if key not in usual:
                    usual[key] = measured(jobs, fleet, rate, args.seeds)
                with changed(constant, factor):
                    found = measured(jobs, fleet, rate, args.seeds)
                for at in (0, 1):
                    worst[at] = max(worst[at], found[at] / usual[key][at] - 1.0)
            cells.append(f"{worst[0]:+.0%} / {worst[1]:+.0%}")
        name = f"`{constant.name}`" + ("" if constant.counts else ", not counted")
        print(f"| {name} | {_value(constant):g} | {' | '.join(cells)} |", flush=True)


def _value(constant: Constant) -> float:
    if constant.place == POOL:
        return float(getattr(Pool(""), constant.name))
    return float(getattr(import_module(f"ext_proc.{constant.place}"), constant.name))


if __name__ == "__main__":
    main()
