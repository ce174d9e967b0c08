"""The router's policies: replaced, requested by header, and trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.policies import POLICIES
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.ticket import Outcome
from support.routing import PROMPT, decide, end, refuse

if TYPE_CHECKING:
    from ext_proc.routing.router import Router

    from .conftest import Build


# --- Policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_policy_may_be_swapped_in_and_out(build: Build, name: str) -> None:
    """Ledger and index are kept across any change of policy, and every ticket settles once."""
    router = build.router(build.pool(3))
    decisions = [decide(router, build.request(PROMPT, session="s"))]
    for policy in (name, "auto"):
        router.set_pools({"llm": build.pool(3, policy=policy)}, 1.0)
        assert sum(router.registry.in_flight().values()) == len(decisions)
        assert router.index.blocks == len(PROMPT)
        decisions += [decide(router, build.request(PROMPT, session="s"), 1.0) for _ in range(5)]
    for decision in decisions:
        end(router, decision)
    assert set(router.registry.in_flight().values()) == {0}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_request_may_ask_for_an_allowed_policy(build: Build, name: str) -> None:
    """The header applies to its request only; other requests use the pool's policy."""
    pool = build.pool(3, policy="round-robin", allow_override=frozenset(POLICIES))
    router = build.router(pool)
    request = build.request(PROMPT, headers={"tidegate-policy": name})
    for _ in range(4):
        assert router.explain(request, 0.0, 0.0)["policy"] == name
        decide(router, request)
    assert decide(router, build.request(PROMPT)).reason == "round-robin"


def test_a_policy_that_is_not_allowed_is_refused(build: Build) -> None:
    """The error names the header and the allowed policies; the pool's own is always allowed."""
    router = build.router(build.pool(2, allow_override=frozenset({"random"})))
    decide(router, build.request(headers={"tidegate-policy": "auto"}))
    refusal = refuse(router, build.request(headers={"tidegate-policy": "round-robin"}))
    assert refusal.kind is RefusalKind.BAD_REQUEST
    assert "tidegate-policy" in refusal.message
    assert refusal.message.endswith("it allows: random")


def test_what_was_learned_outlives_a_change_of_policy(build: Build) -> None:
    """A new policy uses the durations learned under the previous one."""
    router = build.router(build.pool(1, policy="random"))
    for number in range(100):
        decision = decide(router, build.request(), float(number))
        assert decision.ticket is not None
        router.settle(decision.ticket, Outcome.DONE, number + 0.5)
    router.set_pools({"llm": build.pool(1)}, 200.0)
    explained = router.explain(build.request(), 200.0, 0.0)
    assert explained["candidates"][0]["price"] == pytest.approx(0.5, rel=0.2)  # type: ignore[index]  # JSON


def test_only_requests_that_ended_well_teach(build: Build) -> None:
    """Requests that were aborted or served by another replica do not change the prices."""
    router = build.router(build.pool(2))
    for number in range(60):
        lost = decide(router, build.request(), float(number))
        assert lost.ticket is not None
        router.settle(lost.ticket, Outcome.ABORTED, number + 0.9)
        moved = decide(router, build.request(), float(number))
        assert moved.ticket is not None
        ticket = router.served(moved.ticket, moved.addresses[1], number + 0.1)
        router.settle(ticket, Outcome.DONE, number + 0.9)
    explained = router.explain(build.request(), 200.0, 0.0)
    assert explained["candidates"][0]["price"] == pytest.approx(0.02)  # type: ignore[index]  # JSON


# --- Learning -----------------------------------------------------------------------------------


