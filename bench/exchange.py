"""CPU per exchange of the picker, over a loopback gRPC channel: ``python bench/exchange.py``.

The picker runs in a child process and its CPU time is read from the kernel, so the load
generator's own does not count. A closed loop keeps ``--concurrency`` streams busy; each stream is
one request: opened, answered, ended. ``none`` decides at the head, the others on a body of
``--body`` characters of prompt: ``peek`` asks for it, ``buffered`` waits for it, ``duplex`` hands
it back. ``ours`` is the part of it that is our own Python: the same messages without gRPC, in this
process, the best of many short runs. Numbers of a busy machine are ratios, not absolutes.
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


MODES = {
    "none": MODE.NONE,
    "peek": MODE.NONE,
    "buffered": MODE.BUFFERED,
    "duplex": MODE.FULL_DUPLEX_STREAMED,
}
BODIES = {"none": "none", "peek": "peek", "buffered": "full", "duplex": "peek"}


def _picker(pipe: Connection, mode: str, endpoints: int) -> None:
    """Serve in the child; each message through the pipe is answered with CPU seconds so far."""

    async def serve() -> None:
        body = BODIES[mode]
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
        messages = Messages(mode=MODES[mode])
        messages.head(headers={f"x-{number}": "value" for number in range(10)})
        if mode != "none":
            words = (f"{rng.randrange(10**7):07d} " for _ in range(characters // 8))
            messages.body({"text_input": "".join(words)})
        made.append(messages.bytes())
    return made


class _Scripted:
    """A stream that has its messages already and keeps no reply."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = iter(messages)

    async def read(self) -> bytes | Any:
        return next(self._messages, grpc.aio.EOF)

    async def write(self, reply: bytes) -> None:
        pass


def ours(mode: str, args: argparse.Namespace, runs: int = 30, count: int = 500) -> float:
    """Return CPU microseconds per exchange without gRPC, the least of all runs."""
    chooser = router(llm(body=BODIES[mode], endpoints=replicas(args.endpoints)))
    server = PickerServer(chooser, picker="bench", metrics=Metrics(CollectorRegistry()))
    streams = _streams(mode, args.body)

    async def run() -> None:
        for number in range(count):
            await server.process(None, _Scripted(streams[number % len(streams)]))

    def timed() -> float:
        begin = time.process_time()
        asyncio.run(run())
        return time.process_time() - begin

    return min(timed() for _ in range(runs)) / count * 1e6


async def _drive(
    address: str, streams: list[list[bytes]], count: int, concurrency: int, *, duplex: bool
) -> float:
    """Run ``count`` exchanges; return the seconds they took."""
    left = iter(range(count))
    async with grpc.aio.insecure_channel(address) as channel:
        open_stream: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")

        async def worker() -> None:
            for number in left:
                call = open_stream()
                messages = streams[number % len(streams)]
                for message in messages:
                    await call.write(message)
                    if not duplex:
                        await call.read()
                if duplex:  # replies wait for the decision
                    for _ in messages:
                        await call.read()
                await call.done_writing()
                await call.read()

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return time.perf_counter() - begin


def measure(mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one mode in a fresh picker."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    child = context.Process(target=_picker, args=(theirs, mode, args.endpoints), daemon=True)
    child.start()
    address = pipe.recv()
    streams = _streams(mode, args.body)

    def cpu() -> float:
        pipe.send(True)
        return float(pipe.recv())

    duplex = mode == "duplex"
    uvloop.run(_drive(address, streams, args.count // 10, args.concurrency, duplex=duplex))
    before = cpu()
    took = uvloop.run(_drive(address, streams, args.count, args.concurrency, duplex=duplex))
    spent = cpu() - before
    pipe.send(False)
    child.join(5)
    return {
        "mode": mode,
        "exchanges": args.count,
        "cpu_us_per_exchange": round(spent / args.count * 1e6, 1),
        "ours_us_per_exchange": round(ours(mode, args), 1),
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
    for mode in MODES:
        print(json.dumps(measure(mode, args)))


if __name__ == "__main__":
    main()
