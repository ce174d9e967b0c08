"""CPU per exchange of the picker and of a bare picker: ``python bench/cost/exchange.py``.

Both serve loopback gRPC in child processes; their CPU time is read from the kernel, so that of the
load generator does not count. A closed loop keeps ``--concurrency`` streams busy; each stream is
one request. ``none`` decides on the head, the other modes on a body with a prompt of ``--body``
characters: ``peek`` requests it, ``buffered`` waits for it, ``duplex`` returns it. ``bare`` is the
cost of ``grpc.aio`` for the same messages (``bare_picker.py``). All pickers alternate, and each
figure is the minimum of ``--rounds``, because noise only adds time. ``ours`` is the cost of our
Python code alone: the same messages without gRPC, in this process. On a busy machine, use the
ratios, not the absolute numbers. ``--streams`` measures the memory of open streams instead.

``--transport grpc nghttp2`` measures the picker with both transports, with a line for each; the
default is the picker's default transport.

To measure the compiled picker (``make compiled``), set ``PYTHONSAFEPATH=1
PYTHONPATH=build/compiled``; each line says whether the picker was compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import uvloop
from prometheus_client import CollectorRegistry

# After PYTHONPATH, which selects the checkout's or the compiled picker.
sys.path.append(str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from bench.cost.bare_picker import BODIES, SENDING, BarePicker, Scripted, messages, script
from ext_proc.compiled import compiled
from ext_proc.observability.metrics import Metrics
from ext_proc.server import transport
from ext_proc.server.service import PickerServer
from ext_proc.server.wire import METHOD, SERVICE
from support.streams import llm, replicas, router

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from ext_proc.routing.values.pool import Pool
    from ext_proc.settings import Transport

    Kind = Transport | Literal["bare"]

BARE: Final = "bare"
"""The bare picker over ``grpc.aio``."""
DIFFERENT = 64
"""Number of different requests of a run."""


def pool_of(mode: str, endpoints: int) -> Pool:
    """Return the pool of a mode."""
    return llm(body=BODIES[mode], endpoints=replicas(endpoints))


def _usage() -> tuple[float, int]:
    """Return this process's CPU seconds and resident bytes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return usage.ru_utime + usage.ru_stime, pages * resource.getpagesize()


def _serve(pipe: Connection, mode: str, endpoints: int, kind: Kind) -> None:
    """Serve in a child process; reply to each message of the pipe with CPU seconds and RSS."""
    pool = pool_of(mode, endpoints)
    scripts = {b"": script(mode, pool, "word " * 400)} if kind == BARE else {}

    async def serve() -> None:
        server: Any = (
            BarePicker(scripts)
            if kind == BARE
            else PickerServer(
                router(pool),
                picker="bench",
                metrics=Metrics(CollectorRegistry()),
                transport=kind,
            )
        )
        pipe.send(await server.start("127.0.0.1:0"))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv):
            pipe.send(_usage())
        await (server.stop() if kind == BARE else server.stop(0))

    uvloop.run(serve())


@dataclass
class Child:
    """A picker in a child process."""

    process: BaseProcess
    pipe: Connection
    address: str

    @classmethod
    def start(cls, mode: str, endpoints: int, kind: Kind) -> Child:
        """Start a picker and wait until it serves."""
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, mode, endpoints, kind), daemon=True)
        process.start()
        return cls(process, pipe, pipe.recv())

    def usage(self) -> tuple[float, int]:
        """Return its CPU seconds and resident bytes."""
        self.pipe.send(True)
        seconds, resident = self.pipe.recv()
        return float(seconds), int(resident)

    def stop(self) -> None:
        """Stop the picker."""
        self.pipe.send(False)
        self.process.join(5)


