"""Blocking of the picker's event loop by background tasks: CPU of the longest turn, by replicas.

    python -m bench.cost.stalls [--replicas 8 100 1000] [--rounds 9]

No decision is made during a turn of the loop, so its duration adds to the latency of waiting
requests. Each task is driven manually, turn by turn, and the CPU time of each turn is measured, so
other load does not count. Figures are the best of several rounds; the figure of a round is its
longest turn. ``whole`` is the CPU of all turns. Garbage collection is that of a prefix index with a
hundred thousand prompts (not frozen, as at the picker's start).
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from typing import TYPE_CHECKING, Any

import orjson
from prometheus_client import CollectorRegistry

from bench.cost.access_log import router_of, service_of, written
from bench.cost.telemetry import page
from ext_proc.observability.metrics import Metrics
from ext_proc.observability.pages import page_of
from ext_proc.observability.replica_metrics import show_replicas
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.telemetry.dialects import read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ext_proc.routing.router import Router

ENTRIES = 24
"""Entries of an access-log message."""
PROMPTS = 100_000
PROMPT_BLOCKS = 8


def turns_of(work: Coroutine[Any, Any, Any]) -> list[float]:
    """Run a coroutine that waits only for its next turn; return the CPU seconds of each turn."""
    took = []
    while True:
        begin = time.thread_time()
        try:
            work.send(None)
        except StopIteration:
            took.append(time.thread_time() - begin)
            return took
        took.append(time.thread_time() - begin)


async def at_once(work: Callable[[], object]) -> None:
    """Run a function as a task of one turn."""
    work()


def chores(replicas: int) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    """Return the background tasks of a picker with ``replicas`` replicas."""
    rng = random.Random(1)  # noqa: S311 - a repeatable load
    router = router_of(replicas)
    registry = CollectorRegistry()
    metrics = Metrics(registry, in_flight=router.registry.in_flight, reused=router.reuse.tokens)
    show_replicas(registry, router)
    logs = service_of(router, registry)
    text = page()
    readings = read_all(text, 0.0).readings
    picks = metrics._picked  # noqa: SLF001 - as picks do
    for number in range(replicas):
        router.registry.observe(f"r{number}", readings)
        for counts in (picks._prompts, picks._predicted):  # noqa: SLF001 - the same
            counts.add((f"r{number}",))
    for _ in range(replicas):
        turns_of(logs.take(written(ENTRIES, replicas, rng)))
    message = written(ENTRIES, replicas, rng)
    return {
        "log message": lambda: logs.take(message),
        "replica's page": lambda: at_once(lambda: read_all(text, 0.0)),
        "own page": lambda: page_of(registry),
        "debug page": lambda: at_once(lambda: _dump(router)),
        "sweep": lambda: at_once(lambda: router.registry.sweep(2.0)),
        "report": lambda: at_once(router.registry.in_flight),
    }


def _dump(router: Router) -> bytes:
    return orjson.dumps(router.state(2.0), default=str)


def collecting(rounds: int) -> float:
    """Return the CPU seconds of a full collection with a filled index."""
    rng = random.Random(1)  # noqa: S311 - likewise
    index = PrefixIndex()
    gc.collect()
    gc.freeze()
    for number in range(PROMPTS):
        chain = tuple([rng.getrandbits(63) for _ in range(PROMPT_BLOCKS)])
        index.insert(EndpointKey(f"r{number % 8}", 1), chain, 0.0)
    took = [turns_of(at_once(gc.collect))[0] for _ in range(rounds)]
    gc.unfreeze()
    return min(took)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 100, 1000])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    print(f"{'chore':16} {'replicas':>8} {'longest turn ms':>16} {'whole ms':>9}")
    for replicas in args.replicas:
        for name, chore in chores(replicas).items():
            runs = [turns_of(chore()) for _ in range(args.rounds)]
            longest, whole = min(map(max, runs)), min(map(sum, runs))
            print(f"{name:16} {replicas:8} {longest * 1e3:16.3f} {whole * 1e3:9.3f}")
    print(f"{'collecting':16} {'':8} {collecting(args.rounds) * 1e3:16.3f}")


if __name__ == "__main__":
    main()
