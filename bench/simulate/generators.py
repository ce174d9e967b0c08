"""Generated workloads, for patterns that the public traces lack.

Arrivals are Poisson at ``pace`` jobs per second unless a generator documents otherwise. A run
divides all gaps by one factor to reach its rate. This also shortens the pauses of users, so
``pace`` should be close to the rates of the runs.

The shapes follow published generators: SGLang's generated-shared-prefix, the production-stack's
multi-round-qa, and the burstiness of Azure's code trace (coefficient of variation, CV, about 13).
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

from bench.simulate.workload import BLOCK_TOKENS, Job, Workload, block_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

DEFAULT_JOBS: Final = 8_000
PACE_PER_REPLICA: Final = 0.6
"""Jobs per second and replica at which replicas of the default engine are well utilised."""
SETTLING_S: Final = 600.0
"""Lead time of sessions before the first job, seconds, so that it finds users in every turn."""
_OUTPUT_TOKENS: Final = 250
"""Mean output of a chat answer, near both public traces."""


class _Blocks:
    """Source of unique block ids."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> tuple[int, ...]:
        first = self._next
        self._next += count
        return tuple([block_id(number) for number in range(first, first + count)])


def shared_prefix(count: int, rng: Random, pace: float = 1.0) -> Workload:
    """Generate questions after 64 system prompts of 8 blocks; their popularity is Zipfian."""
    fresh = _Blocks()
    prefixes = [fresh.take(8) for _ in range(64)]
    weights = [1.0 / (rank + 1) for rank in range(len(prefixes))]
    jobs: list[Job] = []
    at = 0.0
    for index in range(count):
        at += rng.expovariate(pace)
        prefix = rng.choices(prefixes, weights)[0]
        tokens = len(prefix) * BLOCK_TOKENS + 1 + int(rng.expovariate(1 / 700))
        own = tokens // BLOCK_TOKENS - len(prefix)
        jobs.append(Job(index, at, tokens, _output(rng), prefix + fresh.take(own)))
    return Workload("shared-prefix", jobs)


def sessions(count: int, rng: Random, pace: float = 1.0) -> Workload:
    """Generate conversations of 6 turns on average; each prompt contains all earlier turns.

    All share one system prompt of 2 blocks; users pause 30 s on average between turns.
    """
    fresh = _Blocks()
    system = fresh.take(2)
    jobs: list[Job] = []
    begin = -SETTLING_S
    number = 0
    horizon = count / pace
    while True:
        while begin < horizon:
            begin += rng.expovariate(pace / 6)
            at, history, tokens = begin, system, len(system) * BLOCK_TOKENS
            number += 1
            for _ in range(1 + int(rng.expovariate(1 / 5.5))):
                output = _output(rng)
                tokens += 100 + int(rng.expovariate(1 / 1200))
                full = tokens // BLOCK_TOKENS
                history = history + fresh.take(full - len(history))
                jobs.append(Job(0, at, tokens, output, history, f"s{number}"))
                tokens += output
                at += rng.expovariate(1 / 30)
        kept = sorted((job for job in jobs if 0 <= job.at <= horizon), key=lambda job: job.at)
        if len(kept) >= count:
            break
        horizon *= 1.1
    return Workload("sessions", [_numbered(job, index) for index, job in enumerate(kept[:count])])


def bursts(count: int, rng: Random, pace: float = 1.0) -> Workload:
    """Generate prompts without shared blocks that arrive in bursts: gaps with a CV of about 13."""
    fresh = _Blocks()
    jobs: list[Job] = []
    at = 0.0
    quick = 0.0118  # mixture of two exponentials with mean 1 and CV 13
    for index in range(count):
        pause = 1 / quick if rng.random() < 1 - quick else quick
        at += rng.expovariate(pause * pace)
        tokens = 1 + _lognormal(rng, 1500, 1.0, 32_000)
        blocks = fresh.take(tokens // BLOCK_TOKENS)
        jobs.append(Job(index, at, tokens, _output(rng), blocks))
    return Workload("bursts", jobs)


def mixed(count: int, rng: Random, pace: float = 1.0) -> Workload:
    """Generate short prompts and, for 1 of 50, a document of 60,000 to 120,000 tokens."""
    fresh = _Blocks()
    jobs: list[Job] = []
    at = 0.0
    for index in range(count):
        at += rng.expovariate(pace)
        long = rng.random() < 1 / 50
        tokens = rng.randint(60_000, 120_000) if long else 1 + _lognormal(rng, 800, 0.8, 8_000)
        blocks = fresh.take(tokens // BLOCK_TOKENS)
        jobs.append(Job(index, at, tokens, _output(rng), blocks))
    return Workload("mixed", jobs)


GENERATORS: Final[dict[str, Callable[[int, Random, float], Workload]]] = {
    "shared-prefix": shared_prefix,
    "sessions": sessions,
    "bursts": bursts,
    "mixed": mixed,
}


def _numbered(job: Job, index: int) -> Job:
    return Job(index, job.at, job.input_tokens, job.output_tokens, job.blocks, job.session)


def _output(rng: Random) -> int:
    return 1 + min(2_000, int(rng.expovariate(1 / _OUTPUT_TOKENS)))


def _lognormal(rng: Random, median: float, sigma: float, most: int) -> int:
    return min(most, int(rng.lognormvariate(log(median), sigma)))
