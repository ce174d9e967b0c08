"""Canaries with a known truth: how often the controller is wrong, and how soon it sees what is bad.

    python bench/compare/canary.py [--runs 200] [--part margins] [--json]
    nohup nice python bench/compare/canary.py --runs 1000 --into canary.jsonl &
    python bench/compare/canary.py --runs 0 --into canary.jsonl [--csv FOLDER]

It draws the sessions of a pool minute by minute and gives their counts to the controller's own
modules (``xds_server/applications/canary``), with the default plan for the pool's traffic. A look
is taken each minute. ``--into`` keeps each hundred runs in a file, and goes on where the file ends.
Only the sums of ``statistics/noncentral.py`` are computed with numpy, which a test compares. Parts:

*margins*: the canary is worse by exactly the difference that matters. To roll it back is then as
wrong as to promote it; each may happen in 5 % of the runs. Failures alone are looked at (one check
with the whole weight: both errors are then most frequent), or times alone.

*found*: canaries that are good or bad, with failures and times to the first token, beside the rules
that Flagger and Argo Rollouts publish as examples.

*stress*: worlds that break what the statistics assume, and good canaries in them.

A base rate is the share of *sessions* that fail. A failing session begins to fail at a request that
is drawn, and three in ten of its others fail too. Requests of a session are 20 s apart. Uncached
tokens are log-normal (median 1,000, sigma 0.5), and a time is 0.12 s * (0.3 + 0.7 * tokens / 1,000)
times a log-normal factor (sigma 0.4). *cold*: the canary's sessions have half as many uncached
tokens again (*warm*: two thirds). *daily*: arrivals, times and failures swing by 50, 30
and 50 % in four hours. *mixed*: replicas differ by up to 15 % to either side, and their failures
by up to 75 %. *bursts*: so many sessions of an arm fail together. *unlike*: the canary's two
replicas and stable's six are drawn of such replicas in each run.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from math import log, pi, sin, sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from tidegate_common.fine_histogram import BUCKETS, LEAST, PER_TENTH, shift_of
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
from xds_server.applications.canary.statistics import times
from xds_server.applications.canary.statistics.times import FADE, LEAST_TIMES, QUANTILES, TimeCell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GAP_S = 20.0
KNOWN_MIN = 11
"""Minutes after which a session's outcome counts as known: 30 requests take ten."""
LONGEST = {1.0: 480, 20.0: 240, 200.0: 60}
"""Minutes of a run by sessions per second."""
MEDIAN_S, SIGMA = 0.12, 0.4
TOKENS, SPREAD = 1_000.0, 0.5
"""Median of uncached tokens, and their sigma."""
COLD, WARM = 1.5, 1.0 / 1.5
REPLICAS = np.linspace(0.85, 1.15, 8)
FAILING = np.linspace(0.25, 1.75, 8)
"""Failures of the replicas, in multiples of their mean."""
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
    cold: float = 1.0
    """Factor of the canary's uncached tokens."""
    daily: bool = False
    mixed: bool = False
    bursts: int = 1
    """Sessions that fail together."""
    unlike: bool = False
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
        self.chance = np.random.default_rng((crc32(repr(world).encode()), seed))
        self._failing: dict[int, list[tuple[float, bool, Any]]] = defaultdict(list)
        self._known: dict[int, tuple[int, int]] = {}
        drawn = self.chance.choice(REPLICAS, REPLICAS.size)
        self._factor = float(drawn[:2].mean() / drawn[2:].mean()) if world.unlike else 1.0

    def level(self, now: int, swing: float) -> float:
        """Return the factor of the hour."""
        return 1.0 + swing * sin(2.0 * pi * now / 240.0) if self.world.daily else 1.0

    def minute(self, now: int, share: float, *, times: bool = True) -> Minute:
        """Draw a minute in which the canary has a share of the new sessions.

        Args:
            now: Its number.
            share: Above 0 and below 1.
            times: Whether times are drawn, where the world has any.
        """
        world, chance = self.world, self.chance
        arrive = world.rate * 60.0 * self.level(now, 0.5)
        new = int(chance.poisson(arrive * share)), int(chance.poisson(arrive * (1.0 - share)))
        harm = self.level(now, 0.5)
        found: dict[tuple[float, float], list[int]] = {}
        failed = 0
        for canary, many, rate in ((True, new[0], world.canary), (False, new[1], world.base)):
            bad = self._bad(many, rate * harm)
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
            {"first-token": self._times(now, new)} if world.times and times else {},
        )

    def _bad(self, many: int, rate: float) -> int:
        """Draw how many sessions fail."""
        world, chance = self.world, self.chance
        if world.bursts > 1:
            return min(many, world.bursts * int(chance.poisson(many * rate / world.bursts)))
        if world.mixed:
            of = chance.multinomial(many, np.full(FAILING.size, 1.0 / FAILING.size))
            return int(chance.binomial(of, np.minimum(1.0, rate * FAILING)).sum())
        return int(chance.binomial(many, min(1.0, rate)))

    def seconds(self, now: int, tokens: Any, *, canary: bool) -> Any:
        """Draw the times of sessions with so many uncached tokens."""
        world, chance = self.world, self.chance
        normal = chance.standard_normal(tokens.size)
        found = MEDIAN_S * np.exp(SIGMA * normal) * (0.3 + 0.7 * tokens / TOKENS)
        found *= self.level(now, 0.3)
        if world.mixed:
            found *= REPLICAS[chance.integers(0, REPLICAS.size, tokens.size)]
        if canary:
            found *= self._factor
            if world.slower != 1.0:
                slow = normal >= _normal_quantile(world.above) if world.above else slice(None)
                found[slow] *= world.slower
        return found

    def tokens(self, many: int, *, canary: bool) -> Any:
        """Draw the uncached tokens of sessions."""
        middle = TOKENS * (self.world.cold if canary else 1.0)
        return middle * np.exp(SPREAD * self.chance.standard_normal(many))

    def first_times(self, now: int, new: tuple[int, int]) -> list[tuple[Any, Any]]:
        """Draw the strata and buckets of first requests, of the canary and of stable."""
        arms = []
        for canary, many in ((True, new[0]), (False, new[1])):
            tokens = self.tokens(many, canary=canary)
            seconds = self.seconds(now, tokens, canary=canary)
            bucket = (np.log(seconds / LEAST) * (PER_TENTH / log(1.1))).astype(int) + 1
            arms.append((strata_of(tokens), np.clip(bucket, 0, BUCKETS - 1)))
        return arms

    def _times(self, now: int, new: tuple[int, int]) -> dict[str, TimeCell]:
        arms = [by_stratum(*each) for each in self.first_times(now, new)]
        nothing: dict[int, int] = {}
        return {
            str(each): TimeCell(*(arm.get(each, nothing) for arm in arms))
            for each in sorted(arms[0].keys() | arms[1].keys())
        }


