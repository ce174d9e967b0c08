"""The default policy compared with round robin on real replicas, by their counters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidegate.demo.clients import Clients, fetch_all
from tidegate.demo.conversations import Shape, conversations, interleaved
from tidegate.demo.counters import ReplicaCounters, read_counts
from tidegate.demo.operator import Operator

SHAPE = Shape(sessions=9, turns=5, system_chars=800, turn_chars=2400)
"""All histories (115k characters) fit into two replicas' caches (65k each), not into one."""
WORKERS = 4


@dataclass
class Seen:
    """Measurements of one policy."""

    counts: dict[str, ReplicaCounters]
    ttft: list[float]

    @property
    def computed(self) -> int:
        """Prompt tokens that were not cached."""
        return sum(one.prompt_tokens - one.reused_tokens for one in self.counts.values())

    @property
    def prompts(self) -> int:
        """All prompt tokens."""
        return sum(one.prompt_tokens for one in self.counts.values())


async def converse(http, stack, clients: Clients, policy: str) -> Seen:
    """Run new conversations of the same shape."""
    urls = [replica.metrics_url for replica in stack.replicas]

    async def counted() -> list[ReplicaCounters]:
        return [read_counts(page) for page in await fetch_all(http, urls)]

    sessions = conversations(SHAPE, policy)
    locks = [asyncio.Lock() for _ in sessions]
    turns = interleaved(SHAPE, "order")
    ttft: list[float] = []

    async def work() -> None:
        for _, number in turns:
            async with locks[number]:
                session = sessions[number]
                answer = await clients.generate_stream(session.ask(), 4, session.session)
                session.answered(answer.text)
                ttft.append(answer.ttft_s)

    before = await counted()
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work())
    after = await counted()
    names = [replica.name for replica in stack.replicas]
    grown = [late.since(early) for late, early in zip(after, before, strict=True)]
    return Seen(dict(zip(names, grown, strict=True)), ttft)


async def test_auto_computes_less_than_round_robin(http, new_stack):
    """The default policy sends turns to the replica with their history.

    Both policies see the same conversations with texts of their own, so both start cold. The tokens
    are those that the replicas count; both stable replicas work under both policies.
    """
    # A stack of its own: what another picker has learned of its replicas counts for minutes.
    stack = await new_stack(models=("toy-llm",))
    assert stack.read_fleet()["pools"][0]["routing"]["policy"] == "auto"
    async with (
        Clients(stack.http_url, stack.grpc_address) as clients,
        Operator(stack.admin_address) as operator,
    ):
        auto = await converse(http, stack, clients, "auto")
        await operator.set_policy("llm", "round-robin")
        plain = await converse(http, stack, clients, "round-robin")
    for seen in (auto, plain):
        assert len(seen.ttft) == SHAPE.requests
        assert all(seen.counts[name].prompt_tokens for name in ("r1", "r2"))
    assert abs(auto.prompts / plain.prompts - 1) < 0.01
    assert auto.computed < 0.8 * plain.computed
