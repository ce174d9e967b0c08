"""Canaries with a known truth: how often the controller is wrong, and how soon it sees what is bad.

    python bench/compare/canary.py [--runs 200] [--processes 2] [--part margins] [--json]
    nohup python bench/compare/canary.py --runs 1000 > canary.md &

It draws the sessions of a pool minute by minute and gives their counts to the controller's own
modules (``xds_server/applications/canary``), with the default plan for the pool's traffic. A look
is taken each minute. Parts:

*margins*: the canary is worse by exactly the difference that matters. To roll it back is then as
wrong as to promote it; each may happen in 5 % of the runs. Failures alone are looked at (one check
with the whole weight: both errors are then most frequent), or times alone.

*found*: canaries that are good or bad, with failures and times to the first token, beside the rules
that Flagger and Argo Rollouts publish as examples: 1-minute checks of the canary's success rate
(99 %) and p99 (500 ms), the fifth failed check rolls back, +10 % a minute to 50 %; and 5-minute
checks of 95 %, the fourth failed one rolls back, +20 % each 10 minutes.

A base rate is the share of *sessions* that fail. A failing session begins to fail at a request that
is drawn, and three in ten of its others fail too. Requests of a session are 20 s apart. Times are
log-normal (median 0.12 s, sigma 0.5) in three strata. *cold*: half of the canary's sessions are in
the stratum of most uncached tokens, of stable's a fifth. *daily*: arrivals, times and failures
swing by 50, 30 and 50 % in four hours. *mixed*: replicas differ by up to 15 % to either side.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import log, pi, sin, sqrt
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate_common.fine_histogram import BUCKETS, LEAST, PER_TENTH
from xds_server.applications.canary.evidence import DEFAULT, CanaryEvidence, Minute
from xds_server.applications.canary.judgement import judge
from xds_server.applications.canary.plan import default_plan
from xds_server.applications.canary.rollout import (
    RolloutPhase,
    RolloutView,
    applied,
    begun,
    following,
    percent_of,
)
from xds_server.applications.canary.statistics.times import TimeCell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GAP_S = 20.0
KNOWN_MIN = 11
"""Minutes after which a session's outcome counts as known: 30 requests take ten."""
LONGEST = {1.0: 480, 20.0: 240, 200.0: 60}
"""Minutes of a run by sessions per second."""
MEDIAN_S, SIGMA = 0.12, 0.5
STRATA = (0.6, 1.0, 1.8)
SHARES, COLD = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
REPLICAS = np.linspace(0.85, 1.15, 8)
ALSO = 0.3
"""Share of the further requests of a failing session that fail too."""


