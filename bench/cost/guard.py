"""Guard of the cost of a request in the picker: ``python bench/cost/guard.py [--write]``.

Times are noisy on a shared machine; the number of executed bytecodes is not. The guard counts the
bytecodes of the picker's Python code while it parses requests, decides, runs whole exchanges from
the first message to the last reply without gRPC, and takes entries of the access log. It counts one
more exchange over an in-memory connection of the fast transport if the extra ``fast`` is installed.
Each count may exceed its budget in ``bench/cost/guard.json`` by at most 10 %. C code executes no
bytecodes, so the parsing of messages is timed relative to a loop of fixed work, alternating, the
best of many.

Counts depend on the minor version of Python. There are budgets for the measured versions; with
another one nothing is compared, and the output says so. After an intended change of the cost, write
new budgets with ``--write`` and give the reason in the commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from bench.cost.access_log import router_of, service_of, written
from bench.cost.bare_picker import BODIES, Scripted, messages
from ext_proc.observability.metrics import Metrics
from ext_proc.requests import prompt_blocks, read_body, read_head
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from ext_proc.server.service import PickerServer
from ext_proc.server.transport import named
from ext_proc.server.wire import event_of, parse_request
from support.streams import CHAT_PATH, INFER_PATH, llm, replicas, router

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

BUDGETS = Path(__file__).with_name("guard.json")
SLACK = 1.10
"""Allowed factor of a count over its budget."""
RATIO_SLACK = 1.30
"""Allowed factor of a time ratio over its budget."""
WARM, COUNTED = 64, 32
STEP_S = 0.001
"""Seconds between two readings of the clock: decisions that are far apart are explained each."""
ENDPOINTS = 8
DEFAULTS: dict[str, Any] = {"limit": "auto", "hold_s": 10.0}
"""Settings of a pool by default that the picker's values do not have by themselves."""
OURS = "ext_proc"
CARRIED = "carried peek"
"""Measured only where the extra ``fast`` is installed."""


class Bytecodes:
    """Counts the executed bytecodes of the project's code; a context manager."""

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            # Code that the standard library generates (dataclasses) has no file.
            name = frame.f_globals.get("__name__", "")
            if not name.startswith(OURS) and frame.f_code.co_filename != "<string>":
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.count += 1
        return self._trace

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def counted(work: Callable[[int], object]) -> int:
    """Return the mean bytecodes of one call of ``work`` after a warm-up."""
    for number in range(WARM):
        work(number)
    with Bytecodes() as found:
        for number in range(WARM, WARM + COUNTED):
            work(number)
    return round(found.count / COUNTED)


def _text(number: int) -> str:
    return f"question {number}: " + "what does the tide gauge say at noon? " * 50


def reading() -> dict[str, int]:
    """Count the parsing of a head and a body, by form."""
    chat = [{"role": "system", "content": _text(0)}, {"role": "user", "content": _text(1)}]
    bodies = {
        "generate": (INFER_PATH, {"text_input": _text(0), "max_tokens": 16}),
        "chat": (CHAT_PATH, {"model": "toy-llm", "messages": chat, "stream": True}),
    }

    def read(path: str, body: bytes) -> object:
        features = read_body(read_head("POST", path, {}), {}, body, complete=True)
        return prompt_blocks(features, 256)

    found = {}
    for name, (path, document) in bodies.items():
        body = json.dumps(document).encode()
        found[f"read {name}"] = counted(lambda _, path=path, body=body: read(path, body))  # type: ignore[misc]  # default binds
    return found


def deciding() -> dict[str, int]:
    """Count a decision with its settlement, with few and many endpoints."""
    found = {}
    for endpoints in (ENDPOINTS, 256):
        picker_router = router(llm(endpoints=replicas(endpoints), **DEFAULTS))

        def decide(number: int, picker_router: Any = picker_router) -> None:
            blocks = tuple(hash((number % 8, depth)) for depth in range(8))
            features = Features(Form.GENERATE, model="toy-llm", prompt=b"x" * 2048)
            request = Request("llm", "stable", "http", features, blocks)
            decision = picker_router.decide(request, number * STEP_S, number * STEP_S)
            if not isinstance(decision, Decision) or decision.ticket is None:
                raise TypeError(f"no pick: {decision}")
            picker_router.settle(decision.ticket, Outcome.DONE, (number + 0.5) * STEP_S)

        found[f"decide among {endpoints}"] = counted(decide)
    return found


