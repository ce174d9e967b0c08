"""Cost of additional workers: one picker process compared with several, in one run.

    python -m bench.workers [--workers 2 4] [--seconds 3] [--rounds 4] [--connections 8]

Starts real stacks (control server, picker, Envoy with one thread) over instant upstreams, one with
a single picker process and one for each number of workers, and sends HTTP requests with changing
prompts to all of them alternately, so that all see the same machine load. Prints requests/s,
latency, CPU per request of Envoy and of all picker processes, and the ratio of the latter to one
process. ``--pace`` sets a rate (open loop) instead of the closed loop.

``--apart`` adds stacks with the same number of independent pickers. Their cost above one process is
the cost of several processes, each of which wakes up for fewer messages at a time; the cost of
workers above them is the cost of sharing state.

``--events`` measures that cost alone, without processes and sockets: CPU microseconds per request
for its decision and end in one worker's router, for the encoding of its events there, and for what
a peer does with them, by the requests that share a batch. Half of the prompts are known. To measure
the compiled picker (``make compiled``), set ``PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:.``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from bench.cost.decide import pool_of
from bench.load.upstream import instant_upstreams
from bench.overhead import OverheadSample, cpu_seconds, replicas
from ext_proc.compiled import compiled
from ext_proc.routing.router import Router
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from ext_proc.workers.account import Account
from ext_proc.workers.decode import Decoder
from ext_proc.workers.encode import Encoder
from ext_proc.workers.records import framed
from tidegate.stack.local import ENVOY, PICKER, PICKER_ID, LocalStack

UPSTREAMS = 3
PROMPTS = 512
"""Number of different prompts; groups of eight share their first half."""
PATH = "/v2/models/toy-llm/generate"

Which = tuple[int, bool]
"""Number of processes, and whether they are independent pickers."""
ONE: Which = (1, False)


class Apart(LocalStack):
    """A stack with independent pickers instead of workers."""

    def pids(self) -> list[int]:
        """Return the process ids of the pickers."""
        return [self.pid(_name(number)) for number in range(len(self.addresses.pickers))]

    async def _launch_picker(self) -> None:
        addresses = self.addresses
        each = zip(addresses.pickers, addresses.picker_pages, strict=True)
        for number, (listen, page) in enumerate(each):
            await self._launch_service(
                _name(number),
                "ext_proc",
                *("--listen", listen, "--metrics", page, "--xds", addresses.ads),
                *("--id", f"{PICKER_ID}-{number}"),
            )


def _name(number: int) -> str:
    return f"{PICKER}-{number}" if number else PICKER


def requests(body_bytes: int, rng: random.Random) -> list[bytes]:
    """Return requests whose prompts share their first half in groups of eight."""
    made = []
    for number in range(PROMPTS):
        group = random.Random(number // 8)  # noqa: S311 - a prompt, not a secret
        half = (body_bytes - 40) // 2
        text = "".join(group.choices("abcdefgh ", k=half)) + "".join(
            rng.choices("abcdefgh ", k=half)
        )
        body = orjson.dumps({"text_input": text, "max_tokens": 1})
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


async def client(
    address: str, every: list[bytes], until: float, pause_s: float, latencies: list[float]
) -> None:
    """Send sequential requests on one connection until the time ``until``."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    rng = random.Random(port)  # noqa: S311 - which prompt is next
    due = time.perf_counter() + rng.random() * pause_s
    try:
        while (start := time.perf_counter()) < until:
            if pause_s:
                await asyncio.sleep(due - start)
                start, due = due, due + pause_s  # latency counts from the intended start
            writer.write(rng.choice(every))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode("latin-1"))
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            latencies.append(time.perf_counter() - start)
    finally:
        writer.close()


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [pid, *map(int, listed.split())]