def _normal_quantile(share: float) -> float:
    return {0.9: 1.2815515655446004, 0.99: 2.3263478740408408}[share]


def strata_of(tokens: Any) -> Any:
    """Return the numbers of the strata that ``ext_proc.canary.stratum_of`` names."""
    part, doubling = np.frexp(np.maximum(np.asarray(tokens).astype(int), 1))
    return 4 * doubling + (8.0 * part - 4.0).astype(int)


def by_stratum(strata: Any, buckets: Any) -> dict[int, dict[int, int]]:
    """Return histograms by stratum."""
    found: dict[int, dict[int, int]] = {}
    keys, counts = np.unique(strata * BUCKETS + buckets, return_counts=True)
    for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
        found.setdefault(key // BUCKETS, {})[key % BUCKETS] = count
    return found


SHIFT = shift_of(DEFAULT.time)
FORGOTTEN = 0.01
"""Weight below which ``TimeEvidence`` drops a bucket."""
STRATA_FROM, STRATA_END = 28, 64
"""Strata of 64 to 32,767 tokens; those beyond count as the outermost."""
BUCKETS_FROM, BUCKETS_END = 60, 460
"""Buckets of 2 ms to 28 s."""
ODDS = tuple(sorted({*times.WORSE, *times.BETTER}))
_WORSE, _BETTER = ([ODDS.index(odds) for odds in grid] for grid in (times.WORSE, times.BETTER))
_LOG = {odds: log(odds) for odds in ODDS}
_LOGS = np.log(np.array((1.0, *ODDS)))[:, None]
_SMALL = 200
_POWERS = np.exp(_LOGS * np.arange(_SMALL))
_FACTORIALS = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, 50_000.0)))))
"""Logarithms of factorials."""


