"""How fast a replica that begins to answer errors is ejected, and how often one that is well.

``python -m bench.ejection`` simulates four replicas and the proxy's log, which two workers write in
batches. It prints a table for a sick replica (time until it is ejected, requests that failed) and
one for requests that fail everywhere (runs in which a replica was ejected). Each request has an
origin of its own, which is the hardest case for both. Takes about two minutes.
"""

from __future__ import annotations

import random
from statistics import median, quantiles
from typing import Final, NamedTuple

from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant

REPLICAS: Final = 4
BATCH_S: Final = 0.05
WELL_S: Final = 20.0
"""Seconds of good answers at first."""
RATES: Final = (1.0, 5.0, 50.0)
"""Requests a second on each replica."""
MIXES: Final = ((2.0, 5.0), (5.0, 20.0), (20.0, 100.0))
"""Good answers a second on each replica, and bad requests a second in the pool."""


class Result(NamedTuple):
    """The result of one request."""

    at: float
    key: EndpointKey
    good: bool


def _arrivals(rng: random.Random, rate: float, begin: float, end: float) -> list[float]:
    at, found = begin + rng.expovariate(rate), []
    while at < end:
        found.append(at)
        at += rng.expovariate(rate)
    return found


class Run:
    """One pool, whose ejection gets the results of requests as the log brings them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.keys = [EndpointKey(f"r{number}", 1) for number in range(REPLICAS)]
        self.ejected = 0
        self._ejection = Ejection(lambda *_: self._count())
        endpoints = tuple(Endpoint(key, "stable", "127.0.0.1:1", None) for key in self.keys)
        pool = Pool("llm", variants=(Variant("stable", 1),), endpoints=endpoints)
        self._ejection.set_pool(pool)
        self._offsets = [self.rng.random() * BATCH_S for _ in range(2)]

    def _count(self) -> None:
        self.ejected += 1

    def _logged(self, at: float) -> float:
        offset = self.rng.choice(self._offsets)
        return ((at - offset) // BATCH_S + 1.0) * BATCH_S + offset

    def play(self, results: list[Result], *, until_ejected: bool) -> float | None:
        """Play the results; return when a replica was ejected, if that was to end it."""
        events: list[tuple[float, Result | None]] = [(each.at, None) for each in results]
        events += [(self._logged(each.at), each) for each in results]
        for now, result in sorted(events, key=lambda event: event[0]):
            if result is None:
                self._ejection.barred(now)  # a decision
            elif result.good:
                self._ejection.good(result.key, 0.01, now)
            else:
                origin = self.rng.getrandbits(60) | 2
                self._ejection.bad(result.key, now, answered=True, origin=origin)
            if self.ejected and until_ejected:
                return now
        return None


def sick(rate: float, seed: int) -> tuple[float, int]:
    """Return the seconds until a sick replica was ejected, and the requests that it failed."""
    run = Run(seed)
    results = [
        Result(at, key, at < WELL_S or key is not run.keys[0])
        for key in run.keys
        for at in _arrivals(run.rng, rate, 0.0, WELL_S + 30.0)
    ]
    ended = run.play(results, until_ejected=True)
    if ended is None:
        return float("inf"), len(results)
    return ended - WELL_S, sum(not each.good and each.at <= ended for each in results)


def well(good: float, bad: float, seed: int) -> int:
    """Return the ejections among requests that fail wherever they are sent."""
    run = Run(seed)
    results = [
        Result(at, key, True) for key in run.keys for at in _arrivals(run.rng, good, 0.0, 80.0)
    ]
    results += [
        Result(at, run.rng.choice(run.keys), False) for at in _arrivals(run.rng, bad, WELL_S, 80.0)
    ]
    run.play(results, until_ejected=False)
    return run.ejected


def main() -> None:
    """Print both tables."""
    print("| requests/s on a sick replica | ejected after, s | 9 of 10 within, s | failed |")
    print("|---|---|---|---|")
    for rate in RATES:
        found = [sick(rate, seed) for seed in range(60)]
        times, failed = [each[0] for each in found], [each[1] for each in found]
        tenth = quantiles(times, n=10)[-1]
        print(f"| {rate:g} | {median(times):.2f} | {tenth:.2f} | {median(failed):g} |")
    print("\n| good answers/s on each replica | bad requests/s in the pool | runs that ejected |")
    print("|---|---|---|")
    for good, bad in MIXES:
        runs = sum(well(good, bad, seed) > 0 for seed in range(20))
        print(f"| {good:g} | {bad:g} | {runs} of 20 |")


if __name__ == "__main__":
    main()
