"""Cost of a change on the control server, split into its fixed part and its part per client.

    python bench/control_cost.py fixed [--sizes 10x40 50x200 200x800 1x10000 50x10000 200x10000]
    python bench/control_cost.py echo  [--clients 100]

``fixed`` makes changes without clients and measures the CPU time of each step: loading an edited
fleet file in which one endpoint differs, judging and comparing, planning, storing (in memory) and
publishing. A size is POOLSxENDPOINTS. ``echo`` measures the CPU time of a bare server that writes
one small message to each client's stream and reads the answer: the floor of the part per client.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from envoy.service.discovery.v3 import discovery_pb2
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.table import Table

from bench.control import clients_process, simulated_fleet
from tidegate_api.names import ENDPOINT_TYPE
from tidegate_common import logs
from xds_server.control.operation import FleetText, stepped
from xds_server.control.rollout import Rollout
from xds_server.fleet.change import set_draining, set_weights
from xds_server.fleet.revision import FleetState, Revision, following
from xds_server.fleet.store import RevisionStore
from xds_server.observability import XdsMetrics
from xds_server.protocol.wire import ADS_SERVICE
from xds_server.server.port import SERVER_OPTIONS
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from xds_server.control.operation import Step

SIZES: Final = ((10, 40), (50, 200), (200, 800), (1, 10_000), (50, 10_000), (200, 10_000))
STEPS: Final = ("load", "judge and compare", "plan", "store", "publish")
HEADS: Final = ("pools", "endpoints", "change", *(f"{step}, ms" for step in STEPS), "all, ms")
ECHO_BYTES: Final = 300
"""Size of a small endpoint change's message."""


def file_of(fleet: dict[str, Any]) -> str:
    """Return a fleet as a YAML file, in the form in which people write it."""
    lines = ["pools:"]
    for pool in fleet["pools"]:
        lines += [f"- name: {pool['name']}", f"  match: {{models: {pool['match']['models']}}}"]
        lines += ["  variants:", "  - {name: stable, weight: 90}", "  - {name: canary, weight: 10}"]
        lines.append("  endpoints:")
        for each in pool["endpoints"]:
            lines += [f"  - id: {each['id']}", f"    http: {each['http']}"]
            lines += [f"    {key}: {each[key]}" for key in ("variant", "capacity") if key in each]
    return "\n".join(lines) + "\n"


class Server:
    """The changing part of a control server, without transport."""

    def __init__(self) -> None:
        self.store = RevisionStore(None)
        self.rollout = Rollout(AdsServer(XdsMetrics(CollectorRegistry())), seed=7)
        self.state: FleetState | None = None

    def change(self, wanted: FleetText | Step) -> list[float]:
        """Make one change; return the CPU time of each step, ms."""
        number = 1 if self.state is None else self.state.revision.number + 1
        times = [time.process_time()]

        def done() -> None:
            times.append(time.process_time())

        step = wanted.load() if isinstance(wanted, FleetText) else wanted
        done()
        fleet, lines = stepped(step, self.state)
        revision = Revision(number, 1, "bench", "", lines)
        file = getattr(step, "file", None)
        state = following(self.state, fleet, revision, file)
        done()
        planned = self.rollout.plan(state, self.rollout.acknowledged())
        done()
        self.store.append(state)
        done()
        self.rollout.publish(state, planned)
        done()
        self.state = state
        return [(after - before) * 1000 for before, after in itertools.pairwise(times)]


async def fixed(pools: int, endpoints: int, changes: int = 5) -> list[list[str]]:
    """Measure changes of one size; return a table row per kind of change: medians."""
    raw, server = simulated_fleet(pools, endpoints), Server()
    server.change(FleetText(file_of(raw), "bench", is_file=True))
    kinds: dict[str, list[list[float]]] = {"edited file": [], "weight": [], "drain": []}
    for turn in range(1, changes + 1):
        at = turn * 7 % pools
        raw["pools"][at]["endpoints"][turn % 4]["capacity"] = 1 + turn
        text = FleetText(file_of(raw), "bench", is_file=True)
        kinds["edited file"].append(server.change(text))
        weights = {"stable": 90, "canary": 10 + turn}
        kinds["weight"].append(
            server.change(lambda live, at=at, to=weights: set_weights(live, f"p{at}", to))
        )
        replica = f"p{at}/r{at}-{turn % 3 + 1}"
        kinds["drain"].append(
            server.change(lambda live, it=replica, on=bool(turn % 2): set_draining(live, it, on))
        )
    server.store.close()
    return [
        [
            f"{pools}",
            f"{endpoints:,}",
            kind,
            *(f"{statistics.median(step):.1f}" for step in zip(*rows, strict=True)),
            f"{statistics.median(map(sum, rows)):.1f}",
        ]
        for kind, rows in kinds.items()
    ]


async def echo(count: int, rounds: int = 10) -> float:
    """Return the CPU time of a bare server per message and answer, microseconds."""
    streams: list[Any] = []
    ready, answers = asyncio.Event(), 0
    response = discovery_pb2.DeltaDiscoveryResponse(
        type_url=ENDPOINT_TYPE, nonce="x" * ECHO_BYTES
    ).SerializeToString()

    async def serve(_: Any, context: Any) -> None:
        nonlocal answers
        for _ in range(5):  # the simulated client's first requests
            await context.read()
        streams.append(context)
        if len(streams) == count:
            ready.set()
        while await context.read() is not grpc.aio.EOF:
            answers += 1

    server = grpc.aio.server(options=SERVER_OPTIONS)
    parse = discovery_pb2.DeltaDiscoveryRequest.FromString
    handler = grpc.stream_stream_rpc_method_handler(serve, parse, lambda data: data)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(ADS_SERVICE, {"DeltaAggregatedResources": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    context = multiprocessing.get_context("spawn")
    counts = context.Array("Q", 1)
    process = context.Process(
        target=clients_process,
        args=(f"127.0.0.1:{port}", count, counts),
        daemon=True,
    )
    process.start()
    try:
        async with asyncio.timeout(60):
            await ready.wait()
            began = time.process_time()
            for turn in range(1, rounds + 1):
                await asyncio.gather(*(stream.write(response) for stream in streams))
                while answers < turn * count:  # noqa: ASYNC110 - counted by other tasks
                    await asyncio.sleep(0.001)
        return (time.process_time() - began) / rounds / count * 1e6
    finally:
        process.kill()
        process.join()
        await server.stop(0)


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("fixed", "echo"))
    parser.add_argument("--sizes", nargs="+", default=[f"{p}x{e}" for p, e in SIZES])
    parser.add_argument("--clients", type=int, default=100)
    args = parser.parse_args()
    logs.configure("console", "error")
    console = Console(width=140)
    if args.what == "echo":
        console.print(f"{asyncio.run(echo(args.clients)):.0f} us per message and answer")
        return
    table = Table(title="CPU time of one change, medians")
    for head in HEADS:
        table.add_column(head, justify="right")
    for size in args.sizes:
        pools, endpoints = map(int, size.split("x"))
        for row in asyncio.run(fixed(pools, endpoints)):
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
