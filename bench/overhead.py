"""Cost of the picker: Envoy alone compared with Envoy and a picker, in one run.

    python bench/overhead.py [--seconds 3] [--rounds 3] [--connections 1 8] [--body 2048]

Starts a real control server, picker and Envoy with three instant upstreams (an Envoy with direct
responses) and sends HTTP requests in a closed loop to a route without a picker and to a pool in
each body mode, alternating over several rounds. Prints requests/s, latency p50/p99, the latency
that the picker adds, CPU per request of Envoy and picker, and the memory of each process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from bench.load.upstream import instant_upstreams
from tidegate.stack.local import ENVOY, PICKER, LocalStack
from tidegate.stack.tritons.replica import TritonReplica

UPSTREAMS = 3
POOL_MODES = {"vision": "none", "llm": "peek", "counter": "full"}
TARGETS = {
    "envoy alone": "/v2/health/ready",
    "none": "/v2/models/vision/generate",
    "peek": "/v2/models/toy-llm/generate",
    "full": "/v2/models/counter/generate",
}
TICK = os.sysconf("SC_CLK_TCK")


def replicas(addresses: list[str]) -> list[TritonReplica]:
    """Return instant upstreams as replicas."""
    pairs = zip(addresses[:UPSTREAMS], addresses[UPSTREAMS:], strict=True)
    return [
        TritonReplica(name=f"u{number}", http=http, grpc=grpc, metrics=http)
        for number, (http, grpc) in enumerate(pairs, 1)
    ]


@dataclass
class OverheadSample:
    """Measurements of one target over all rounds."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)

    def percentile(self, share: float) -> float:
        """Return a latency percentile in milliseconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    def cpu_us(self, name: str) -> float:
        """Return CPU microseconds per request of a process."""
        return self.cpu.get(name, 0.0) / len(self.latencies) * 1e6


def request_bytes(path: str, body_bytes: int) -> bytes:
    """Return an HTTP/1.1 request with a generate body of about ``body_bytes`` bytes.

    The route without a picker takes ``GET`` only; a body with it is unusual, but costs the same.
    """
    shell = len(orjson.dumps({"text_input": "", "max_tokens": 1}))
    text = "".join(f"word{n} " for n in range(body_bytes // 5))[: max(1, body_bytes - shell)]
    body = orjson.dumps({"text_input": text, "max_tokens": 1})
    method = "GET" if path == TARGETS["envoy alone"] else "POST"
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def client(address: str, request: bytes, until: float, latencies: list[float]) -> None:
    """Send sequential requests on one connection until the time ``until``."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        while (start := time.perf_counter()) < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode("latin-1"))
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - start)
    finally:
        writer.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(
    stack: LocalStack, path: str, args: argparse.Namespace, connections: int, into: OverheadSample
) -> None:
    """Load one target and add the measurements to ``into``."""
    request = request_bytes(path, args.body)
    pids = {name: stack.pid(name) for name in (ENVOY, PICKER)}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    start = time.perf_counter()
    await asyncio.gather(
        *(
            client(stack.http_address, request, start + args.seconds, into.latencies)
            for _ in range(connections)
        )
    )
    into.seconds += time.perf_counter() - start
    for name, pid in pids.items():
        into.cpu[name] = into.cpu.get(name, 0.0) + cpu_seconds(pid) - before[name]


async def run(args: argparse.Namespace) -> None:
    """Measure all targets and print the results."""
    console = Console()
    change = {
        "pools": {
            name: {"routing": {"body": mode, "policy": "prefix-affinity"}}
            for name, mode in POOL_MODES.items()
        }
    }
    async with (
        instant_upstreams(2 * UPSTREAMS) as addresses,
        LocalStack(replicas=replicas(addresses), fleet=change, concurrency=1) as stack,
    ):
        for connections in args.connections:
            samples = {name: OverheadSample() for name in TARGETS}
            for path in TARGETS.values():  # warm up connections and caches
                warm = argparse.Namespace(**{**vars(args), "seconds": 0.5})
                await measure(stack, path, warm, connections, OverheadSample())
            for _ in range(args.rounds):
                for name, path in TARGETS.items():
                    await measure(stack, path, args, connections, samples[name])
            console.print(table(samples, connections, args.body))
        memory = {name: rss_mb(stack.pid(name)) for name in ("control-server", PICKER, ENVOY)}
        console.print("memory (RSS): " + ", ".join(f"{n} {m:.0f} MB" for n, m in memory.items()))


def table(samples: dict[str, OverheadSample], connections: int, body: int) -> Table:
    """Return the table of one set of samples."""
    alone = samples["envoy alone"]
    result = Table(title=f"{connections} connection(s), {body} B bodies, closed loop")
    result.add_column("route")
    for column in ("req/s", "p50 ms", "p99 ms", "+p50 ms", "+p99 ms", "Envoy µs", "picker µs"):
        result.add_column(column, justify="right")
    for name, sample in samples.items():
        result.add_row(
            name,
            f"{len(sample.latencies) / sample.seconds:.0f}",
            f"{statistics.median(sample.latencies) * 1000:.2f}",
            f"{sample.percentile(0.99):.2f}",
            f"{sample.percentile(0.5) - alone.percentile(0.5):+.2f}",
            f"{sample.percentile(0.99) - alone.percentile(0.99):+.2f}",
            f"{sample.cpu_us(ENVOY):.0f}",
            f"{sample.cpu_us(PICKER):.0f}",
        )
    return result


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per target and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--body", type=int, default=2048, help="bytes of each request's body")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
