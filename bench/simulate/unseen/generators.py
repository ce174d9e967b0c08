"""Workloads on which no constant of any policy was chosen.

Their parameters and seeds were committed before the first run with them, and are not changed
afterwards: a constant that is chosen with one of these generators makes it useless as a judge. A
further judge is a further generator.

``agents``: programs that call tools. An agent has one of ``AGENT_PROGRAMS`` programs (system prompt
and tool descriptions, popular by Zipf's law) and takes a geometric number of steps; each appends a
tool's output, of a heavy-tailed length, and the short answer of the step before. Most steps follow
within seconds.

``documents``: questions about documents. Documents have heavy-tailed lengths and become popular and
forgotten: each question is about one of the latest ``DOCUMENTS_OPEN`` documents, the newer the
likelier. A question may have follow-ups, which repeat document, question and answer.

``retrieval``: chats with retrieved passages. A chat begins with one of ``RETRIEVAL_SYSTEMS`` system
prompts and the passages of a topic (popular by a power law) and has a geometric number of turns; a
turn may add the passages of another topic.
"""

from __future__ import annotations

from math import log
from random import Random
from typing import TYPE_CHECKING, Final

from bench.simulate.workload import BLOCK_TOKENS, Job, Workload, block_id

if TYPE_CHECKING:
    from collections.abc import Callable

SEED: Final = 20_261_122
"""Seed of all generators; seeds of runs change arrival times and random choices only."""
LEAD_S: Final = 300.0
"""Time before the first job in which agents and follow-ups start, seconds."""

AGENT_PROGRAMS: Final = 24
AGENT_PROGRAM_BLOCKS: Final = (3, 14)
"""Length of a program, blocks."""
AGENT_STEPS: Final = 7.0
"""Mean steps of an agent."""
AGENT_OUTPUT: Final = (600.0, 1.2, 24_000)
"""A tool's output, tokens: median and sigma of a log-normal distribution, maximum."""
AGENT_ANSWER: Final = 110.0
"""Mean tokens of an answer."""
AGENT_PAUSE_S: Final = 4.0
"""Mean pause between two steps."""

DOCUMENTS_OPEN: Final = 160
DOCUMENT_LIFE: Final = 12.0
"""Mean questions between two new documents."""
DOCUMENT_TOKENS: Final = (7_000.0, 0.9, 60_000)
"""Length of a document: median and sigma of a log-normal distribution, maximum."""
DOCUMENT_FOLLOW_UP: Final = 0.45
"""Probability that a question has a follow-up."""
DOCUMENT_ANSWER: Final = 300.0
DOCUMENT_PAUSE_S: Final = 45.0

RETRIEVAL_SYSTEMS: Final = 5
RETRIEVAL_SYSTEM_BLOCKS: Final = (1, 6)
"""Length of a system prompt, blocks."""
RETRIEVAL_TOPICS: Final = 400
RETRIEVAL_TOPIC_BLOCKS: Final = (2, 12)
"""Length of a topic's passages, blocks."""
RETRIEVAL_POPULARITY: Final = 0.8
"""Exponent of the power law of topics by rank."""
RETRIEVAL_TURNS: Final = 3.5
"""Mean turns of a chat."""
RETRIEVAL_AGAIN: Final = 0.3
"""Probability that a later turn adds the passages of another topic."""
RETRIEVAL_QUESTION: Final = 60.0
RETRIEVAL_ANSWER: Final = 260.0
"""Mean tokens of a question and of an answer."""
RETRIEVAL_PAUSE_S: Final = 30.0


class _Blocks:
    """Source of unique block ids, above those of other generators."""

    def __init__(self) -> None:
        self._next = 1 << 40

    def take(self, count: int) -> tuple[int, ...]:
        first = self._next
        self._next += max(0, count)
        return tuple([block_id(number) for number in range(first, self._next)])


