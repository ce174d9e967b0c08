"""CPU of a request in two pickers that are a group over TLS, against two that share nothing.

    python bench/cost/group.py [--rounds 6] [--seconds 3] [--connections 8]

Both stacks are the same but for that (control server, two pickers, Envoy, two replicas that answer
at once, all over TLS) and see the same requests, by turns. Prints the CPU microseconds of both
pickers per request, and the median and the range of the ratio of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from bench.overhead import cpu_seconds
from bench.workers import client, requests
from support.identities import Machines
from support.secured_stack import Stack, secured_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

PICKERS = ("picker", "picker-2")


async def cost(
    stack: Stack, every: list[bytes], seconds: float, connections: int
) -> tuple[float, int]:
    """Load a stack; return CPU microseconds of its pickers per request, and the requests."""
    supervisor = stack.supervisor
    pids = [] if supervisor is None else [supervisor.pid(name) for name in PICKERS]
    before, latencies = sum(map(cpu_seconds, pids)), []
    until = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(client(stack.listener, every, until, 0.0, latencies))
    return (sum(map(cpu_seconds, pids)) - before) / len(latencies) * 1e6, len(latencies)


async def run(args: argparse.Namespace) -> None:
    """Measure and print."""
    every = requests(2048, random.Random(1))  # noqa: S311 - repeatable
    pool = {"routing": {"body": "peek"}}
    async with AsyncExitStack() as running:
        stacks = []
        for apart in (False, True):
            folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
            made = secured_stack(
                Machines(folder), "nghttp2", links_s=0.0, apart=apart, pool=pool, log_level="error"
            )
            stacks.append(await running.enter_async_context(made))
        for stack in stacks:
            await cost(stack, every, 1.0, args.connections)
        rows: list[Sequence[float]] = []
        for turn in range(args.rounds):
            found = {}
            for which in (0, 1) if turn % 2 else (1, 0):
                found[which], _ = await cost(stacks[which], every, args.seconds, args.connections)
            rows.append((found[0], found[1], found[0] / found[1]))
    group, alone, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
    ratios = [row[2] for row in rows]
    print(f"a group over TLS: {group:.0f} us a request; two that share nothing: {alone:.0f} us")
    print(f"ratio {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {len(rows)} rounds")


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per stack and round")
    parser.add_argument("--connections", type=int, default=8)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