@lru_cache(maxsize=1 << 17)
def _tilts(canary: int, stable: int, exceeding: int) -> dict[float, float]:
    least, most = max(0, exceeding - stable), min(canary, exceeding)
    up, down = slice(least, most + 1), slice(None, None, -1)
    logs = -(
        _FACTORIALS[up]
        + _FACTORIALS[canary - most : canary - least + 1][down]
        + _FACTORIALS[exceeding - most : exceeding - least + 1][down]
        + _FACTORIALS[stable - exceeding + least : stable - exceeding + most + 1]
    )
    logs -= logs.max()
    if logs.size <= _SMALL:
        sums = np.log(_POWERS[:, : logs.size] @ np.exp(logs))
    else:
        terms = logs + _LOGS * np.arange(logs.size)
        highest = terms.max(axis=1)
        sums = highest + np.log(np.exp(terms - highest[:, None]).sum(axis=1))
    sums += least * _LOGS[:, 0]
    return dict(zip(ODDS, (sums[1:] - sums[0]).tolist(), strict=True))


def quick_ratio(
    canary: int, stable: int, exceeding: int, exceeding_canary: int, odds: float
) -> float:
    """Return what ``noncentral.log_likelihood_ratio`` does, for ``ODDS``: all at once."""
    return exceeding_canary * _LOG[odds] - _tilts(canary, stable, exceeding)[odds]


class Controlled:
    """A run of this project's controller."""

    def __init__(self, world: World, seed: int, evidence: CanaryEvidence | None = None) -> None:
        self.world = world
        self.drawn = Sessions(world, seed)
        self.outcome: Outcome | None = None
        kinds = ("first-token",) if world.times else ()
        self.evidence = CanaryEvidence(DEFAULT, kinds) if evidence is None else evidence
        self._plan = default_plan(world.rate)._replace(undecided_after_s=1e9)
        self._state = begun(0.0)
        self._failed = 0

    def look(self, now: int) -> None:
        """Do what the controller does at a minute."""
        checks = self.evidence.checks()
        if not self.world.failures:
            checks = [each._replace(weight=1.0 / (len(checks) - 1)) for each in checks[1:]]
        sessions, percent = self.evidence.begun[0], percent_of(self._state, self._plan)
        view = RolloutView(60.0 * now, percent, judge(checks, load=1.0), sessions)
        step = following(self._state, self._plan, view)
        if step is not None:
            self._state = applied(self._state, step, 60.0 * now, sessions)
        if self._state.phase.ended or now >= LONGEST[self.world.rate]:
            phase = self._state.phase
            ends = {RolloutPhase.PROMOTED: "promoted", RolloutPhase.ROLLED_BACK: "back"}
            self.outcome = Outcome(ends.get(phase, "undecided"), now, sessions, self._failed)

    def minute(self, now: int, *, times: bool) -> Minute:
        """Draw the minute that follows, and fold it."""
        share = percent_of(self._state, self._plan) / 100.0
        minute = self.drawn.minute(now, share, times=times)
        self.evidence.fold(minute)
        self._failed = self.evidence.failed[0]
        return minute


def controlled(world: World, seed: int) -> Outcome:
    """Run the controller of this project."""
    run, now = Controlled(world, seed), 0
    while True:
        run.look(now)
        if run.outcome is not None:
            return run.outcome
        run.minute(now, times=True)
        now += 1


