"""CPU per exchange of the picker, over a loopback gRPC channel: ``python bench/exchange.py``.

The picker runs in a child process and its CPU time is read from the kernel, so the load
generator's own does not count. A closed loop keeps ``--concurrency`` streams busy; each stream is
one request: opened, answered, ended. ``none`` decides at the head, ``buffered`` on a body of
``--body`` characters of prompt. Numbers of a busy machine are ratios, not absolutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ext_proc.observability import Metrics
from ext_proc.service import PickerServer
from ext_proc.wire import METHOD, SERVICE
from support.streams import MODE, Messages, llm, replicas, router

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def _picker(pipe: Connection, mode: str, endpoints: int) -> None:
    """Serve in the child; each message through the pipe is answered with CPU seconds so far."""

    async def serve() -> None:
        body = {"none": "none", "buffered": "full"}[mode]
        chooser = router(llm(body=body, endpoints=replicas(endpoints)))
        server = PickerServer(chooser, picker="bench", metrics=Metrics(CollectorRegistry()))
        pipe.send(await server.start("127.0.0.1:0"))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, pipe.recv):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)
        await server.stop(0)

    uvloop.run(serve())


def _streams(mode: str, characters: int) -> list[list[bytes]]:
    """Return the messages of some different requests."""
    rng = random.Random(1)  # noqa: S311 - a repeatable load
    made = []
    for _ in range(64):
        messages = Messages(mode=MODE.NONE if mode == "none" else MODE.BUFFERED)
        messages.head(headers={f"x-{number}": "value" for number in range(10)})
        if mode == "buffered":
            words = (f"{rng.randrange(10**7):07d} " for _ in range(characters // 8))
            messages.body({"text_input": "".join(words)})
        made.append(messages.bytes())
    return made


async def _drive(address: str, streams: list[list[bytes]], count: int, concurrency: int) -> float:
    """Run ``count`` exchanges; return the seconds they took."""
    left = iter(range(count))
    async with grpc.aio.insecure_channel(address) as channel:
        open_stream: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")

        async def worker() -> None:
            for number in left:
                call = open_stream()
                for message in streams[number % len(streams)]:
                    await call.write(message)
                    await call.read()
                await call.done_writing()
                await call.read()

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - begin


def measure(mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one mode in a fresh picker."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_picker, args=(theirs, mode, args.endpoints), daemon=True)
    child.start()
    address = ours.recv()
    streams = _streams(mode, args.body)

    def cpu() -> float:
        ours.send(True)
        return float(ours.recv())

    uvloop.run(_drive(address, streams, args.count // 10, args.concurrency))
    before = cpu()
    took = uvloop.run(_drive(address, streams, args.count, args.concurrency))
    spent = cpu() - before
    ours.send(False)
    child.join(5)
    return {
        "mode": mode,
        "exchanges": args.count,
        "cpu_us_per_exchange": round(spent / args.count * 1e6, 1),
        "exchanges_per_s": round(args.count / took),
    }


def main() -> None:
    """Print one line of JSON per mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--endpoints", type=int, default=8)
    parser.add_argument("--body", type=int, default=2048, help="characters of prompt")
    args = parser.parse_args()
    for mode in ("none", "buffered"):
        print(json.dumps(measure(mode, args)))


if __name__ == "__main__":
    main()
