"""Breakdown of the picker's CPU by step: ``python bench/cost/ladder.py [mode]``.

Pickers in child processes alternate under the load of ``bench/cost/exchange.py``. The first one is
bare, each further one adds one step of the real picker, and the last one is the real picker.
``inside`` is the bare picker that also runs the real picker's exchanges: it costs our Python code,
and the real picker's cost above it is that of our use of gRPC. Figures are CPU microseconds per
exchange, minimum and median of the rounds; ``main`` is the Python thread, the rest are gRPC's
threads.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from bench.cost.bare_picker import BODIES, SENDING, BarePicker, Scripted, script
from bench.cost.exchange import drive, pool_of, streams_of
from ext_proc.exchange import Exchange, Lost
from ext_proc.observability.metrics import Metrics
from ext_proc.server import transport
from ext_proc.server.service import PickerServer
from ext_proc.server.wire import event_of, parse_request
from support.streams import router

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ext_proc.routing.values.pool import Pool

STEPS = ("bare", "pump", "parse", "decide", "inside", "real")
ENDPOINTS, PROMPT, CONCURRENCY = 8, 2048, 32


def _real(pool: Pool) -> PickerServer:
    return PickerServer(router(pool), picker="bench", metrics=Metrics(CollectorRegistry()))


class _Step(BarePicker):
    """A bare picker with some steps of the real one; reads to the end of the stream."""

    def __init__(self, step: str, mode: str, pool: Pool) -> None:
        self._replies = script(mode, pool, "word " * 400)
        super().__init__({b"": self._replies})
        self._rank = STEPS.index(step)
        self._router = router(pool)
        self._inside = _real(pool) if step == "inside" else None

    async def _process(self, _: Any, context: Any) -> None:
        if not self._rank:
            await super()._process(_, context)
            return
        sent: list[bytes] = []
        exchange = Exchange(self._router)
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                replies = self._replies[len(sent)]
                sent.append(data)
                if self._inside is None:
                    self._think(exchange, data)
                elif len(sent) == len(self._replies):
                    await self._inside.process(None, Scripted(sent))
                for reply in replies:
                    await context.write(reply)
        finally:
            exchange.on(Lost(clean=True), time.monotonic(), time.time())

    def _think(self, exchange: Exchange, data: bytes) -> None:
        if self._rank >= STEPS.index("parse"):
            event = event_of(parse_request(data))
            if self._rank >= STEPS.index("decide"):
                exchange.on(event, time.monotonic(), time.time())


def _serve(pipe: Connection, mode: str, step: str) -> None:
    pool = pool_of(mode, ENDPOINTS)
    server: Any = _real(pool) if step == "real" else _Step(step, mode, pool)

    async def serve() -> None:
        pipe.send(await server.start("127.0.0.1:0"))
        await asyncio.Event().wait()

    uvloop.run(serve())


def _spent(pid: int) -> tuple[float, float]:
    """Return CPU microseconds of a process's main thread, and of all its threads."""
    spent = {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e3
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    return spent[pid], sum(spent.values())


def main() -> None:
    """Print one line per step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", nargs="?", choices=list(BODIES), default="none")
    parser.add_argument("--count", type=int, default=400, help="exchanges per round")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    transport.choose(os.environ)  # the children read it when they load gRPC
    context = multiprocessing.get_context("spawn")
    pickers: dict[str, tuple[int, str]] = {}
    for step in STEPS:
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, args.mode, step), daemon=True)
        process.start()
        theirs.close()  # a child that ends is then an error here, not an endless wait
        pickers[step] = (process.pid or 0, pipe.recv())
    streams = streams_of(args.mode, PROMPT)
    duplex = SENDING[args.mode] == SENDING["duplex"]
    found: dict[str, list[tuple[float, float]]] = {step: [] for step in STEPS}
    for number in range(args.rounds + 1):
        # Every second round is in reverse order, so that no step always follows the same one.
        for step, (pid, address) in list(pickers.items())[:: 1 if number % 2 else -1]:
            main_before, all_before = _spent(pid)
            load = drive(address, streams, args.count, CONCURRENCY, duplex=duplex)
            uvloop.run(load)
            main_now, all_now = _spent(pid)
            if number:  # the first round warms up
                row = (main_now - main_before) / args.count, (all_now - all_before) / args.count
                found[step].append(row)
    for step, rows in found.items():
        mains, alls = zip(*rows, strict=True)
        print(
            f"{step:<8}all {min(alls):4.0f}, median {statistics.median(alls):4.0f}"
            f"   main {min(mains):4.0f}, median {statistics.median(mains):4.0f}"
        )


if __name__ == "__main__":
    main()