def _server(mode: str) -> PickerServer:
    """Return a picker with deterministic clocks."""
    return PickerServer(
        router(llm(body=BODIES[mode], endpoints=replicas(ENDPOINTS), **DEFAULTS)),
        picker="guard",
        metrics=Metrics(CollectorRegistry()),
        clock=(number * STEP_S for number in range(10**9)).__next__,
        wall_clock=lambda: 0.0,
    )


def exchanging() -> dict[str, int]:
    """Count whole exchanges, by body mode."""
    loop = asyncio.new_event_loop()
    found = {}
    for mode in BODIES:
        server = _server(mode)
        streams = [messages(mode, _text(number)) for number in range(8)]

        def exchange(number: int, server: Any = server, streams: Any = streams) -> None:
            loop.run_until_complete(server.process(None, Scripted(streams[number % 8])))

        found[f"exchange {mode}"] = counted(exchange)
    loop.close()
    return found


def logging() -> dict[str, int]:
    """Count an entry of the access log of a request that ended well."""
    loop = asyncio.new_event_loop()
    entries, rng = 24, random.Random(1)  # noqa: S311 - a repeatable load
    logs = service_of(router_of(ENDPOINTS), CollectorRegistry())
    data = [written(entries, ENDPOINTS, rng) for _ in range(8)]
    found = counted(lambda number: loop.run_until_complete(logs.take(data[number % 8])))
    loop.close()
    return {"log entry": found // entries}


def carrying() -> dict[str, int]:
    """Count a whole exchange over a connection of the fast transport."""
    if named("auto") != "nghttp2":
        return {}
    from bench.cost.in_memory import Carried  # noqa: PLC0415 - an extra

    server = _server("peek")
    streams = [messages("peek", _text(number)) for number in range(8)]
    loop = asyncio.new_event_loop()
    carried = loop.run_until_complete(Carried.begin(server))
    found = counted(lambda number: loop.run_until_complete(carried.exchange(streams[number % 8])))
    loop.run_until_complete(carried.end())
    loop.close()
    return {CARRIED: found}


def parsing(rounds: int = 600, calls: int = 200) -> float:
    """Return the cost of parsing and converting a head, in units of a loop of fixed work."""
    data = messages("none", "")[0]

    def reference() -> None:
        for _ in range(calls):
            dict.fromkeys(data, 0)

    def parse() -> None:
        for _ in range(calls):
            event_of(parse_request(data))

    def best(work: Callable[[], None]) -> float:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin

    pairs = [(best(parse), best(reference)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs)


def measure() -> dict[str, float]:
    """Return all counts, and the ratio."""
    return {
        **reading(),
        **deciding(),
        **exchanging(),
        **logging(),
        **carrying(),
        "parse ratio": round(parsing(), 2),
    }


@dataclass(frozen=True)
class CostVerdict:
    """One figure and its budget."""

    name: str
    found: float
    budget: float | None

    @property
    def kept(self) -> bool:
        """Whether the figure is within its budget; true without a budget."""
        slack = RATIO_SLACK if self.name.endswith("ratio") else SLACK
        return self.budget is None or self.found <= self.budget * slack

    def __str__(self) -> str:
        budget = "no budget" if self.budget is None else f"budget {self.budget:g}"
        mark = "" if self.kept else "  TOO MUCH"
        return f"{self.name:<20}{self.found:>10g}  {budget}{mark}"


def judge(found: Mapping[str, float], budgets: Mapping[str, float]) -> list[CostVerdict]:
    """Compare figures with their budgets."""
    return [CostVerdict(name, value, budgets.get(name)) for name, value in found.items()]


def stale(found: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """Return the budgets that no figure has: their work was renamed and would go unguarded."""
    skipped = () if named("auto") == "nghttp2" else (CARRIED,)
    return sorted(set(budgets) - set(found) - set(skipped))


def main() -> int:
    """Measure, then compare or write budgets; return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="write the measured figures as budgets"
    )
    args = parser.parse_args()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    every = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    found = measure()
    if args.write:
        every[version] = found
        BUDGETS.write_text(json.dumps(every, indent=2) + "\n")
    if version not in every:
        print(f"no budgets for Python {version}: write them with --write")
    verdicts = judge(found, every.get(version, {}))
    for verdict in verdicts:
        print(verdict)
    unguarded = stale(found, every.get(version, {}))
    if unguarded:
        print(f"budgets without a figure: {', '.join(unguarded)}; remove or rename them")
        return 1
    if all(verdict.kept for verdict in verdicts):
        return 0
    print("over budget: reduce the cost, or write a new budget and give the reason")
    return 1


if __name__ == "__main__":
    sys.exit(main())