@dataclass(frozen=True)
class World:
    """What is true."""

    name: str
    rate: float
    """Sessions per second."""
    base: float = 0.01
    """Share of stable's sessions that fail."""
    canary: float = 0.01
    """Share of the canary's."""
    requests: int = 8
    """Requests of a session."""
    slower: float = 1.0
    """Factor of the canary's times."""
    above: float = 0.0
    """Only times above this quantile have the factor."""
    cold: bool = False
    daily: bool = False
    mixed: bool = False
    failures: bool = True
    """Whether failures are looked at."""
    times: bool = True
    """Whether times are."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    end: str
    """``promoted``, ``back`` or ``undecided``."""
    minutes: int
    sessions: int
    """Sessions of the canary."""
    failed: int
    """Those of them that failed."""


class Sessions:
    """The sessions of a run."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = np.random.default_rng(seed)
        self._failing: dict[int, list[tuple[float, bool, Any]]] = defaultdict(list)
        self._known: dict[int, tuple[int, int]] = {}

    def level(self, now: int, swing: float) -> float:
        """Return the factor of the hour."""
        return 1.0 + swing * sin(2.0 * pi * now / 240.0) if self.world.daily else 1.0

    def minute(self, now: int, share: float) -> Minute:
        """Draw a minute in which the canary has a share of the new sessions."""
        world, chance = self.world, self.chance
        arrive = world.rate * 60.0 * self.level(now, 0.5)
        new = int(chance.poisson(arrive * share)), int(chance.poisson(arrive * (1.0 - share)))
        harm = self.level(now, 0.5)
        found: dict[tuple[float, float], list[int]] = {}
        failed = 0
        for canary, many, rate in ((True, new[0], world.canary), (False, new[1], world.base)):
            bad = int(chance.binomial(many, min(1.0, rate * harm)))
            failed += bad if canary else 0
            places = chance.uniform(0.0 if canary else share, share if canary else 1.0, bad)
            late = (chance.integers(0, world.requests, bad) * GAP_S // 60.0).astype(int)
            for delay in np.unique(late):
                self._failing[now + int(delay)].append((share, canary, places[late == delay]))
        for began, canary, places in self._failing.pop(now, ()):
            counts = found.setdefault((began, 1.0 - share), [0, 0])
            counts[not canary] += places.size if canary else int((places >= share).sum())
        self._known[now] = (new[0], failed)
        return Minute(
            {shares: (both[0], both[1]) for shares, both in found.items()},
            new,
            self._known.pop(now - KNOWN_MIN, (0, 0)),
            {"first-token": self._times(now, new)} if world.times else {},
        )

    def seconds(self, now: int, strata: Any, *, canary: bool) -> Any:
        """Draw the times of sessions in the strata."""
        world, chance = self.world, self.chance
        normal = chance.standard_normal(strata.size)
        found = MEDIAN_S * np.exp(SIGMA * normal) * np.asarray(STRATA)[strata]
        found *= self.level(now, 0.3)
        if world.mixed:
            found *= REPLICAS[chance.integers(0, REPLICAS.size, strata.size)]
        if canary and world.slower != 1.0:
            slow = normal >= _normal_quantile(world.above) if world.above else slice(None)
            found[slow] *= world.slower
        return found

    def strata(self, many: int, *, canary: bool) -> Any:
        """Draw the strata of sessions."""
        shares = COLD if canary and self.world.cold else SHARES
        return self.chance.choice(len(STRATA), many, p=shares)

    def _times(self, now: int, new: tuple[int, int]) -> dict[str, TimeCell]:
        arms = []
        for canary, many in ((True, new[0]), (False, new[1])):
            strata = self.strata(many, canary=canary)
            seconds = self.seconds(now, strata, canary=canary)
            bucket = (np.log(seconds / LEAST) * (PER_TENTH / log(1.1))).astype(int) + 1
            arms.append((strata, np.clip(bucket, 0, BUCKETS - 1)))
        return {
            str(each): TimeCell(*(_counted(buckets[strata == each]) for strata, buckets in arms))
            for each in range(len(STRATA))
        }


def _normal_quantile(share: float) -> float:
    return {0.9: 1.2815515655446004, 0.99: 2.3263478740408408}[share]


def _counted(buckets: Any) -> dict[int, int]:
    values, counts = np.unique(buckets, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def controlled(world: World, seed: int) -> Outcome:
    """Run the controller of this project."""
    plan = default_plan(world.rate)._replace(undecided_after_s=1e9)
    evidence = CanaryEvidence(DEFAULT, ("first-token",) if world.times else ())
    drawn, state = Sessions(world, seed), begun(0.0)
    failed = 0
    for now in range(LONGEST[world.rate]):
        checks = evidence.checks()
        if not world.failures:
            checks = [each._replace(weight=1.0 / (len(checks) - 1)) for each in checks[1:]]
        view = RolloutView(
            60.0 * now, percent_of(state, plan), judge(checks, load=1.0), evidence.begun[0]
        )
        step = following(state, plan, view)
        if step is not None:
            state = applied(state, step, 60.0 * now, evidence.begun[0])
        if state.phase.ended:
            end = "promoted" if state.phase is RolloutPhase.PROMOTED else "back"
            return Outcome(end, now, evidence.begun[0], failed)
        evidence.fold(drawn.minute(now, percent_of(state, plan) / 100.0))
        failed = evidence.failed[0]
    return Outcome("undecided", LONGEST[world.rate], evidence.begun[0], failed)


def flagger(world: World, seed: int) -> Outcome:
    """Run Flagger's published example: thresholds of the canary's last minute."""
    return _by_thresholds(
        world, seed, every=1, success=0.99, p99_s=0.5, failures=5, first=10.0, step=10.0, most=50.0
    )


def argo(world: World, seed: int) -> Outcome:
    """Run Argo Rollouts' published example: a success rate each five minutes."""
    return _by_thresholds(
        world, seed, every=5, success=0.95, p99_s=None, failures=4, first=20.0, step=20.0, most=80.0
    )


def _by_thresholds(
    world: World,
    seed: int,
    *,
    every: int,
    success: float,
    p99_s: float | None,
    failures: int,
    first: float,
    step: float,
    most: float,
) -> Outcome:
    """Run a rule that compares what the canary's requests did with thresholds."""
    drawn, chance = Sessions(replace(world, times=False), seed), np.random.default_rng(seed + 1)
    percent, wrong, sessions, failed, good = first, 0, 0, 0, 0
    requests = errors = 0
    for now in range(1, LONGEST[world.rate] + 1):
        minute = drawn.minute(now, percent / 100.0)
        sessions += minute.begun[0]
        bad = sum(both[0] for both in minute.failures.values())
        failed += bad
        errors += bad + int(chance.binomial(bad * (world.requests - 1), ALSO))
        requests += minute.begun[0] * world.requests
        if now % every:
            continue
        slow = False
        if p99_s is not None and requests:
            strata = drawn.strata(min(requests, 5_000), canary=True)
            times = drawn.seconds(now, strata, canary=True)
            slow = float(np.quantile(times, 0.99)) > p99_s
        if not requests or errors > (1.0 - success) * requests or slow:
            wrong += requests > 0
            if wrong >= failures:
                return Outcome("back", now, sessions, failed)
        else:
            good += 1
            ready = good >= (2 if every > 1 else 1)
            if ready and percent >= most:
                return Outcome("promoted", now, sessions, failed)
            if ready:
                percent, good = min(most, percent + step), 0
        requests = errors = 0
    return Outcome("undecided", LONGEST[world.rate], sessions, failed)


CONTROLLERS = {"tidegate": controlled, "flagger": flagger, "argo": argo}


def margins() -> Iterator[World]:
    """Yield worlds in which either decision is wrong."""
    ratio, floor = DEFAULT.failure_ratio, DEFAULT.failure_floor
    only = partial(World, times=False)
    for rate in LONGEST:
        for base in (floor / ratio, 0.01, 0.05, 0.2):
            yield only("failures", rate, base, ratio * base)
        yield only("failures, good by the floor", rate, 0.001, ratio * 0.001)
    for requests in (1, 30):
        for base in (0.01, 0.2):
            yield only("failures", 20.0, base, ratio * base, requests)
    yield only("failures, daily", 20.0, 0.05, ratio * 0.05, 30, daily=True)
    slow = partial(World, base=0.0, canary=0.0, slower=1.0 + DEFAULT.time, failures=False)
    for rate in LONGEST:
        yield slow("times", rate)
    yield slow("times, cold", 20.0, cold=True)
    yield slow("times, daily", 20.0, daily=True)
    yield slow("times, mixed", 20.0, mixed=True)


def found() -> Iterator[World]:
    """Yield worlds that are good or bad."""
    for rate in LONGEST:
        yield World("good", rate)
        yield World("all fail", rate, canary=1.0)
        yield World("+5 points", rate, canary=0.06)
        yield World("+1 point", rate, canary=0.02)
    yield World("good, cold, daily, mixed", 20.0, cold=True, daily=True, mixed=True)
    yield World("good, never fails", 20.0, 0.0, 0.0)
    for share in (0.9, 0.99):
        for factor in (1.2, 1.5):
            name = f"times above p{share * 100:.0f} +{(factor - 1.0) * 100:.0f} %"
            yield World(name, 20.0, slower=factor, above=share)
    yield World("all times +20 %", 20.0, slower=1.2)
    yield World("all times +50 %", 20.0, slower=1.5)


PARTS = {"margins": (margins, ("tidegate",)), "found": (found, tuple(CONTROLLERS))}


def measured(world: World, controller: str, runs: int, first: int = 1) -> dict[str, Any]:
    """Return the row of a world."""
    ran = [CONTROLLERS[controller](world, 1_000 * first + number) for number in range(runs)]
    ended = [each for each in ran if each.end == "back"]
    row = {**asdict(world), "controller": controller, "runs": runs}
    for end in ("back", "promoted", "undecided"):
        row[end] = sum(each.end == end for each in ran)
    decided = [each for each in ran if each.end != "undecided"]
    row["minutes"] = median([each.minutes for each in decided]) if decided else None
    row["sessions"] = median([each.sessions for each in decided]) if decided else None
    row["failed"] = median([each.failed for each in ended]) if ended else None
    return row


def upper(wrong: int, runs: int) -> float:
    """Return the upper end of the share's one-sided 95 % interval (Wilson)."""
    z, share = 1.6448536269514722, wrong / runs
    middle = share + z * z / (2.0 * runs)
    wide = z * sqrt(share * (1.0 - share) / runs + z * z / (4.0 * runs * runs))
    return (middle + wide) / (1.0 + z * z / runs)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    heads = ("world", "sessions/s", "base", "requests", "by", "back", "promoted", "undecided")
    lines = [
        "| " + " | ".join((*heads, "min", "canary sessions", "failed")) + " |",
        "|" + "---|" * (len(heads) + 3),
    ]
    for row in rows:
        shares = [
            f"{100.0 * row[end] / row['runs']:.1f} % (≤ {100.0 * upper(row[end], row['runs']):.1f})"
            for end in ("back", "promoted")
        ]
        left = f"{100.0 * row['undecided'] / row['runs']:.0f} %"
        numbers = [
            "-" if row[k] is None else f"{row[k]:.0f}" for k in ("minutes", "sessions", "failed")
        ]
        base = f"{100.0 * row['base']:.2g} %"
        what = (row["name"], f"{row['rate']:g}", base, str(row["requests"]), row["controller"])
        lines.append("| " + " | ".join((*what, *shares, left, *numbers)) + " |")
    return "\n".join(lines)


def _row(job: tuple[World, str], runs: int, first: int) -> dict[str, Any]:
    return measured(*job, runs, first)


def main() -> None:
    """Measure the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="first seed, in thousands")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", choices=tuple(PARTS), action="append")
    parser.add_argument("--only", default="", help="worlds whose names begin so")
    parser.add_argument("--json", action="store_true", help="print a line for each row")
    told = parser.parse_args()
    for part in told.part or tuple(PARTS):
        worlds, controllers = PARTS[part]
        jobs = [
            (world, controller)
            for world in worlds()
            for controller in controllers
            if world.name.startswith(told.only)
        ]
        with ProcessPoolExecutor(told.processes, mp_context=get_context("spawn")) as pool:
            rows = list(pool.map(partial(_row, runs=told.runs, first=told.first), jobs))
        if told.json:
            for row in rows:
                print(json.dumps({"part": part, **row}), flush=True)
        else:
            print(f"\n{part}, {told.runs} runs each\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()
