"""The demo after its phases: a live table, commands to copy, a trickle of requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from typing import TYPE_CHECKING, Final

import aiohttp
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tidegate.demo.clients import AnswerError, fetch_text
from tidegate.demo.counters import ReplicaCounters, Seen, read_counts, read_replicas
from tidegate.demo.load import Tally
from tidegate.demo.report import percent
from tidegate.terminal.output import command_line, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from tidegate.demo.clients import Clients
    from tidegate.demo.scene import Scene
    from tidegate.stack.local import LocalStack
    from tidegate.stack.tritons.replica import TritonReplica

PERIOD_S: Final = 0.5
_GONE = (aiohttp.ClientError, AnswerError, TimeoutError)

PAUSE_S: Final = 0.4
"""Seconds between two requests."""
TOPICS: Final = 8
"""Prompts that are repeated, so that some of them are cached."""
VISION_EVERY: Final = 4
TOKENS: Final = 8


async def stay(out: Console, scene: Scene, stop: asyncio.Event) -> None:
    """Keep a trickle of requests until ``stop`` is set; on a terminal, show the live table."""
    out.print(examples(scene.stack), markup=False, soft_wrap=True)
    tally = Tally()
    requests = asyncio.create_task(trickle(asking(scene.clients), stop, tally))
    try:
        if out.is_terminal:
            await _show(out, scene, stop, tally)
        else:
            await stop.wait()
    finally:
        requests.cancel()
        await asyncio.gather(requests, return_exceptions=True)
    out.print(told(tally), markup=False, soft_wrap=True)


async def _show(out: Console, scene: Scene, stop: asyncio.Event, tally: Tally) -> None:
    start = await _counts(scene)
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while not stop.is_set():
            rows = replica_table(scene.replicas, await _seen(scene), start, await _counts(scene))
            live.update(Group(rows, Text(told(tally))), refresh=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PERIOD_S)


def replica_table(
    replicas: Sequence[TritonReplica],
    seen: Mapping[str, Seen] | None,
    start: Mapping[str, ReplicaCounters | None],
    now: Mapping[str, ReplicaCounters | None],
) -> Table:
    """Return the table of replicas from the picker's and the replicas' data; unknown is ``-``."""
    served = {one.name: _served(now[one.name], start[one.name]) for one in replicas}
    total = sum(count for count in served.values() if count)
    rows = []
    for one in replicas:
        load = seen.get(one.name) if seen is not None else None
        count = served[one.name]
        state = "in use" if load is not None and not load.draining else "draining"
        if now[one.name] is None:
            state = "down"
        elif load is None:
            state = "picker unknown"
        rows.append(
            (
                one.name,
                one.variant,
                state,
                load.in_flight if load else None,
                load.queued if load else None,
                percent(load.cache) if load else None,
                count,
                percent(count / total) if count is not None and total else None,
            )
        )
    columns = ("replica", "variant", "state", "#in flight", "#queue", "#cache", "#served", "#share")
    return table(columns, rows)


def examples(stack: LocalStack) -> str:
    """Return addresses, and lines that a POSIX shell runs as they stand, in any folder."""
    return f"{addresses(stack)}\n{commands(stack)}"


def addresses(stack: LocalStack) -> str:
    """Return the addresses of the parts."""
    return f"""
up, with a trickle of requests; Ctrl-C stops everything. Logs and configuration: {stack.run.path}
  Envoy (HTTP and gRPC)  {stack.http_address}
  Envoy admin page       http://{stack.envoy_admin}
  picker's pages         http://{stack.picker_metrics}/metrics and /debug/state
"""


def commands(stack: LocalStack) -> str:
    """Return requests and commands to paste, in their order.

    They call the Python and the ``tidegate`` of this installation, which need not be on the PATH.
    """
    tidegate = shlex.join(command_line())
    return f"""\
curl -s {stack.http_url}/v2/models/toy-llm/generate \\
  -d '{{"text_input": "Which gate is open?", "max_tokens": 8}}'
curl -sN {stack.http_url}/v2/models/toy-llm/generate_stream \\
  -d '{{"text_input": "Which gate is open?", "max_tokens": 8, "stream": true}}'

{shlex.quote(sys.executable)} -P - <<'END'
import numpy, tritonclient.grpc as triton
image = triton.InferInput("image", [1, 3, 32, 32], "FP32")
image.set_data_from_numpy(numpy.zeros((1, 3, 32, 32), numpy.float32))
answer = triton.InferenceServerClient("{stack.grpc_address}").infer("vision", [image])
print(answer.as_numpy("scores"), answer.as_numpy("replica"))
END

export TIDEGATE_SERVER={stack.admin_address}
{tidegate} status
{tidegate} top --once
{tidegate} weight llm stable=80 canary=20
{tidegate} drain r1
"""


async def _seen(scene: Scene) -> dict[str, Seen] | None:
    try:
        page = await fetch_text(scene.pages, f"{scene.picker_url}/debug/state")
    except _GONE:
        return None
    return read_replicas(json.loads(page))


async def _counts(scene: Scene) -> dict[str, ReplicaCounters | None]:
    async def one(url: str) -> ReplicaCounters | None:
        try:
            return read_counts(await fetch_text(scene.pages, url))
        except _GONE:
            return None

    found = await asyncio.gather(*(one(replica.metrics_url) for replica in scene.replicas))
    return {replica.name: counts for replica, counts in zip(scene.replicas, found, strict=True)}


def _served(now: ReplicaCounters | None, start: ReplicaCounters | None) -> int | None:
    if now is None:
        return None
    return sum(now.since(start or ReplicaCounters()).served.values())


def asking(clients: Clients) -> Callable[[int], Awaitable[str]]:
    """Return what sends the request of a number: a prompt, each fourth an image."""

    async def ask(number: int) -> str:
        if number % VISION_EVERY == 0:
            return await clients.infer_http()
        prompt = f"Topic {number % TOPICS}: which gate is open, and for whom? " * 4
        return (await clients.generate(prompt, TOKENS)).replica

    return ask


async def trickle(
    ask: Callable[[int], Awaitable[str]],
    stop: asyncio.Event,
    tally: Tally,
    pause_s: float = PAUSE_S,
) -> None:
    """Send requests until ``stop`` is set.

    Rules:

    1. One request is in flight at a time; after each there is a pause of ``PAUSE_S``.
    2. A request that fails is counted, never raised: replicas may be killed or drained meanwhile.

    Args:
        ask: Sends the request of a number and returns the replica that answered.
        stop: Ends it after the request in flight.
        tally: Counts them.
        pause_s: Seconds between two requests.
    """
    number = 0
    while not stop.is_set():
        number += 1
        try:
            tally.by_replica[await ask(number)] += 1
        except Exception as error:  # noqa: BLE001 - see rule 2
            tally.fail(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause_s)


def told(tally: Tally) -> str:
    """Return what became of the requests, in one line."""
    failed = f", {tally.failed} failed (first: {tally.first_error})" if tally.failed else ""
    return f"a trickle of requests: {tally.answered} answered{failed}"
