"""Phase: mixed traffic; the replicas' counters show which replica served how many requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.demo.clients import LLM, VISION
from tidegate.demo.load import closed_loop
from tidegate.demo.report import PhaseFinding, judge, milliseconds
from tidegate.demo.scene import CANARY
from tidegate.demo.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate.demo.counters import ReplicaCounters
    from tidegate.demo.report import DemoVerdict
    from tidegate.demo.scene import Scene

TITLE: Final = "traffic reaches the right replicas"
WORKERS: Final = 8
STREAM_EVERY: Final = 4
"""Every fourth request is a token stream; the others classify an image."""
TOKENS: Final = 8


async def run(scene: Scene) -> PhaseFinding:
    """Send mixed traffic and compare it with the replicas' counters."""
    ttft: list[float] = []
    sent = {LLM: 0, VISION: 0}

    async def ask(number: int) -> str:
        if number % STREAM_EVERY:
            replica = await scene.clients.infer_http()
            sent[VISION] += 1
            return replica
        answer = await scene.clients.generate_stream(f"Request number {number}, please.", TOKENS)
        ttft.append(answer.ttft_s)
        sent[LLM] += 1
        return answer.replica

    before = await scene.counts()
    tally = await closed_loop(ask, workers=WORKERS, total=scene.requests * 2 // 5)
    after = await scene.counts()
    counted = {name: after[name].since(before[name]) for name in after}
    variants = {one.name: one.variant for one in scene.replicas}
    rows = tuple(
        (name, variants[name], _served(counts, VISION), *_llm(counts))
        for name, counts in counted.items()
    )
    p50, p99 = percentile(ttft, 50), percentile(ttft, 99)
    verdict = assess(counted, variants, sent, tally.problems())
    return PhaseFinding(
        TITLE,
        ("replica", "variant", "#vision", "#toy-llm v1", "#toy-llm v2"),
        rows,
        verdict,
        note=(
            f"{tally.asked} requests, counted by the replicas; time to first token of the "
            f"streams: p50 {milliseconds(p50)}, p99 {milliseconds(p99)}"
        ),
    )


def assess(
    counted: Mapping[str, ReplicaCounters],
    variants: Mapping[str, str],
    sent: Mapping[str, int],
    problems: Sequence[str],
) -> DemoVerdict:
    """Pass iff each request was served once and only the stable replicas served, all of them."""
    found = list(problems)
    for model, asked in sent.items():
        served = sum(_served(counts, model) for counts in counted.values())
        if served != asked:
            found.append(f"{asked} {model} requests were answered but the replicas count {served}")
    for name, counts in counted.items():
        llm = _served(counts, LLM)
        if variants[name] == CANARY and llm:
            found.append(f"{name} has canary weight 0 but served {llm} {LLM} requests")
        if variants[name] != CANARY and not llm:
            found.append(f"{name} served no {LLM} request")
    return judge(found, f"{sum(sent.values())} requests, each counted once; the canary got none")


def _served(counts: ReplicaCounters, model: str) -> int:
    return sum(count for (name, _), count in counts.served.items() if name == model)


def _llm(counts: ReplicaCounters) -> tuple[int, int]:
    return counts.served.get((LLM, "1"), 0), counts.served.get((LLM, "2"), 0)