class TimesOfRuns:
    """``TimeEvidence`` of many runs at once, which a test compares with it."""

    def __init__(self, runs: int) -> None:
        self.worse, self.better = (np.zeros((len(QUANTILES), runs)) for _ in range(2))
        """Logarithms of e-values."""
        self._runs = runs
        self._earlier = np.zeros((runs, STRATA_END - STRATA_FROM, BUCKETS_END - BUCKETS_FROM))
        self._sums = np.zeros((len(QUANTILES), runs, len(ODDS)))

    def fold(self, canary: tuple[Any, Any, Any], stable: tuple[Any, Any, Any]) -> None:
        """Take a minute: of each arm's sessions the runs, strata and buckets."""
        earlier = self._earlier
        cells = earlier.shape[0] * earlier.shape[1]
        (one, one_buckets), (other, other_buckets) = (
            (
                run * earlier.shape[1] + np.clip(strata, STRATA_FROM, STRATA_END - 1) - STRATA_FROM,
                np.clip(buckets, BUCKETS_FROM, BUCKETS_END - 1) - BUCKETS_FROM,
            )
            for run, strata, buckets in (canary, stable)
        )
        n, m = np.bincount(one, minlength=cells), np.bincount(other, minlength=cells)
        until = earlier.cumsum(axis=2)
        total = until[:, :, -1]
        for number, share in enumerate(QUANTILES):
            limits = (until >= (share * total)[:, :, None]).argmax(axis=2).ravel()
            told = np.flatnonzero((total.ravel() >= LEAST_TIMES[share]) & (n > 0) & (m > 0))
            slow = np.bincount(one[one_buckets > limits[one] + SHIFT], minlength=cells)
            both = slow + np.bincount(other[other_buckets > limits[other]], minlength=cells)
            found = slow[told, None] * _LOGS[1:, 0] - _all_tilts(n[told], m[told], both[told])
            of = told // earlier.shape[1]
            for odds in range(len(ODDS)):
                weights = found[:, odds]
                self._sums[number, :, odds] += np.bincount(of, weights, minlength=self._runs)
            self.worse[number] = _log_means(self._sums[number][:, _WORSE])
            self.better[number] = _log_means(self._sums[number][:, _BETTER])
        earlier *= FADE
        earlier[earlier < FORGOTTEN] = 0.0
        added = np.bincount(other * earlier.shape[2] + other_buckets, minlength=earlier.size)
        earlier += added.reshape(earlier.shape)


class _OfRun:
    """One run of ``TimesOfRuns``, as ``TimeEvidence``."""

    def __init__(self, runs: TimesOfRuns, number: int) -> None:
        self._runs, self._number = runs, number

    def fold(self, cells: object) -> None:
        """Do nothing: all runs are folded at once, when all have drawn."""

    def log_worse(self, share: float) -> float:
        return float(self._runs.worse[QUANTILES.index(share), self._number])

    def log_not_worse(self, share: float) -> float:
        return float(self._runs.better[QUANTILES.index(share), self._number])


def together(world: World, runs: int, first: int) -> list[Outcome]:
    """Do ``controlled`` for many seeds at once."""
    if not world.times:
        return [controlled(world, first + number) for number in range(runs)]
    of = TimesOfRuns(runs)
    all_runs = []
    for number in range(runs):
        evidence = CanaryEvidence(DEFAULT, ("first-token",))
        vars(evidence)["_times"] = {"first-token": _OfRun(of, number)}
        all_runs.append(Controlled(world, first + number, evidence))
    for now in range(LONGEST[world.rate] + 1):
        arms: tuple[list[Any], list[Any]] = ([], [])
        for number, run in enumerate(all_runs):
            if run.outcome is None:
                run.look(now)
            if run.outcome is not None:
                continue
            new = run.minute(now, times=False).begun
            for arm, each in enumerate(run.drawn.first_times(now, new)):
                arms[arm].append((np.full(each[0].size, number), *each))
        if not arms[0]:
            break
        one, other = ([np.concatenate(part) for part in zip(*arm, strict=True)] for arm in arms)
        of.fold((one[0], one[1], one[2]), (other[0], other[1], other[2]))
    return [run.outcome for run in all_runs if run.outcome is not None]


