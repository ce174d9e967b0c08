"""Suite ``scale``: what grows with what.

CPU per decision against endpoints, prefix blocks and pools; CPU per exchange against prompt size;
resident memory per open stream; CPU of the control server per change against the Envoys that follow
it; in the long form, CPU of telemetry per endpoint too. Growth is fitted as ``a * size ** b`` by
least squares on logarithms: b = 0 is flat, 1 is linear.
"""

from __future__ import annotations

import asyncio
import random
import time
from math import exp, log
from typing import TYPE_CHECKING, Any, Final

from bench.control import many
from bench.decide import microseconds, requests_of
from bench.suites.script import json_lines, output
from ext_proc.routing.router import Router
from ext_proc.routing.types import Decision, Endpoint, EndpointKey, Outcome, Pool, Request, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.suites.context import Context

ENDPOINTS: Final = (8, 64, 256, 1_000)
BLOCKS: Final = (4, 16, 64, 250)
POOLS: Final = (1, 10, 100, 500)
POLICY: Final = "auto"
USUAL_ENDPOINTS: Final = 8
USUAL_BLOCKS: Final = 16
CPU_COLUMN: Final = 4
"""Of ``bench.control.many``: CPU of an endpoint change."""
SOURCES: Final = {"scrape": "scraped", "push": "pushed"}


async def run(context: Context) -> dict[str, Any]:
    """Measure every axis."""
    context.say("scale: decisions")
    axes: dict[str, list[dict[str, float]]] = await asyncio.to_thread(_decisions)
    context.say("scale: prompt sizes")
    axes["prompt_bytes"] = []
    for size in (2_048, 8_192, 32_768, 131_072):
        few = ("--rounds", "2", "--count", context.pick("500", "1500"))
        for row in await json_lines("exchange.py", "--modes", "peek", "--body", f"{size}", *few):
            axes["prompt_bytes"].append({"size": size, "cost": row["picker_us"]})
    axes["streams"] = []
    for wanted in context.pick((100, 1_000, 4_000), (10, 100, 1_000, 10_000)):
        context.say(f"scale: {wanted} open streams")
        for row in await json_lines("exchange.py", "--modes", "peek", "--streams", f"{wanted}"):
            axes["streams"].append({"size": wanted, "cost": row["picker_kb"]})
    axes["envoys"] = []
    for count in context.pick((5, 50), (10, 100, 1_000)):
        context.say(f"scale: {count} Envoys")
        cells = await many(count, 10, 100, 4)
        axes["envoys"].append({"size": count, "cost": float(cells[CPU_COLUMN])})
    if context.full:
        context.say("scale: telemetry")
        axes |= telemetry_axes(await output("telemetry.py", "--seconds", "4"))
    return {
        "units": {
            "endpoints": "µs per decision",
            "blocks": "µs per decision",
            "pools": "µs per decision",
            "prompt_bytes": "µs per exchange",
            "streams": "kB per open stream",
            "envoys": "ms of CPU per endpoint change",
            "endpoints scraped": "µs of CPU per endpoint and second",
            "endpoints pushed": "µs of CPU per endpoint and second",
        },
        "axes": axes,
        "growth": {name: growth(rows) for name, rows in axes.items()},
    }


def growth(rows: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """Return ``a`` and ``b`` of ``cost = a * size ** b``; ``None`` of fewer than two sizes."""
    points = [(log(row["size"]), log(row["cost"])) for row in rows if row["cost"] > 0]
    if len({x for x, _ in points}) < 2:
        return None
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / sum(
        (x - middle_x) ** 2 for x, _ in points
    )
    return {"a": exp(middle_y - slope * middle_x), "b": slope}


def telemetry_axes(text: str) -> dict[str, list[dict[str, float]]]:
    """Return the rows of ``bench/telemetry.py``: cost per endpoint by source and endpoints."""
    axes: dict[str, list[dict[str, float]]] = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in SOURCES:
            axis = axes.setdefault(f"endpoints {SOURCES[words[0]]}", [])
            axis.append({"size": float(words[1]), "cost": float(words[5])})
    return axes


def _decisions() -> dict[str, list[dict[str, float]]]:
    return {
        "endpoints": [
            {"size": size, "cost": microseconds(size, USUAL_BLOCKS, POLICY)} for size in ENDPOINTS
        ],
        "blocks": [
            {"size": size, "cost": microseconds(USUAL_ENDPOINTS, size, POLICY)} for size in BLOCKS
        ],
        "pools": [{"size": size, "cost": _in_pools(size)} for size in POOLS],
    }


def _in_pools(count: int) -> float:
    """Return CPU microseconds of a decision with its settling, requests spread over pools."""
    best = float("inf")
    for seed in range(2):
        rng = random.Random(seed)  # noqa: S311 - the same numbers each time
        router = Router(rng)
        router.set_pools({f"p{number}": _pool(number) for number in range(count)}, 0.0)
        sent = [
            Request(f"p{number % count}", None, "http", each.features, each.blocks)
            for number, each in enumerate(requests_of(USUAL_BLOCKS, rng)[:2_000])
        ]
        begin = time.process_time()
        for number, request in enumerate(sent):
            decision = router.decide(request, number * 0.001, 0.0)
            if isinstance(decision, Decision) and decision.ticket is not None:
                router.settle(decision.ticket, Outcome.DONE, number * 0.001)
        best = min(best, (time.process_time() - begin) / len(sent))
    return best * 1e6


def _pool(number: int) -> Pool:
    return Pool(
        name=f"p{number}",
        models=frozenset({f"m{number}"}),
        variants=(Variant("stable", 1),),
        endpoints=tuple(
            Endpoint(
                key=EndpointKey(f"r{number}-{each}", 1),
                variant="stable",
                http=f"10.{number >> 8}.{number & 255}.{each + 1}:8000",
                grpc=None,
            )
            for each in range(USUAL_ENDPOINTS)
        ),
        policy=POLICY,
    )
