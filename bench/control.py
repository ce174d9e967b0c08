"""Cost of the control server, from an operator's call to the last acknowledgement.

    python bench/control.py envoy   [--changes 200]
    python bench/control.py clients [--clients 10 100 1000] [--pools 1 50 200]
                                    [--endpoints 10 1000 10000] [--json]

``envoy`` runs a real control server, a picker and one Envoy, and measures the latency of changes
over EDS, CDS and RTDS. ``clients`` runs a control server in this process and simulated delta
clients in another one. It measures the time to the last acknowledgement of an endpoint change and
of a weight change, CPU and memory of the server, and bytes sent. Each pool has two clusters.
*Late* clients are those that the server did not wait for in a change, because they were slow
before; the time to the last acknowledgement includes them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import os
import re
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import orjson
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from bench.load.upstream import instant_upstreams
from tidegate.stack.local import CONTROL_SERVER, LocalStack
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, LISTENER_TYPE, ROUTE_TYPE, RUNTIME_TYPE
from tidegate_common import logs
from xds_server.control.fleet_control import Control
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.store import RevisionStore
from xds_server.observability import XdsMetrics
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TYPES = (CLUSTER_TYPE, ENDPOINT_TYPE, LISTENER_TYPE, ROUTE_TYPE, RUNTIME_TYPE)
ROOT: Final = Path(__file__).resolve().parents[1]
STREAMS_PER_CHANNEL = 50
CLIENTS: Final = (10, 100, 1_000)
POOLS: Final = (1, 50, 200)
ENDPOINTS: Final = (10, 1_000, 10_000)
HEADS: Final = (
    "clients",
    "clusters",
    "endpoints",
    "endpoint change: ms to last ACK, p50 / p99",
    "CPU ms",
    "kB sent",
    "weight change: ms to last ACK, p50 / p99",
    "CPU ms",
    "kB sent",
    "RSS MB",
    "late",
)
ALL_SYNCED_S: Final = 120.0
"""Longest wait for all clients to hold a change, seconds."""
LOOK_S: Final = 0.02
"""Interval at which that is looked at where the server waits no longer for some."""


class Size(NamedTuple):
    """What is simulated."""

    clients: int
    pools: int
    endpoints: int
    """Of all pools together; at least one per pool."""


def sizes(
    clients: Iterable[int] = CLIENTS,
    pools: Iterable[int] = POOLS,
    endpoints: Iterable[int] = ENDPOINTS,
) -> Iterator[Size]:
    """Yield all combinations in which each pool has an endpoint."""
    for each in itertools.product(clients, pools, endpoints):
        if (size := Size(*each)).endpoints >= size.pools:
            yield size


def percentiles(samples: list[float]) -> str:
    """Format p50 / p99 of samples in milliseconds."""
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{statistics.median(ordered):.1f} / {p99:.1f}"


# --- One real Envoy -------------------------------------------------------------------------------


def _endpoint(pool: dict[str, Any], turn: int) -> None:
    pool["endpoints"][0]["capacity"] = 1.0 + turn % 2


def _weight(pool: dict[str, Any], turn: int) -> None:
    for variant in pool["variants"]:
        variant["weight"] = 5 + turn % 2 if variant["name"] == "canary" else 90


def _ramp(pool: dict[str, Any], turn: int) -> None:
    pool["slow_start"] = {"window": f"{20 + turn % 2}s"}


def _limit(pool: dict[str, Any], turn: int) -> None:
    pool["circuit_breaker"] = {"max_requests": 500 + turn % 2}


CHANNELS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "EDS: an endpoint's weight": _endpoint,
    "RTDS: a variant's weight": _weight,
    "CDS: a slow-start window": _ramp,
    "RTDS: a breaker's limit": _limit,
}


ELAPSED: Final = re.compile(r"publication_ended .*\belapsed_ms=([0-9.]+)")


async def envoy(changes: int) -> Table:
    """Measure changes with one real Envoy and one picker.

    From the call, from when the server has taken it, and from the first message to a client.
    """
    table = Table(title=f"{changes} changes each, one Envoy and one picker; ms, p50 / p99")
    for column in (
        "change",
        "channels",
        "call to last ACK",
        "taken to last ACK",
        "sent to last ACK",
    ):
        table.add_column(column)
    options = admin_pb2.ChangeOptions(wait=True, timeout_seconds=20)
    async with instant_upstreams(3) as addresses:
        replicas = [
            TritonReplica(name=f"u{n}", http=one, grpc=one, metrics=one)
            for n, one in enumerate(addresses, 1)
        ]
        async with (
            LocalStack(replicas=replicas, models=("toy-llm",), concurrency=1) as stack,
            grpc.aio.insecure_channel(stack.admin_address) as channel,
        ):
            operator = admin_pb2_grpc.AdminStub(channel)
            fleet = stack.read_fleet()
            fleet["pools"][0]["endpoints"][-1]["variant"] = "canary"
            log = stack.run.logs / f"{CONTROL_SERVER}.log"
            for name, change in CHANNELS.items():
                whole, inside, channels = [], [], set()
                for turn in range(1, changes + 1):
                    change(fleet["pools"][0], turn)
                    request = admin_pb2.ApplyRequest(
                        fleet=orjson.dumps(fleet).decode(), options=options
                    )
                    start = time.perf_counter()
                    result = await operator.Apply(request)
                    whole.append((time.perf_counter() - start) * 1000)
                    inside.append(result.elapsed_ms)
                    channels.update(result.channels)
                    if result.acked != result.clients:
                        raise RuntimeError(str(result))
                used = ", ".join(sorted(channels))
                sent = [float(each) for each in ELAPSED.findall(log.read_text())][-changes:]
                table.add_row(name, used, *(percentiles(each) for each in (whole, inside, sent)))
    return table


# --- Many simulated clients -----------------------------------------------------------------------


async def _client(channel: Any, node: str, counts: Any) -> None:
    call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
    for type_url in TYPES:
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url)
        request.node.id = node
        if type_url in {ENDPOINT_TYPE, ROUTE_TYPE, RUNTIME_TYPE}:
            request.resource_names_subscribe.append("*")
        await call.write(request)
    while (response := await call.read()) is not grpc.aio.EOF:
        counts[0] += response.ByteSize()
        await call.write(
            discovery_pb2.DeltaDiscoveryRequest(
                type_url=response.type_url, response_nonce=response.nonce
            )
        )


def clients_process(address: str, count: int, counts: Any) -> None:
    """Run simulated clients until the process is terminated."""

    async def every() -> None:
        channels = [
            grpc.aio.insecure_channel(
                address,
                options=[
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.max_receive_message_length", -1),
                ],
            )
            for _ in range(-(-count // STREAMS_PER_CHANNEL))
        ]
        await asyncio.gather(
            *(_client(channels[n // STREAMS_PER_CHANNEL], f"sim-{n}", counts) for n in range(count))
        )

    asyncio.run(every())


def simulated_fleet(pools: int, endpoints: int) -> dict[str, Any]:
    """Return a fleet of pools with two clusters each."""
    each = endpoints // pools
    return {
        "pools": [
            {
                "name": f"p{p}",
                "match": {"models": [f"m{p}"]},
                "variants": [{"name": "stable", "weight": 90}, {"name": "canary", "weight": 10}],
                "endpoints": [
                    {
                        "id": f"r{p}-{n}",
                        "http": f"10.{p % 250}.{n // 250}.{n % 250 + 1}:{8000 + p // 250}",
                        "variant": "canary" if n == 0 else "stable",
                    }
                    for n in range(each)
                ],
            }
            for p in range(pools)
        ]
    }


def rss_mb() -> float:
    """Return the resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def _synced(ads: AdsServer, count: int) -> None:
    """Wait until so many clients hold all that is in force.

    Raises:
        TimeoutError: They do not within ``ALL_SYNCED_S``.
    """
    async with asyncio.timeout(ALL_SYNCED_S):
        while True:
            views = ads.clients()
            found = [len(c.types) == len(TYPES) for c in views]
            if sum(found) == count and all(v.state == "SYNCED" for c in views for v in c.types):
                return
            await asyncio.sleep(LOOK_S)