def _log_means(logs: Any) -> Any:
    highest = logs.max(axis=1)
    return highest + np.log(np.exp(logs - highest[:, None]).mean(axis=1))


def _all_tilts(canary: Any, stable: Any, exceeding: Any) -> Any:
    """Return ``_tilts`` of many cells, a column for each of ``ODDS``."""
    keys = (canary * 100_000 + stable) * 100_000 + exceeding
    _, index, inverse = np.unique(keys, return_index=True, return_inverse=True)
    n, m, k = canary[index], stable[index], exceeding[index]
    least, most = np.maximum(0, k - m), np.minimum(n, k)
    size = most - least + 1
    found = np.empty((index.size, len(ODDS)))
    below = 0
    for limit in (8, 24, 60, _SMALL):
        some = np.flatnonzero((size > below) & (size <= limit))
        x = least[some, None] + np.arange(limit)
        inside = x <= most[some, None]
        x = np.minimum(x, most[some, None])
        a, b, c = n[some, None], m[some, None], k[some, None]
        logs = _FACTORIALS[x] + _FACTORIALS[a - x] + _FACTORIALS[c - x] + _FACTORIALS[b - c + x]
        terms = np.where(inside, np.exp(logs.min(axis=1, initial=np.inf)[:, None] - logs), 0.0)
        sums = np.log(terms @ _POWERS[:, :limit].T)
        found[some] = sums[:, 1:] - sums[:, :1] + least[some, None] * _LOGS[1:, 0]
        below = limit
    for each in np.flatnonzero(size > _SMALL):
        found[each] = list(_tilts(int(n[each]), int(m[each]), int(k[each])).values())
    return found[inverse]


class _Answers:
    """What a rule of thresholds sees of the canary: its requests since it last looked."""

    def __init__(self, world: World, seed: int) -> None:
        self.drawn = Sessions(replace(world, times=False), seed)
        self.sessions = self.failed = self.requests = self.errors = 0

    def minute(self, now: int, percent: float) -> None:
        """Draw a minute."""
        world = self.drawn.world
        minute = self.drawn.minute(now, percent / 100.0)
        bad = sum(both[0] for both in minute.failures.values())
        self.sessions += minute.begun[0]
        self.failed += bad
        self.errors += bad + int(self.drawn.chance.binomial(bad * (world.requests - 1), ALSO))
        self.requests += minute.begun[0] * world.requests

    def success(self) -> float | None:
        """Return the share of good answers since the last call; ``None`` = there were none."""
        share = 1.0 - self.errors / self.requests if self.requests else None
        self.errors = self.requests = 0
        return share

    def p99_s(self, now: int) -> float:
        """Return the p99 of the canary's requests of the minute."""
        tokens = self.drawn.tokens(max(1, min(self.requests, 5_000)), canary=True)
        return float(np.quantile(self.drawn.seconds(now, tokens, canary=True), 0.99))


def flagger(world: World, seed: int) -> Outcome:
    """Run the example of Flagger's pages (``interval: 1m``, ``threshold: 5``).

    Each minute the canary's success rate must be 99 % and its p99 500 ms. A check that passes adds
    10 % up to 50 %, and one that passes there promotes. Failed checks add up and are not reset;
    no requests are a failed check. The minute after the fifth, it is rolled back.

    Source: docs.flagger.app/usage/how-it-works, pkg/controller/scheduler.go at 0016895.
    """
    seen, percent, wrong = _Answers(world, seed), 10.0, 0
    for now in range(1, LONGEST[world.rate] + 1):
        seen.minute(now, percent)
        if wrong >= FLAGGER_FAILED:
            return Outcome("back", now, seen.sessions, seen.failed)
        slow = seen.p99_s(now) > FLAGGER_S
        success = seen.success()
        if success is None or success < FLAGGER_SUCCESS or slow:
            wrong += 1
        elif percent >= FLAGGER_MOST:
            return Outcome("promoted", now, seen.sessions, seen.failed)
        else:
            percent += 10.0
    return Outcome("undecided", LONGEST[world.rate], seen.sessions, seen.failed)