async def measure(
    stack: LocalStack,
    every: list[bytes],
    args: argparse.Namespace,
    seconds: float,
    into: OverheadSample,
) -> None:
    """Load one stack and add the measurements to ``into``."""
    pickers = stack.pids() if isinstance(stack, Apart) else family(stack.pid(PICKER))
    pids = {ENVOY: [stack.pid(ENVOY)], PICKER: pickers}
    before = {name: sum(map(cpu_seconds, each)) for name, each in pids.items()}
    pause_s = args.connections / args.pace if args.pace else 0.0
    start = time.perf_counter()
    await asyncio.gather(
        *(
            client(stack.http_address, every, start + seconds, pause_s, into.latencies)
            for _ in range(args.connections)
        )
    )
    into.seconds += time.perf_counter() - start
    for name, each in pids.items():
        used = sum(map(cpu_seconds, each)) - before[name]
        into.cpu[name] = into.cpu.get(name, 0.0) + used


async def run(args: argparse.Namespace) -> None:
    """Measure all stacks and print the results."""
    every = requests(args.body, random.Random(1))  # noqa: S311 - repeats
    change = {"pools": {"llm": {"routing": {"body": "peek"}}}}
    wanted: list[Which] = [ONE]
    for count in args.workers:
        wanted += [(count, False), *([(count, True)] if args.apart else [])]
    options: dict[str, Any] = {"fleet": change, "concurrency": 1, "models": ("toy-llm",)}
    async with instant_upstreams(2 * UPSTREAMS) as addresses:
        each = replicas(addresses)
        async with AsyncExitStack() as running:
            stacks = {
                (count, apart): await running.enter_async_context(
                    (Apart if apart else LocalStack)(replicas=each, workers=count, **options)
                )
                for count, apart in wanted
            }
            samples = {which: OverheadSample() for which in stacks}
            ratios: dict[Which, list[float]] = {which: [] for which in wanted[1:]}
            for stack in stacks.values():
                await measure(stack, every, args, 1.0, OverheadSample())
            for turn in range(args.rounds):
                costs = {}
                for which in sorted(stacks, reverse=bool(turn % 2)):
                    one = OverheadSample()
                    await measure(stacks[which], every, args, args.seconds, one)
                    costs[which] = one.cpu_us(PICKER)
                    _add(samples[which], one)
                for which, found in ratios.items():
                    found.append(costs[which] / costs[ONE])
    if args.json:
        print(json.dumps(summary(samples, ratios, args)))
        return
    Console().print(table(samples, args))
    for which, found in ratios.items():
        Console().print(
            f"picker CPU per request, {named(which)} against one: median of {len(found)}"
            f" rounds {statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})"
        )


def named(which: Which) -> str:
    """Return the name of a configuration."""
    count, apart = which
    return f"{count} pickers apart" if apart else f"{count} workers"


def _add(total: OverheadSample, one: OverheadSample) -> None:
    total.latencies += one.latencies
    total.seconds += one.seconds
    for name, used in one.cpu.items():
        total.cpu[name] = total.cpu.get(name, 0.0) + used


def summary(
    samples: dict[Which, OverheadSample], ratios: dict[Which, list[float]], args: argparse.Namespace
) -> dict[str, object]:
    """Return the results as JSON-serializable data."""
    return {
        "connections": args.connections,
        "body_bytes": args.body,
        "pace": args.pace,
        "cpu_ratio": statistics.median(ratios[args.workers[0], False]),
        "cpu_ratios": ratios[args.workers[0], False],
        "cpu_ratios_apart": ratios.get((args.workers[0], True)),
        "by_workers": {
            str(count): {
                "requests_per_s": len(sample.latencies) / sample.seconds,
                "p50_ms": sample.percentile(0.5),
                "p99_ms": sample.percentile(0.99),
                "envoy_us": sample.cpu_us(ENVOY),
                "picker_us": sample.cpu_us(PICKER),
            }
            for (count, apart), sample in samples.items()
            if not apart
        },
    }