def streams_of(mode: str, characters: int) -> list[list[bytes]]:
    """Return the messages of ``DIFFERENT`` requests."""
    rng = random.Random(1)  # noqa: S311 - a repeatable load
    texts = (
        "".join(f"{rng.randrange(10**7):07d} " for _ in range(characters // 8))
        for _ in range(DIFFERENT)
    )
    return [messages(mode, text) for text in texts]


def ours(mode: str, args: argparse.Namespace, runs: int = 30, count: int = 500) -> float:
    """Return CPU microseconds per exchange without gRPC, the minimum of all runs."""
    server = PickerServer(
        router(pool_of(mode, args.endpoints)), picker="bench", metrics=Metrics(CollectorRegistry())
    )
    streams = streams_of(mode, args.body)

    async def run() -> None:
        for number in range(count):
            await server.process(None, Scripted(streams[number % len(streams)]))

    def timed() -> float:
        begin = time.process_time()
        asyncio.run(run())
        return time.process_time() - begin

    return min(timed() for _ in range(runs)) / count * 1e6


async def drive(
    address: str, streams: list[list[bytes]], count: int, concurrency: int, *, duplex: bool
) -> float:
    """Run ``count`` exchanges and return their duration, seconds."""
    left = iter(range(count))
    async with grpc.aio.insecure_channel(address) as channel:
        open_stream: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")

        async def worker() -> None:
            for number in left:
                call = open_stream()
                sent = streams[number % len(streams)]
                for message in sent:
                    await call.write(message)
                    if not duplex:
                        await call.read()
                if duplex:  # replies wait for the decision
                    for _ in sent:
                        await call.read()
                await call.done_writing()
                await call.read()

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - begin


def measure(mode: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure one mode: the picker with each transport and the bare picker, alternating."""
    children = {kind: Child.start(mode, args.endpoints, kind) for kind in (*args.transport, BARE)}
    streams = streams_of(mode, args.body)
    spent: dict[str, list[float]] = {kind: [] for kind in children}
    took: dict[str, list[float]] = {kind: [] for kind in children}
    for number in range(args.rounds + 1):
        for kind, child in children.items():
            before, _ = child.usage()
            duplex = SENDING[mode] == SENDING["duplex"]
            load = drive(child.address, streams, args.count, args.concurrency, duplex=duplex)
            seconds = uvloop.run(load)
            if number:  # the first round warms up
                spent[kind].append((child.usage()[0] - before) / args.count * 1e6)
                took[kind].append(seconds)
    for child in children.values():
        child.stop()
    least, own = min(spent[BARE]), ours(mode, args)
    for kind in args.transport:
        picker = min(spent[kind])
        yield {
            "mode": mode,
            "transport": kind,
            "compiled": compiled(),
            "exchanges": args.count * args.rounds,
            "picker_us": round(picker, 1),
            "bare_us": round(least, 1),
            "ratio": round(picker / least, 2),
            "ours_us": round(own, 1),
            "exchanges_per_s": round(args.count / min(took[kind])),
        }


async def _held_open(child: Child, wanted: int, sent: list[bytes]) -> float:
    """Open ``wanted`` streams, wait for their picks, and return resident bytes per stream."""
    before = child.usage()[1]
    async with grpc.aio.insecure_channel(child.address) as channel:
        open_stream: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        calls = []
        for _ in range(wanted):
            call = open_stream()
            for message in sent:
                await call.write(message)
                await call.read()
            calls.append(call)
        return (child.usage()[1] - before) / wanted


def memory(mode: str, wanted: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the memory of an open stream, in new pickers and in a new bare picker."""
    found = {}
    for kind in (*args.transport, BARE):
        child = Child.start(mode, args.endpoints, kind)
        sent = streams_of(mode, args.body)[0]
        uvloop.run(drive(child.address, [sent], 100, 4, duplex=False))  # warm up
        found[kind] = round(uvloop.run(_held_open(child, wanted, sent)) / 1000, 1)
        child.stop()
    for kind in args.transport:
        yield {
            "mode": mode,
            "transport": kind,
            "open": wanted,
            "picker_kb": found[kind],
            "bare_kb": found[BARE],
        }


def main() -> None:
    """Print one line of JSON per mode and transport."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=list(BODIES), default=list(BODIES))
    parser.add_argument("--count", type=int, default=2_000, help="exchanges per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--endpoints", type=int, default=8)
    parser.add_argument("--body", type=int, default=2048, help="characters of prompt")
    parser.add_argument(
        "--streams", type=int, nargs="+", help="numbers of open streams; print kB per stream"
    )
    parser.add_argument(
        "--transport",
        nargs="+",
        choices=("grpc", "nghttp2"),
        default=[transport.named("auto")],
        help="gRPC server of the picker",
    )
    args = parser.parse_args()
    transport.choose(os.environ)  # the children read it when they load gRPC
    for mode in args.modes:
        if args.streams:
            for wanted in args.streams:
                for row in memory(mode, wanted, args):
                    print(json.dumps(row))
        else:
            for row in measure(mode, args):
                print(json.dumps(row))


if __name__ == "__main__":
    main()