FLAGGER_FAILED, FLAGGER_S, FLAGGER_SUCCESS, FLAGGER_MOST = 5, 0.5, 0.99, 50.0


def argo(world: World, seed: int) -> Outcome:
    """Run the example of Argo Rollouts' pages, an analysis in the background.

    20, 40, 60 and 80 %, ten minutes each, whatever is measured; then 100 %. From 40 % on
    (``startingStep: 2``), at once and each five minutes, the success rate of the last five must be
    95 %; more than three (``failureLimit``) that are not abort.

    Source: docs/features/analysis.md at 010ad55.
    """
    seen, wrong = _Answers(world, seed), 0
    for now in range(40):
        if now and now % 5 == 0:
            success = seen.success()
            wrong += now >= 10 and success is not None and success < ARGO_SUCCESS
            if wrong > ARGO_LIMIT:
                return Outcome("back", now, seen.sessions, seen.failed)
        seen.minute(now, 20.0 * (now // 10 + 1))
    return Outcome("promoted", 40, seen.sessions, seen.failed)


ARGO_SUCCESS, ARGO_LIMIT = 0.95, 3

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
    yield only("failures, mixed", 20.0, 0.05, ratio * 0.05, mixed=True)
    slow = partial(World, base=0.0, canary=0.0, slower=1.0 + DEFAULT.time, failures=False)
    for rate in LONGEST:
        yield slow("times", rate)
        yield slow("times, cold", rate, cold=COLD)
    yield slow("times, warm", 20.0, cold=WARM)
    yield slow("times, daily", 20.0, daily=True)
    yield slow("times, mixed", 20.0, mixed=True)


def found() -> Iterator[World]:
    """Yield worlds that are good or bad."""
    for rate in LONGEST:
        yield World("good", rate)
        yield World("all fail", rate, canary=1.0)
        yield World("+5 points", rate, canary=0.06)
        yield World("+1 point", rate, canary=0.02)
    yield World("good, cold, daily, mixed", 20.0, cold=COLD, daily=True, mixed=True)
    yield World("good, never fails", 20.0, 0.0, 0.0)
    for share in (0.9, 0.99):
        for factor in (1.2, 1.5):
            name = f"times above p{share * 100:.0f} +{(factor - 1.0) * 100:.0f} %"
            yield World(name, 20.0, slower=factor, above=share)
    yield World("all times +20 %", 20.0, slower=1.2)
    yield World("all times +50 %", 20.0, slower=1.5)


def stress() -> Iterator[World]:
    """Yield good canaries in worlds that break an assumption, and one at the margin."""
    for bursts in (3, 10):
        yield World(f"good, {bursts} sessions fail at once", 20.0, bursts=bursts)
    yield World("margin, 3 sessions fail at once", 20.0, 0.01, 0.015, bursts=3, times=False)
    yield World("good, unlike replicas", 20.0, unlike=True)
    yield World("good, three times the tokens", 20.0, cold=3.0)
    yield World("margin, three times the tokens", 20.0, slower=1.1, cold=3.0, failures=False)


PARTS = {
    "margins": (margins, ("tidegate",)),
    "found": (found, tuple(CONTROLLERS)),
    "stress": (stress, ("tidegate",)),
}
CHUNK = 100
"""Runs that are kept at once."""


def chunk(world: World, controller: str, runs: int, first: int) -> dict[str, Any]:
    """Run seeds ``first`` and following."""
    if controller == "tidegate":
        ran = together(world, runs, first)
    else:
        ran = [CONTROLLERS[controller](world, first + number) for number in range(runs)]
    return {"ends": [list(asdict(each).values()) for each in ran]}


def summary(world: World, controller: str, ran: Sequence[Outcome]) -> dict[str, Any]:
    """Return the row of a world."""
    ended = [each for each in ran if each.end == "back"]
    row = {**asdict(world), "controller": controller, "runs": len(ran)}
    for end in ("back", "promoted", "undecided"):
        row[end] = sum(each.end == end for each in ran)
    decided = [each for each in ran if each.end != "undecided"]
    row["minutes"] = median([each.minutes for each in decided]) if decided else None
    row["sessions"] = median([each.sessions for each in decided]) if decided else None
    row["back_sessions"] = median([each.sessions for each in ended]) if ended else None
    row["failed"] = median([each.failed for each in ended]) if ended else None
    return row


def measured(world: World, controller: str, runs: int, first: int = 0) -> dict[str, Any]:
    """Run a world and return its row."""
    return summary(world, controller, _ran(chunk(world, controller, runs, first)))


def _ran(done: dict[str, Any]) -> list[Outcome]:
    return [Outcome(*each) for each in done["ends"]]


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


class _Kept:
    """The chunks that are done, in a file where there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._done: dict[tuple[str, str], dict[int, list[Outcome]]] = defaultdict(dict)
        for line in path.read_text().splitlines() if path and path.exists() else ():
            told = json.loads(line)
            self._done[told["world"], told["controller"]][told["first"]] = _ran(told)

    def ran(self, world: World, controller: str) -> list[Outcome]:
        """Return all runs of a world."""
        return [
            one for _, each in sorted(self._done[repr(world), controller].items()) for one in each
        ]

    def lacks(self, world: World, controller: str, first: int) -> bool:
        """Return whether the chunk with that first seed is to be run."""
        return first not in self._done[repr(world), controller]

    def keep(self, world: World, controller: str, first: int, done: dict[str, Any]) -> None:
        """Keep a chunk."""
        self._done[repr(world), controller][first] = _ran(done)
        if self._path is not None:
            head = {"world": repr(world), "controller": controller, "first": first}
            with self._path.open("a") as file:
                file.write(json.dumps({**head, **done}) + "\n")


def _job(job: tuple[World, str, int, int]) -> dict[str, Any]:
    setattr(times, "log_likelihood_ratio", quick_ratio)  # noqa: B010 - mypy refuses the assignment
    world, controller, runs, first = job
    return chunk(world, controller, runs, first)


def main() -> None:
    """Measure the parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", choices=tuple(PARTS), action="append")
    parser.add_argument("--only", default="", help="worlds whose names begin so")
    parser.add_argument("--into", type=Path, help="file of the runs that are done, to go on")
    parser.add_argument("--json", action="store_true", help="print a line for each row")
    parser.add_argument("--csv", type=Path, help="folder for a table of each part")
    told = parser.parse_args()
    cells = [
        (part, world, controller)
        for part in told.part or tuple(PARTS)
        for world in PARTS[part][0]()
        for controller in PARTS[part][1]
        if world.name.startswith(told.only)
    ]
    kept = _Kept(told.into)
    jobs = [
        (world, controller, min(CHUNK, told.runs - first), first)
        for least, most in ((0, CHUNK), (CHUNK, told.runs))
        for _, world, controller in cells
        for first in range(least, min(most, told.runs), CHUNK)
        if kept.lacks(world, controller, first)
    ]
    with ProcessPoolExecutor(told.processes, mp_context=get_context("spawn")) as pool:
        for number, (job, done) in enumerate(zip(jobs, pool.map(_job, jobs), strict=True), 1):
            world, controller, _, first = job
            kept.keep(world, controller, first, done)
            print(f"{number}/{len(jobs)} {world.name} {controller} {first}", file=sys.stderr)
    for part in told.part or tuple(PARTS):
        rows = [summary(w, by, kept.ran(w, by)) for p, w, by in cells if p == part]
        rows = [each for each in rows if each["runs"]]
        if told.csv is not None:
            _write(told.csv / f"{part}.csv", rows)
        if told.json:
            for row in rows:
                print(json.dumps({"part": part, **row}), flush=True)
        else:
            print(f"\n{part}\n\n{table(rows)}", flush=True)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
