"""Cost of a routing decision: CPU microseconds per decision, bytes per indexed block.

Run from the repository's root: ``.venv/bin/python -m bench.cost.decide`` (about two minutes). One
process, one thread, no network. Times are the best of four rounds, because noise only adds time.
Each decision is a turn of a conversation, two blocks longer than the previous turn, after a system
prompt that all share; ticket, index and settlement are included. For ``auto``, the index also
contains a million blocks of other conversations.

``--limits`` prints what the default limit and queue cost a request where nothing waits instead:
turns with and without them alternate, and the least of each counts (20 seconds).

``--prompts`` prints least and median CPU microseconds from the bytes of a request of 32 KB to its
decision, by step (10 seconds); half of each prompt is known to a replica.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

from ext_proc.packages import load_policies
from ext_proc.requests import prompt_blocks, read_body, read_head
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.policies import POLICIES
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 4
DECISIONS = 4_000
OPEN = 64
"""Requests in flight at any time."""
TURNS = 150
"""Turns of ``TURN`` requests; the first third teaches the limits and does not count."""
TURN = 400
SHARED_BLOCKS = 2
CHAINS = 6_000
FILLED = 1_000_000
PROMPT = 32_768
PROMPTS = 64
"""Different second halves of the prompt."""
TURNS_OF_CHAT = 78


def pool_of(endpoints: int, policy: str) -> Pool:
    """Return a pool of warm replicas with equal capacity."""
    return Pool(
        name="bench",
        models=frozenset({"llm"}),
        variants=(Variant("stable", 1),),
        endpoints=tuple(
            Endpoint(
                key=EndpointKey(f"replica-{number}", 1),
                variant="stable",
                http=f"10.0.{number}.1:8000",
                grpc=f"10.0.{number}.1:8001",
            )
            for number in range(endpoints)
        ),
        policy=policy,
        index_blocks=2 * FILLED,
    )


def fill(router: Router, rng: random.Random) -> None:
    """Insert ``FILLED`` blocks of earlier conversations into the index."""
    keys = [each.key for each in router.pools["bench"].endpoints]
    for number in range(FILLED // 100):
        chain = tuple([rng.getrandbits(63) for _ in range(100)])
        router.index.insert(keys[number % len(keys)], chain, 0.0)


def requests_of(blocks: int, rng: random.Random) -> list[Request]:
    """Return turns of conversations with prompts of at most ``blocks`` blocks."""
    shared = [rng.getrandbits(63) for _ in range(min(SHARED_BLOCKS, blocks))]
    requests: list[Request] = []
    while len(requests) < DECISIONS:
        own = [rng.getrandbits(63) for _ in range(blocks - len(shared))]
        for length in range(max(0, len(own) - 6), len(own) + 1, 2):
            chain = tuple(shared + own[:length])
            features = Features(Form.GENERATE, model="llm", prompt=b"x" * (256 * len(chain)))
            requests.append(Request("bench", None, "http", features, chain))
    return requests[:DECISIONS]


def microseconds(endpoints: int, blocks: int, policy: str, *, filled: bool = False) -> float:
    """Return the CPU time of one decision and its settlement, microseconds."""
    best = float("inf")
    for seed in range(ROUNDS):
        rng = random.Random(seed)  # noqa: S311 - a benchmark wants the same numbers each time
        router = Router(rng)
        router.set_pools({"bench": pool_of(endpoints, policy)}, 0.0)
        if filled:
            fill(router, rng)
        requests = requests_of(blocks, rng)
        decided: list[Decision] = []
        gc.collect()
        gc.freeze()  # like the picker: exclude a million blocks from garbage collection
        start = time.process_time()
        for number, request in enumerate(requests):
            decision = router.decide(request, number * 0.001, 0.0)
            if isinstance(decision, Decision):
                decided.append(decision)
            if number >= OPEN:
                ticket = decided[number - OPEN].ticket
                if ticket is not None:
                    router.settle(ticket, Outcome.DONE, number * 0.001)
        best = min(best, (time.process_time() - start) / len(requests))
    return best * 1e6


def limits_us() -> tuple[float, float, float]:
    """Return the CPU microseconds of a request without limits and with them, if none waits.

    The third is the median of what a turn with them takes more than the one before it.
    """
    spent: dict[str, list[float]] = {"none": [], "auto": []}
    routers = {limit: Router(random.Random(0)) for limit in spent}  # noqa: S311 - as above
    for limit, router in routers.items():
        pool = pool_of(8, "auto")
        if limit == "auto":
            pool = replace(pool, limit="auto", hold_s=10.0)
        router.set_pools({"bench": pool}, 0.0)
    for first in range(0, TURNS * TURN, TURN):
        for limit, router in routers.items():
            start = time.thread_time()
            for number in range(first, first + TURN):
                blocks = tuple(range(100 * (number % 8) + 1, 100 * (number % 8) + 9))
                features = Features(Form.GENERATE, model="llm", prompt=b"x" * 2048)
                request = Request("bench", None, "http", features, blocks)
                decision = router.decide(request, number * 0.001, 0.0)
                if isinstance(decision, Decision) and decision.ticket is not None:
                    router.settle(decision.ticket, Outcome.DONE, (number + 0.5) * 0.001)
            spent[limit].append((time.thread_time() - start) / TURN * 1e6)
    without, limited = (each[TURNS // 3 :] for each in spent.values())
    more = [high - low for low, high in zip(without, limited, strict=True)]
    return min(without), min(limited), statistics.median(more)


def from_bytes() -> None:
    """Print the CPU microseconds of each step of requests of 32 KB."""
    text = random.Random(0).randbytes(PROMPT // 2).hex()  # noqa: S311 - as above
    roles, part = ("user", "assistant"), PROMPT // TURNS_OF_CHAT
    chats = {
        "chat of one text": [{"role": "user", "content": text}],
        f"chat of {TURNS_OF_CHAT} turns": [
            {"role": roles[number % 2], "content": text[number * part : (number + 1) * part]}
            for number in range(TURNS_OF_CHAT)
        ],
    }
    bodies: dict[str, tuple[str, dict[str, object]]] = {
        name: ("/v1/chat/completions", {"model": "llm", "messages": messages})
        for name, messages in chats.items()
    }
    bodies["generate"] = ("/v2/models/llm/generate", {"text_input": text, "max_tokens": 16})
    for name, (path, document) in bodies.items():
        steps = _steps_us(path, json.dumps(document).encode())
        told = [f"{step} {us[0]:.1f} ({statistics.median(us):.1f})" for step, us in steps.items()]
        print(f"{name:<20}{sum(us[0] for us in steps.values()):6.1f} us: {', '.join(told)}")


def _steps_us(path: str, body: bytes) -> dict[str, list[float]]:
    """Return the CPU microseconds of a request by step, each sorted."""
    router = Router(random.Random(0))  # noqa: S311 - as above
    pool = replace(pool_of(8, "auto"), limit="auto", hold_s=10.0)
    router.set_pools({"bench": pool}, 0.0)

    def read() -> Features:
        return read_body(read_head("POST", path, {}), {}, body, complete=True)

    features = read()
    whole = prompt_blocks(features, pool.block_chars)
    half = len(whole) // 2
    known = [
        whole[:half] + tuple(hash((number, block)) for block in whole[half:])
        for number in range(PROMPTS)
    ]
    steps: dict[str, Callable[[], object]] = {
        "reading": read,
        "hashes": lambda: prompt_blocks(features, pool.block_chars),
    }
    found: dict[str, list[float]] = {"reading": [], "hashes": [], "decision": []}
    for turn in range(TURNS):
        for name, step in steps.items():
            start = time.thread_time()
            for _ in range(PROMPTS):
                step()
            found[name].append((time.thread_time() - start) / PROMPTS * 1e6)
        spent = 0.0
        for number, blocks in enumerate(known, turn * PROMPTS):
            now = number * 0.001
            start = time.thread_time()
            request = Request("bench", None, "http", features, blocks)
            decision = router.decide(request, now, 0.0)
            spent += time.thread_time() - start
            if isinstance(decision, Decision) and decision.ticket is not None:
                router.settle(decision.ticket, Outcome.DONE, now)
        found["decision"].append(spent / PROMPTS * 1e6)
    return {name: sorted(costs[TURNS // 3 :]) for name, costs in found.items()}


def bytes_per_block(blocks: int, endpoints: int) -> float:
    """Return the memory of the index per block and endpoint, bytes."""
    rng = random.Random(0)  # noqa: S311 - a benchmark wants the same numbers each time
    keys = [EndpointKey(f"replica-{number}", 1) for number in range(endpoints)]
    index = PrefixIndex(max_blocks=10_000_000)
    tracemalloc.start()
    for number in range(CHAINS):
        chain = tuple(rng.getrandbits(63) for _ in range(blocks))
        index.insert(keys[number % endpoints], chain, float(number))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / sum(index.held(key) for key in keys)


def main(policies: Sequence[str] = ()) -> None:
    """Print both tables, or the cost of decisions of the named policies."""
    if list(policies) == ["--limits"]:
        without, limited, more = limits_us()
        print(f"without limits {without:.1f} us, with them {limited:.1f}; median {more:+.1f}")
        return
    if list(policies) == ["--prompts"]:
        from_bytes()
        return
    load_policies()
    print(f"{'policy':<24}{'endpoints':>10}{'blocks':>8}{'us/decision':>13}")
    for endpoints in () if policies else (8, 64, 256, 1_000):
        for blocks in (4, 16, 64, 250):
            cost = microseconds(endpoints, blocks, "auto", filled=True)
            print(f"{'auto':<24}{endpoints:>10}{blocks:>8}{cost:>13.1f}")
    for policy in policies or sorted(POLICIES):
        for endpoints in (8, 64):
            cost = microseconds(endpoints, 16, policy)
            print(f"{policy:<24}{endpoints:>10}{16:>8}{cost:>13.1f}")
    if policies:
        return
    print(f"\n{'blocks per chain':<18}{'endpoints':>10}{'bytes/block':>13}")
    for blocks in (4, 16, 64):
        for endpoints in (8, 64):
            used = bytes_per_block(blocks, endpoints)
            print(f"{blocks:<18}{endpoints:>10}{used:>13.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