def table(samples: dict[Which, OverheadSample], args: argparse.Namespace) -> Table:
    """Return the table of the samples."""
    loop = f"{args.pace:g} requests/s" if args.pace else "closed loop"
    result = Table(title=f"{args.connections} connections, {args.body} B bodies, peek, {loop}")
    for column in ("pickers", "req/s", "p50 ms", "p99 ms", "Envoy µs", "pickers µs"):
        result.add_column(column, justify="right")
    for which, sample in samples.items():
        result.add_row(
            "one" if which == ONE else named(which),
            f"{len(sample.latencies) / sample.seconds:.0f}",
            f"{sample.percentile(0.5):.2f}",
            f"{sample.percentile(0.99):.2f}",
            f"{sample.cpu_us(ENVOY):.0f}",
            f"{sample.cpu_us(PICKER):.0f}",
        )
    return result


def sharing(blocks: int, count: int = 1_500, *, batch: int) -> list[float]:
    """Return CPU seconds of ``count`` requests: decided and settled, encoded, applied by a peer."""
    events: list[Any] = []
    pool, rng = pool_of(8, "auto"), random.Random(1)  # noqa: S311 - repeatable
    own, peer = Router(random.Random(1), on_event=events.append), Router(random.Random(1))  # noqa: S311 - repeatable
    for router in (own, peer):
        router.set_pools({pool.name: pool}, 0.0)
    account, encoder, decoder = Account(), Encoder(), Decoder()
    known = [[rng.getrandbits(62) for _ in range(blocks)] for _ in range(64)]
    features = Features(Form.GENERATE, model="llm", prompt=bytes(blocks * 256))
    spent = [0.0, 0.0, 0.0]
    for number in range(count):
        now, prompt = number * 0.003, list(rng.choice(known))
        if number % 2:
            prompt[blocks // 2 :] = [rng.getrandbits(62) for _ in prompt[blocks // 2 :]]
        request = Request(pool.name, "stable", "http", features, tuple(prompt))
        begin = time.thread_time()
        decision: Any = own.decide(request, now, now)
        own.trials.confirm(decision.ticket.id, decision.ticket.endpoint)
        own.settle(decision.ticket, Outcome.DONE, now + 0.02)
        spent[0] += time.thread_time() - begin
        if number % batch:
            continue
        begin = time.thread_time()
        for event in events:
            for message in account.take(event, now):
                encoder.put(message)
        for message in account.sums():
            encoder.put(message)
        frame = framed(encoder.batch)
        encoder.batch.clear()
        between = time.thread_time()
        events.clear()
        received: Any
        for received in decoder.feed(frame):
            peer.peers.follow(0, received, now)
        spent[1] += between - begin
        spent[2] += time.thread_time() - between
    return [each / count for each in spent]


def show_sharing(rounds: int) -> None:
    """Print the least of several rounds, by length of prompt."""
    print(f"compiled: {'yes' if compiled() else 'no'}; microseconds of CPU a request")
    print(f"{'blocks':<10}{'batch':<10}{'decided':>10}{'encoded':>10}{'applied':>10}")
    for blocks, batch in ((8, 1), (8, 3), (8, 12), (128, 3)):
        rows = [sharing(blocks, batch=batch) for _ in range(rounds)]
        least = [min(column) * 1e6 for column in zip(*rows, strict=True)]
        print(f"{blocks:<10}{batch:<10}" + "".join(f"{each:>10.1f}" for each in least))


def main() -> None:
    """Parse the command line and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2], help="numbers of workers, each above 1"
    )
    parser.add_argument("--apart", action="store_true", help="add independent pickers")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per stack and round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--body", type=int, default=2048, help="bytes of each request's body")
    parser.add_argument("--pace", type=float, default=0.0, help="requests/s; 0 = closed loop")
    parser.add_argument("--json", action="store_true", help="print only JSON")
    parser.add_argument("--events", action="store_true", help="measure the events alone")
    args = parser.parse_args()
    if args.events:
        show_sharing(args.rounds)
    else:
        asyncio.run(run(args))


if __name__ == "__main__":
    main()
