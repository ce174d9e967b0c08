"""Workloads: jobs with their prompt blocks, and their arrival times in a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

BLOCK_TOKENS: Final = 512
"""Tokens per prompt block, as in Mooncake's traces."""
MAX_JOBS: Final = 1_000_000
"""Maximum number of jobs of a workload; a million take about 1 GB with their blocks."""
MAX_TOKENS: Final = 4_000_000
"""Maximum number of input or output tokens of a job."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a trace."""

    index: int
    at: float
    """Arrival time in the workload, seconds from its start."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's full blocks, root first; an id identifies its whole prefix."""
    session: str | None = None
    """Id of the session; ``None`` if unknown."""
    model: str = "llm"


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of arrival."""

    name: str
    jobs: Sequence[Job]
    slotted: bool = False
    """Whether arrival times are on a coarse grid; jobs of one time are spread up to the next."""
    block_tokens: int = BLOCK_TOKENS
    notes: tuple[str, ...] = field(default=())

    @property
    def span_s(self) -> float:
        """Return the time from the first to the last arrival, seconds; above 0 if times differ."""
        return self.jobs[-1].at - self.jobs[0].at if self.jobs else 0.0

    @property
    def rate(self) -> float:
        """Return the mean arrivals per second; 0 if all jobs arrive at once."""
        span = self.span_s
        return len(self.jobs) / span if span > 0 else 0.0

    def first(self, count: int) -> Workload:
        """Return a workload of the first ``count`` jobs."""
        return Workload(self.name, self.jobs[:count], self.slotted, self.block_tokens, self.notes)


def block_id(number: int) -> int:
    """Map a small number to a signed 64-bit integer, distributed like a real block hash.

    The multiplier is 2**64 divided by the golden ratio (Knuth's multiplicative hashing). It is odd,
    so different numbers have different ids.
    """
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return mixed - (1 << 64) if mixed >> 63 else mixed


def arrivals(workload: Workload, rate: float | None, rng: Random) -> list[float]:
    """Return the arrival times of the jobs in one run, seconds, ascending.

    Args:
        workload: The jobs.
        rate: Mean arrivals per second; all gaps are divided by one factor. ``None`` keeps the
            workload's own times.
        rng: Spreads jobs of the same time if the workload is slotted; their order is kept.

    Raises:
        ValueError: A rate is given and all jobs arrive at once.
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


def recut(workload: Workload, tokens: int) -> Workload:
    """Return the workload in blocks of other lengths, for engines with other blocks.

    What follows a prompt's last full block of the workload is the job's own, as in the trace.

    Args:
        workload: The jobs.
        tokens: Tokens per block; divides the workload's, or is a multiple of them.

    Raises:
        ValueError: It does neither.
    """
    parts, left = divmod(workload.block_tokens, tokens)
    joined, over = divmod(tokens, workload.block_tokens)
    if left and over:
        raise ValueError(f"blocks of {workload.block_tokens} tokens and of {tokens} do not fit")
    jobs = []
    for job in workload.jobs:
        if parts:
            blocks = [hash((block, part)) for block in job.blocks for part in range(parts)]
            own = range(len(blocks), job.input_tokens // tokens)
            blocks += [hash((job.index, number, -1)) for number in own]
        else:
            blocks = list(job.blocks[joined - 1 :: joined])
        jobs.append(replace(job, blocks=tuple(blocks)))
    return replace(workload, jobs=jobs, block_tokens=tokens)


def of_models(workload: Workload, count: int) -> Workload:
    """Return the workload with its sessions divided among models, which share no blocks."""
    jobs = []
    for job in workload.jobs:
        number = crc32((job.session or str(job.index)).encode()) % count
        blocks = tuple([hash((block, number)) for block in job.blocks])
        jobs.append(replace(job, blocks=blocks, model=f"llm-{number}"))
    return replace(workload, jobs=jobs)


def with_sessions(jobs: Sequence[Job]) -> list[Job]:
    """Assign to each job the session of the job whose whole prompt it extends.

    In traces without session ids, a later turn is a prompt that extends all full blocks of an
    earlier one. A prompt of one full block does not identify a session and is ignored.
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
    """Return the fraction of input tokens that one unbounded cache would serve.

    Args:
        jobs: Jobs in order of arrival.
        block_tokens: Tokens per block.
        skip: Number of jobs at the start that fill the cache but are not counted.
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
