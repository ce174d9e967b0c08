"""Cost of telemetry in the picker: CPU by endpoints and source, and the age of readings.

Run ``python -m bench.cost.telemetry`` (``--seconds`` per row). Replicas and reporters run in
another process; the measured CPU is that of this process, which does the work of a picker: scrape
or receive, parse, compute rates, merge and pass on. The page is that of a Triton with ``MODELS``
models, of which one has new counts since the previous page (``scrape``) or none has (``idle``).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from prometheus_client import CollectorRegistry

from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.server import transport
from ext_proc.telemetry.dialects import read_all
from ext_proc.telemetry.hub import Hub
from ext_proc.telemetry.report import write
from tidegate_api.telemetry.v1 import telemetry_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

MODELS = 4
SIZES = (8, 100, 1000)
REPORT_S = 1.0
STREAMS_PER_CHANNEL = 100

FAMILIES = (
    "nv_inference_request_success",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
)


def page() -> str:
    """Return a page with ``MODELS`` models and TensorRT-LLM's gauges for the first."""
    lines = []
    for family in FAMILIES:
        lines += [f"# HELP {family} words about it", f"# TYPE {family} counter"]
        lines += [f'{family}{{model="m{i}",version="1"}} {i * 1000}' for i in range(MODELS)]
    for kind in ("active", "max", "scheduled", "context", "waiting"):
        lines.append(
            f'nv_trt_llm_request_metrics{{model="m0",request_type="{kind}",version="1"}} 3'
        )
    for kind in ("max", "free", "used", "tokens_per", "reused", "fraction"):
        lines.append(
            "nv_trt_llm_kv_cache_block_metrics"
            f'{{kv_cache_block_type="{kind}",model="m0",version="1"}} 5'
        )
    return "\n".join(lines) + "\n"


class RouterStub:
    """Router stub that records the number and times of readings."""

    def __init__(self) -> None:
        self.heard = 0
        self.last: dict[str, float] = {}

    def observe(self, endpoint_id: str, readings: Sequence[Reading], /) -> None:
        """Record the time of the readings."""
        if readings:
            self.heard += 1
            self.last[endpoint_id] = readings[0].at

    def silent(self, endpoint_id: str, /) -> None:
        """Do nothing."""

    def restarted(self, endpoint_id: str, unix_now: float, /) -> None:
        """Do nothing."""

    def in_flight(self) -> Mapping[str, int]:
        """Return no load, so that pages are scraped at the idle interval."""
        return {}


def serve_pages(pipe: Connection, *, idle: bool) -> None:
    """Serve the page for every request on a port, in a child process."""
    # A busy replica: each page differs from the previous one in the counts of the first model.
    body = page().encode()
    before, mark, after = body.partition(b'{model="m1",version="1"} 1000')
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\n\r\n"
    start = head.encode() + before + mark[:-4]
    numbers = itertools.cycle(range(1000, 10_000))

    class ReplicaPage(asyncio.Protocol):
        def connection_made(self, made: Any) -> None:
            self.transport = made

        def data_received(self, data: bytes) -> None:
            if data.endswith(b"\r\n\r\n"):
                number = 1000 if idle else next(numbers)
                self.transport.write(b"%b%d%b" % (start, number, after))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(ReplicaPage, "127.0.0.1", 0, backlog=2048)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def push_reports(address: str, endpoints: int) -> None:
    """Send a report for every endpoint once per ``REPORT_S``, in a child process."""

    async def report(stub: Any, index: int) -> None:
        call = stub.Report()
        await asyncio.sleep(REPORT_S * index / endpoints)
        count = 0
        while True:
            count += 1
            reading = Reading(0.0, "m0", "1", queued=count, running=3, kv_used=0.5)
            await call.write(write(f"r{index}", 0.0, [reading]))
            await asyncio.sleep(REPORT_S)

    async def run() -> None:
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(endpoints // STREAMS_PER_CHANNEL + 1)
        ]
        stubs = [telemetry_pb2_grpc.TelemetryStub(each) for each in channels]
        await asyncio.gather(
            *(report(stubs[i // STREAMS_PER_CHANNEL], i) for i in range(endpoints))
        )

    asyncio.run(run())


async def measure(router: RouterStub, seconds: float, endpoints: int, source: str) -> None:
    """Print one row, after a warm-up."""
    await asyncio.sleep(2.5)
    heard, cpu, begin = router.heard, time.process_time(), time.monotonic()
    ages: list[float] = []
    while time.monotonic() - begin < seconds:
        await asyncio.sleep(0.1)
        now = time.monotonic()
        ages += [now - at for at in list(router.last.values())[:200]]
    cpu, took = time.process_time() - cpu, time.monotonic() - begin
    rate = (router.heard - heard) / took
    cuts = statistics.quantiles(ages, n=100) if len(ages) > 1 else [float("nan")] * 99
    print(
        f"{source:7} {endpoints:9} {rate:10.0f} {100 * cpu / took:8.1f} "
        f"{1e6 * cpu / took / max(rate, 1e-9):12.0f} {1e6 * cpu / took / endpoints:14.0f} "
        f"{1e3 * cuts[49]:8.0f} {1e3 * cuts[98]:8.0f}"
    )


def pools(endpoints: int, port: int | None) -> dict[str, Pool]:
    """Return one pool of ``endpoints`` replicas, with metrics pages if ``port`` is given."""
    url = None if port is None else f"http://127.0.0.1:{port}/metrics"
    replicas = tuple(
        Endpoint(EndpointKey(f"r{i}", 1), "stable", "127.0.0.1:1", None, metrics_url=url)
        for i in range(endpoints)
    )
    return {"p": Pool("p", variants=(Variant("stable", 1),), endpoints=replicas)}


async def scraped(endpoints: int, seconds: float, *, idle: bool) -> None:
    """Measure scraping."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(
        target=serve_pages, args=(there,), kwargs={"idle": idle}, daemon=True
    )
    process.start()
    router = RouterStub()
    hub = Hub(router, CollectorRegistry(), interval_s=0.25)
    hub.set_pools(pools(endpoints, here.recv()))
    running = asyncio.create_task(hub.run())
    await measure(router, seconds, endpoints, "idle" if idle else "scrape")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    process.terminate()
    process.join()


async def pushed(endpoints: int, seconds: float) -> None:
    """Measure pushed reports."""
    router = RouterStub()
    hub = Hub(router, CollectorRegistry(), interval_s=0.25)
    hub.set_pools(pools(endpoints, None))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((hub.push.handler(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    # Spawn, because gRPC is running and does not survive a fork.
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=push_reports, args=(address, endpoints), daemon=True)
    process.start()
    await measure(router, seconds, endpoints, "push")
    process.terminate()
    process.join()
    await server.stop(0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    if transport.VARIABLE not in os.environ:
        # Restart with the picker's environment, which must be set before gRPC is loaded.
        transport.choose(os.environ)
        again = [sys.executable, "-m", "bench.cost.telemetry", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606 - this program
    text = page()
    begin, rounds = time.process_time(), 500
    for _ in range(rounds):
        read_all(text, 0.0)
    print(f"parse: {1e6 * (time.process_time() - begin) / rounds:.0f} us, {len(text)} bytes\n")
    print("source  endpoints readings/s    CPU %   us/reading us/endpoint/s  age p50  p99 ms")
    for endpoints in SIZES:
        uvloop.run(scraped(endpoints, seconds, idle=False))
    for endpoints in SIZES:
        uvloop.run(scraped(endpoints, seconds, idle=True))
    for endpoints in SIZES:
        uvloop.run(pushed(endpoints, seconds))


if __name__ == "__main__":
    main()
