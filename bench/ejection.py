"""How fast a replica that begins to answer errors is ejected, and how often one that is well.

``python -m bench.ejection`` simulates four replicas, the picker's choice among them, and the
proxy's log, which two workers write in batches. It prints three tables:

* a sick replica: time until it is ejected, requests that failed, and both for a rule that only
  counts errors in a row. Requests are drawn to their replicas (by a cached prompt, say) or placed
  by chance;
* requests that fail wherever they are sent, placed by chance: runs in which a replica was ejected;
* the same, where all failing requests are drawn to one replica, by a client that knows how.

Each request has an origin of its own, which is the hardest case for all. Medians have their 95 %
interval, by order statistics. Takes about ten minutes.
"""

from __future__ import annotations

import random
from heapq import heapify, heappop, heappush
from math import sqrt
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.origins import number_of
from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.health.experiment import identity
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

REPLICAS: Final = 4
BATCH_S: Final = 0.05
WELL_S: Final = 20.0
"""Seconds of good answers at first."""
END_S: Final = 80.0
RATES: Final = (1.0, 5.0, 50.0)
"""Requests a second on each replica."""
DRAWN: Final = (0.0, 0.5, 1.0)
"""Shares of requests that are drawn to their replicas."""
MIXES: Final = ((2.0, 5.0), (5.0, 20.0), (20.0, 100.0))
"""Good answers a second on each replica, and bad requests a second in the pool."""
AIMED: Final = ((1.0, 0.3), (1.0, 0.8), (1.0, 3.0), (5.0, 4.0), (20.0, 16.0))
"""Good requests a second for each replica, and bad ones that are drawn to one."""
RUNS: Final = 400
NORMAL_95: Final = 1.96


class Sent(NamedTuple):
    """One request."""

    at: float
    drawn: int | None
    """The replica to which it is drawn; ``None`` = chance places it."""
    bad: bool
    """It fails wherever it is sent."""


class Result(NamedTuple):
    """The logged result of a request."""

    key: EndpointKey
    good: bool
    origin: int


class Found(NamedTuple):
    """What became of a sick replica, in seconds since it began to fail."""

    ejected_s: float
    failed: int
    """Its failed requests until then."""


def _arrivals(rng: random.Random, rate: float, begin: float, end: float) -> list[float]:
    at, found = begin + rng.expovariate(rate), []
    while at < end:
        found.append(at)
        at += rng.expovariate(rate)
    return found


