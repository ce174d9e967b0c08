"""What arrives: jobs with their prompt blocks, and how a run spreads and paces them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

BLOCK_TOKENS: Final = 512
"""Tokens per prompt block, as in Mooncake's traces."""
MAX_JOBS: Final = 1_000_000
"""Most jobs of one workload; a million take about a gigabyte with their blocks."""
MAX_TOKENS: Final = 4_000_000
"""Most input or output tokens of one job."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the trace has it."""

    index: int
    at: float
    """Seconds from the start, at the workload's own pace."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's full blocks, root first; an id stands for its whole prefix."""
    session: str | None = None
    """Whose turn it is, ``None`` where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in the order of their arrival."""

    name: str
    jobs: Sequence[Job]
    slotted: bool = False
    """Arrival times lie on a coarse grid: jobs of one instant are spread up to the next one."""
    block_tokens: int = BLOCK_TOKENS
    notes: tuple[str, ...] = field(default=())

    @property
    def span_s(self) -> float:
        """Return the seconds from the first to the last arrival; above 0 where jobs differ."""
        return self.jobs[-1].at - self.jobs[0].at if self.jobs else 0.0

    @property
    def rate(self) -> float:
        """Return the mean arrivals per second, 0 where all come at once."""
        span = self.span_s
        return len(self.jobs) / span if span > 0 else 0.0

    def first(self, count: int) -> Workload:
        """Return the workload's first ``count`` jobs."""
        return Workload(self.name, self.jobs[:count], self.slotted, self.block_tokens, self.notes)


def block_id(number: int) -> int:
    """Spread a small number over the signed 64-bit integers, as a real block hash is.

    The multiplier is 2**64 divided by the golden ratio (Knuth's multiplicative hashing); being
    odd, it maps different numbers to different ids.
    """
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return mixed - (1 << 64) if mixed >> 63 else mixed


def arrivals(workload: Workload, rate: float | None, rng: Random) -> list[float]:
    """Return when each job arrives in one run, in seconds, rising.

    Args:
        workload: The jobs.
        rate: Mean arrivals per second; all gaps are divided by the same number. ``None`` keeps
            the workload's own pace.
        rng: Spreads the jobs of one instant where the workload is slotted; their order stays.

    Raises:
        ValueError: A rate is asked of jobs that all arrive at once.
    """
    times = [job.at for job in workload.jobs]
    if workload.slotted:
        times = _spread(times, rng)
    if not times:
        return []
    if rate is None:
        factor = 1.0
    elif workload.rate > 0:
        factor = workload.rate / rate
    else:
        raise ValueError(f"workload {workload.name}: all jobs arrive at once, so it has no rate")
    start = times[0]
    return [(time - start) * factor for time in times]


def _spread(times: Sequence[float], rng: Random) -> list[float]:
    spread: list[float] = []
    begin = 0
    last_gap = 0.0
    while begin < len(times):
        end = begin
        while end < len(times) and times[end] == times[begin]:
            end += 1
        if end < len(times):
            last_gap = times[end] - times[begin]
        offsets = sorted(rng.random() * last_gap for _ in range(end - begin))
        spread.extend(times[begin] + offset for offset in offsets)
        begin = end
    return spread


def with_sessions(jobs: Sequence[Job]) -> list[Job]:
    """Give each job the session of the job whose whole prompt it continues.

    Traces without session ids show a later turn as a prompt that extends all full blocks of an
    earlier one. A prompt of one full block identifies nobody, so it ends no search.
    """
    owner: dict[int, str] = {}
    named: list[Job] = []
    for job in jobs:
        session = None
        for block in reversed(job.blocks[1:]):
            session = owner.get(block)
            if session is not None:
                break
        if session is None:
            session = f"s{job.index}"
        if len(job.blocks) > 1:
            owner[job.blocks[-1]] = session
        named.append(
            Job(job.index, job.at, job.input_tokens, job.output_tokens, job.blocks, session)
        )
    return named


def ideal_hit_ratio(jobs: Sequence[Job], block_tokens: int, skip: int = 0) -> float:
    """Return the share of input tokens that one unbounded cache would serve.

    Args:
        jobs: In the order of arrival.
        block_tokens: Tokens per block.
        skip: Jobs at the start that fill the cache but are not counted.
    """
    seen: set[int] = set()
    hit = total = 0
    for number, job in enumerate(jobs):
        known = 0
        for block in job.blocks:
            if block not in seen:
                break
            known += 1
        seen.update(job.blocks)
        if number >= skip:
            hit += known * block_tokens
            total += job.input_tokens
    return hit / total if total else 0.0
