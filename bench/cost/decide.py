"""Cost of a routing decision: CPU microseconds per decision, bytes per indexed block.

Run from the repository's root: ``.venv/bin/python -m bench.cost.decide`` (about two minutes). One
process, one thread, no network. Times are the best of four rounds, because noise only adds time.
Each decision is a turn of a conversation, two blocks longer than the previous turn, after a system
prompt that all share; ticket, index and settlement are included. For ``auto``, the index also
contains a million blocks of other conversations.

``--limits`` prints what the default limit and queue cost a request where nothing waits instead:
turns with and without them alternate, and the least of each counts (20 seconds).
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

from ext_proc.packages import load_policies
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.pipeline.decision import Decision
from ext_proc.routing.policies import POLICIES
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

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