async def many(count: int, pools: int, endpoints: int, changes: int) -> tuple[str, ...]:
    """Measure one number of clients; return a table row, see ``HEADS``.

    Raises:
        TimeoutError: Not all clients held a change within ``ALL_SYNCED_S``.
    """
    ads, store = AdsServer(XdsMetrics(CollectorRegistry())), RevisionStore(None)
    control = Control(store, ads, lambda: int(time.time() * 1000), time.monotonic)
    address = await ads.start("127.0.0.1:0")
    fleet = simulated_fleet(pools, endpoints)
    await control.start(orjson.dumps(fleet).decode(), "bench")
    counts = multiprocessing.get_context("spawn").Array("Q", 1)
    process = multiprocessing.get_context("spawn").Process(
        target=clients_process, args=(address, count, counts), daemon=True
    )
    process.start()
    try:
        await _synced(ads, count)
        row, late = [f"{count}", f"{2 * pools}", f"{endpoints}"], 0
        for change in (_endpoint, _weight):
            took, cpu, sent = [], time.process_time(), counts[0]
            for turn in range(1, changes + 1):
                change(fleet["pools"][turn % pools], (turn - 1) // pools + 1)
                wanted = Fleet.model_validate(fleet)
                result = await control.apply(wanted, ChangeOptions(wait=True))
                outcome = result.outcome
                if outcome is None or outcome.state != "done":
                    raise RuntimeError(str(outcome))
                ended = time.perf_counter()
                if outcome.acked < count:
                    late = max(late, count - outcome.acked)
                    await _synced(ads, count)
                more_s = time.perf_counter() - ended
                took.append(((outcome.elapsed_s or 0.0) + more_s) * 1000)
            cpu = (time.process_time() - cpu) / changes * 1000
            row += [percentiles(took), f"{cpu:.0f}", f"{(counts[0] - sent) / changes / 1000:.1f}"]
        gc.collect()
        return (*row, f"{rss_mb():.0f}", f"{late}")
    finally:
        process.kill()
        process.join()
        await ads.stop(0)
        await control.stop()
        store.close()


async def alone(size: Size, changes: int, limit_s: float) -> tuple[str, ...]:
    """Measure one size in a process of its own; return a table row, see ``HEADS``.

    Args:
        size: The size.
        changes: Number of changes of each kind.
        limit_s: After this time, in seconds, it is cut, and the row says so.
    """
    words = zip(("--clients", "--pools", "--endpoints"), map(str, size), strict=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.control", "clients", "--json"),
        *itertools.chain(*words),
        *("--changes", str(changes)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # with the process of the clients
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
        row = orjson.loads(output.splitlines()[-1]) if process.returncode == 0 else None
        missing = f"failed: {process.returncode}"
    except TimeoutError:
        row, missing = None, f"not done in {limit_s:g} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    head = (str(size.clients), str(2 * size.pools), str(size.endpoints))
    return tuple(row) if row else (*head, missing, *[""] * (len(HEADS) - len(head) - 1))


async def clients(args: argparse.Namespace, console: Console) -> None:
    """Measure each size and print the result at once."""
    table = Table(title="simulated delta clients")
    for column in HEADS:
        table.add_column(column, justify="right")
    for size in sizes(args.clients, args.pools, args.endpoints):
        row = await many(*size, args.changes)
        if args.json:
            print(orjson.dumps(row).decode(), flush=True)
            continue
        console.print(row)
        table.add_row(*row)
    if not args.json:
        console.print(table)


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("envoy", "clients"))
    parser.add_argument("--changes", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    parser.add_argument("--clients", type=int, nargs="+", default=[*CLIENTS])
    parser.add_argument("--pools", type=int, nargs="+", default=[50])
    parser.add_argument("--endpoints", type=int, nargs="+", default=[1000])
    args = parser.parse_args()
    logs.configure("console", "error")
    console = Console(width=140)
    if args.what == "envoy":
        console.print(asyncio.run(envoy(args.changes or 200)))
    else:
        args.changes = args.changes or 10
        asyncio.run(clients(args, console))


if __name__ == "__main__":
    main()