class Run:
    """One pool, whose ejection gets the results of requests as the log brings them.

    Args:
        seed: Seed of all that is left to chance.
        counts: Eject by counting failures in a row instead.
    """

    def __init__(self, seed: int, *, counts: bool = False) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.keys = [EndpointKey(f"r{number}", 1) for number in range(REPLICAS)]
        self.sick: EndpointKey | None = None
        """It fails all requests from ``WELL_S``."""
        self.ejected = self.failed = 0
        self._counts, self._row = counts, 0
        self._ejection = Ejection(lambda *_: self._count())
        endpoints = tuple(Endpoint(key, "stable", "127.0.0.1:1", None) for key in self.keys)
        pool = Pool("llm", variants=(Variant("stable", 1),), endpoints=endpoints)
        self._ejection.set_pool(pool)
        self._enough = pool.outlier.consecutive_failures
        self._offsets = [self.rng.random() * BATCH_S for _ in range(2)]

    def _count(self) -> None:
        self.ejected += 1

    def _logged(self, at: float) -> float:
        offset = self.rng.choice(self._offsets)
        return ((at - offset) // BATCH_S + 1.0) * BATCH_S + offset

    def play(self, sent: list[Sent]) -> float | None:
        """Play the requests; return when a replica was ejected, which ends it."""
        events: list[tuple[float, int, Sent | Result]] = [
            (each.at, number, each) for number, each in enumerate(sent)
        ]
        heapify(events)
        while events:
            now, number, event = heappop(events)
            if isinstance(event, Sent):
                heappush(events, (self._logged(now), number, self._decide(event)))
            else:
                self._take(event, now)
            if self.ejected:
                return now
        return None

    def _decide(self, sent: Sent) -> Result:
        """Place a request by what draws it, by chance, or as an experiment says."""
        rng, drawn = self.rng, sent.drawn is not None
        key = rng.choice(self.keys) if sent.drawn is None else self.keys[sent.drawn]
        origin, found = rng.getrandbits(60) | 2, None
        self._ejection.barred(sent.at)
        if not self._counts:
            found = self._ejection.assign(key, sent.at, rng, drawn=drawn)
        if found is not None:
            subject, gets_it = found
            origin = number_of(identity(subject, drawn=drawn, gets_it=gets_it))
            if gets_it:
                key = subject
            elif key == subject:
                key = rng.choice([each for each in self.keys if each != subject])
        failed = sent.bad or (sent.at >= WELL_S and key == self.sick)
        self.failed += failed
        return Result(key, not failed, origin)

    def _take(self, result: Result, now: float) -> None:
        key, good, origin = result
        if self._counts:
            if key == self.sick:
                self._row = 0 if good else self._row + 1
                self.ejected += self._row == self._enough
        elif good:
            self._ejection.good(key, 0.01, now)
            if self._ejection.failing:
                self._ejection.well(key, origin, now)
        else:
            self._ejection.bad(key, now, answered=True, origin=origin)


def sick(rate: float, drawn: float, seed: int, *, counts: bool = False) -> Found:
    """Return when a sick replica was ejected, and how many requests it failed."""
    run = Run(seed, counts=counts)
    run.sick = run.keys[0]
    sent = [
        Sent(at, number if run.rng.random() < drawn else None, False)
        for number in range(REPLICAS)
        for at in _arrivals(run.rng, rate, 0.0, END_S)
    ]
    ended = run.play(sent)
    return Found(float("inf") if ended is None else ended - WELL_S, run.failed)


def well(good: float, bad: float, seed: int, *, aimed: bool, drawn: bool = False) -> bool:
    """Return whether a replica was ejected among requests that fail wherever they are sent.

    Args:
        good: Good requests a second for each replica.
        bad: Bad requests a second.
        seed: Seed of the run.
        aimed: The bad ones are drawn to one replica.
        drawn: The good ones are drawn to their replicas, too.
    """
    run = Run(seed)
    sent = [
        Sent(at, number if drawn else None, False)
        for number in range(REPLICAS)
        for at in _arrivals(run.rng, good, 0.0, END_S)
    ]
    sent += [Sent(at, 0 if aimed else None, True) for at in _arrivals(run.rng, bad, WELL_S, END_S)]
    return run.play(sent) is not None


def _shown(seconds: Sequence[float]) -> str:
    """Return the median and its 95 % interval."""
    ranked, half = sorted(seconds), NORMAL_95 * sqrt(len(seconds)) / 2.0
    low, high = (ranked[round(len(ranked) / 2.0 + side * half)] for side in (-1.0, 1.0))
    return f"{median(ranked):.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    """Print the tables."""
    print(
        "| requests/s on a sick replica | drawn | ejected after, s | 9 of 10 within, s"
        " | failed, mean | by counting, s | failed, mean |\n|---|---|---|---|---|---|---|"
    )
    for rate in RATES:
        for drawn in DRAWN:
            by = [
                [sick(rate, drawn, seed, counts=counts) for seed in range(RUNS)]
                for counts in (False, True)
            ]
            times, counted = ([each.ejected_s for each in found] for found in by)
            failed = [sum(each.failed for each in found) / RUNS for found in by]
            print(
                f"| {rate:g} | {drawn:.0%} | {_shown(times)} | {quantiles(times, n=10)[-1]:.2f} |"
                f" {failed[0]:.1f} | {_shown(counted)} | {failed[1]:.1f} |",
                flush=True,
            )
    print("\n| good answers/s of each replica | bad requests/s in the pool | runs that ejected |")
    print("|---|---|---|")
    for good, bad in MIXES:
        runs = sum(well(good, bad, seed, aimed=False) for seed in range(RUNS))
        print(f"| {good:g} | {bad:g} | {runs} of {RUNS} |", flush=True)
    print(
        "\n| good answers/s of each replica | bad requests/s drawn to one | runs that ejected"
        " | the same, good ones drawn too |\n|---|---|---|---|"
    )
    for good, bad in AIMED:
        free, drawn_too = (
            sum(well(good, bad, seed, aimed=True, drawn=drawn) for seed in range(RUNS))
            for drawn in (False, True)
        )
        print(f"| {good:g} | {bad:g} | {free} of {RUNS} | {drawn_too} of {RUNS} |", flush=True)


if __name__ == "__main__":
    main()