def agents(count: int, pace: float) -> Workload:
    """Generate agents' steps, about ``pace`` a second."""
    rng, fresh = Random(f"agents {SEED}"), _Blocks()  # noqa: S311 - repeatable
    programs = [fresh.take(rng.randint(*AGENT_PROGRAM_BLOCKS)) for _ in range(AGENT_PROGRAMS)]
    weights = [1.0 / (rank + 1) for rank in range(AGENT_PROGRAMS)]
    jobs: list[Job] = []
    begin, number, horizon = -LEAD_S, 0, 1.3 * count / pace
    while begin < horizon:
        begin += rng.expovariate(pace / AGENT_STEPS)
        history = rng.choices(programs, weights)[0]
        at, tokens = begin, len(history) * BLOCK_TOKENS
        number += 1
        while True:
            tokens += 20 + _lognormal(rng, *AGENT_OUTPUT)
            history += fresh.take(tokens // BLOCK_TOKENS - len(history))
            output = _answer(rng, AGENT_ANSWER)
            jobs.append(Job(0, at, tokens, output, history, f"a{number}"))
            if rng.random() < 1.0 / AGENT_STEPS:
                break
            tokens += output
            at += output * 0.012 + rng.expovariate(1.0 / AGENT_PAUSE_S)
    return _first("agents", jobs, count)


def documents(count: int, pace: float) -> Workload:
    """Generate questions about documents, about ``pace`` a second."""
    rng, fresh = Random(f"documents {SEED}"), _Blocks()  # noqa: S311 - repeatable
    known: list[tuple[int, tuple[int, ...]]] = []
    jobs: list[Job] = []
    begin, number, horizon = -LEAD_S, 0, 1.3 * count / pace
    mean_turns = 1.0 / (1.0 - DOCUMENT_FOLLOW_UP)
    while begin < horizon:
        begin += rng.expovariate(pace / mean_turns)
        number += 1
        if len(known) < DOCUMENTS_OPEN or rng.random() < 1.0 / DOCUMENT_LIFE:
            length = _lognormal(rng, *DOCUMENT_TOKENS)
            known.append((length, fresh.take(length // BLOCK_TOKENS)))
        age = int(DOCUMENTS_OPEN * rng.random() ** 2)
        tokens, history = known[-1 - min(age, len(known) - 1)]
        at = begin
        while True:
            tokens += 30 + int(rng.expovariate(1.0 / 120.0))
            history += fresh.take(tokens // BLOCK_TOKENS - len(history))
            output = _answer(rng, DOCUMENT_ANSWER)
            jobs.append(Job(0, at, tokens, output, history, f"d{number}"))
            if rng.random() >= DOCUMENT_FOLLOW_UP:
                break
            tokens += output
            at += output * 0.012 + rng.expovariate(1.0 / DOCUMENT_PAUSE_S)
    return _first("documents", jobs, count)


def retrieval(count: int, pace: float) -> Workload:
    """Generate turns of chats with retrieved passages, about ``pace`` a second."""
    rng, fresh = Random(f"retrieval {SEED}"), _Blocks()  # noqa: S311 - repeatable
    systems = [fresh.take(rng.randint(*RETRIEVAL_SYSTEM_BLOCKS)) for _ in range(RETRIEVAL_SYSTEMS)]
    sizes = [rng.randint(*RETRIEVAL_TOPIC_BLOCKS) for _ in range(RETRIEVAL_TOPICS)]
    weights = [(rank + 1) ** -RETRIEVAL_POPULARITY for rank in range(RETRIEVAL_TOPICS)]
    opened: dict[tuple[int, int], tuple[int, ...]] = {}
    jobs: list[Job] = []
    begin, number, horizon = -LEAD_S, 0, 1.3 * count / pace
    while begin < horizon:
        begin += rng.expovariate(pace / RETRIEVAL_TURNS)
        number += 1
        system = rng.randrange(RETRIEVAL_SYSTEMS)
        topic = rng.choices(range(RETRIEVAL_TOPICS), weights)[0]
        if (system, topic) not in opened:
            opened[system, topic] = systems[system] + fresh.take(sizes[topic])
        history = opened[system, topic]
        at, tokens = begin, len(history) * BLOCK_TOKENS
        while True:
            tokens += 10 + int(rng.expovariate(1.0 / RETRIEVAL_QUESTION))
            history += fresh.take(tokens // BLOCK_TOKENS - len(history))
            output = _answer(rng, RETRIEVAL_ANSWER)
            jobs.append(Job(0, at, tokens, output, history, f"q{number}"))
            if rng.random() < 1.0 / RETRIEVAL_TURNS:
                break
            tokens += output
            if rng.random() < RETRIEVAL_AGAIN:
                tokens += BLOCK_TOKENS * sizes[rng.choices(range(RETRIEVAL_TOPICS), weights)[0]]
            at += output * 0.012 + rng.expovariate(1.0 / RETRIEVAL_PAUSE_S)
    return _first("retrieval", jobs, count)


UNSEEN: Final[dict[str, Callable[[int, float], Workload]]] = {
    "agents": agents,
    "documents": documents,
    "retrieval": retrieval,
}


def _first(name: str, jobs: list[Job], count: int) -> Workload:
    kept = sorted((job for job in jobs if job.at >= 0.0), key=lambda job: job.at)[:count]
    return Workload(
        name,
        [
            Job(index, job.at, job.input_tokens, job.output_tokens, job.blocks, job.session)
            for index, job in enumerate(kept)
        ],
    )


def _answer(rng: Random, mean: float) -> int:
    return 1 + min(2_000, int(rng.expovariate(1.0 / mean)))


def _lognormal(rng: Random, median: float, sigma: float, most: int) -> int:
    return 1 + min(most, int(rng.lognormvariate(log(median), sigma)))