def test_first_bytes_of_streamed_prompts_teach_the_speed(build: Build) -> None:
    """A first byte counts once, and only for a streamed request at the replica that was picked."""
    router = build.router(build.pool(2))
    latency_model = router.learner.models["llm"]

    def answer(seconds: float, *, streaming: bool = True, endpoint: str | None = None) -> None:
        request = build.request(prompt=b"x" * 32_000, streaming=streaming)
        ticket = decide(router, request).ticket
        assert ticket is not None
        key = ticket.endpoint if endpoint is None else EndpointKey(endpoint, 1)
        for _ in range(2):
            router.learner.began(ticket.id, key, seconds)

    for _ in range(40):
        answer(4.0, streaming=False)
        answer(4.0, endpoint="unknown")
    assert (latency_model.uses_first_bytes, 1 / latency_model.seconds_per_token) == (
        False,
        pytest.approx(8000.0),
    )
    for _ in range(40):
        answer(4.0)
    assert latency_model.uses_first_bytes
    assert latency_model._first_bytes == 40


def test_reuse_is_counted_for_known_endpoints(build: Build) -> None:
    """Reused tokens follow the replicas' counters, until the replica is removed."""
    router = build.router(build.pool(1))
    for reused in (1.0, 3.0):
        readings = [Reading(at=0.0, model="m", reused_blocks=reused, kv_block_tokens=16)]
        router.registry.observe("r0", readings)
        router.registry.observe("stranger", readings)
    assert router.reuse.tokens() == {"r0": 32.0}
    router.set_pools({"llm": build.pool(0)}, 1.0)
    assert router.reuse.tokens() == {}


def _reporting(build: Build, count: int) -> Router:
    """Return the router of a pool of engines that report their caches."""
    pool = build.pool(count)
    router = build.router(pool)
    for each in pool.endpoints:
        router.index.reports.set_reporting(each.key, complete=True)
    return router


def test_new_prompts_go_round_idle_replicas(build: Build) -> None:
    """Prompts that no replica holds: each goes to the replica that was sent the fewest tokens.

    Of equal ones it is the one whose last prefill ended first. Their engines report their caches.
    """
    router = _reporting(build, 4)
    picks = []
    for number in range(12):
        blocks = tuple(range(100 * number + 1, 100 * number + 9))
        decision = decide(router, build.request(blocks, prompt=b"x" * 4096), 10.0 * number)
        end(router, decision)
        picks.append(decision.addresses[0])
    assert len(set(picks[:4])) == 4
    assert picks[4:8] == picks[:4] == picks[8:]


def test_prompts_of_kinds_that_alternate_share_the_caches(build: Build) -> None:
    """Neither kind has a cache of its own, while the other cache is crowded."""
    router = _reporting(build, 2)
    blocks: dict[str, list[int]] = {}
    for number in range(40):
        count = 24 if number % 2 else 8
        prompt = tuple(range(100 * number + 1, 100 * number + 1 + count))
        request = build.request(prompt, prompt=b"x" * 512 * count)
        decision = decide(router, request, 10.0 * number)
        end(router, decision)
        blocks.setdefault(decision.addresses[0], []).append(count)
    one, other = blocks.values()
    assert {*one} == {*other} == {8, 24}
    assert abs(sum(one) - sum(other)) <= 24


def test_idle_replicas_are_drawn_at_random_without_a_prompt(build: Build) -> None:
    """A prompt's prefill says nothing of who should answer a request that has none."""
    router = _reporting(build, 4)
    end(router, decide(router, build.request((1, 2), prompt=b"x" * 1024), 0.0))
    picks = set()
    for number in range(60):
        decision = decide(router, build.request(), 10.0 + number)
        end(router, decision)
        picks.add(decision.addresses[0])
    assert len(picks) == 4


def test_prompts_are_drawn_at_random_where_no_cache_is_reported(build: Build) -> None:
    """Several pickers that all follow the ends of prefills would meet on one replica."""
    router = build.router(build.pool(4))
    picks = []
    for number in range(24):
        blocks = tuple(range(100 * number + 1, 100 * number + 9))
        decision = decide(router, build.request(blocks, prompt=b"x" * 4096), 10.0 * number)
        end(router, decision)
        picks.append(decision.addresses[0])
    assert any(len(set(picks[at : at + 4])) < 4 for at in range(0, 24, 4))
