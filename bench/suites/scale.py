"""Suite ``scale``: growth of costs with the size of the system.

CPU per decision by endpoints, prefix blocks and pools; CPU per exchange by prompt size; resident
memory by open streams; CPU of the pickers per request by their number; CPU of the control server
per change by connected Envoys; in the long form also CPU of telemetry by endpoints. Growth is
fitted as ``a * size ** b`` by least squares on logarithms: b = 0 is constant, 1 is linear; ``r2``
is the coefficient of determination of the logarithms. Memory of streams is also fitted by a
straight line.
"""

from __future__ import annotations

import asyncio
import random
import time
from math import exp, log
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from bench.control import many
from bench.cost.decide import microseconds, requests_of
from bench.suites.script import json_lines, output
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Request
from ext_proc.routing.values.ticket import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suites.context import Context

EXCHANGE: Final = "cost/exchange.py"
ENDPOINTS: Final = (8, 64, 256, 1_000)
BLOCKS: Final = (4, 16, 64, 250)
POOLS: Final = (1, 10, 100, 500)
POLICY: Final = "auto"
USUAL_ENDPOINTS: Final = 8
USUAL_BLOCKS: Final = 16
CPU_COLUMN: Final = 4
"""Column of ``bench.control.many`` with the CPU of an endpoint change."""
SOURCES: Final = {"scrape": "scraped", "push": "pushed"}


async def run(context: Context) -> dict[str, Any]:
    """Measure every axis."""
    context.say("scale: decisions")
    axes: dict[str, list[dict[str, float]]] = await asyncio.to_thread(_decisions)
    context.say("scale: prompt sizes")
    axes["prompt_bytes"] = []
    for size in (2_048, 8_192, 32_768, 131_072):
        few = ("--rounds", "2", "--count", context.pick("500", "1500"))
        for row in await json_lines(EXCHANGE, "--modes", "peek", "--body", f"{size}", *few):
            axes["prompt_bytes"].append({"size": size, "cost": row["picker_us"]})
    axes["streams"] = []
    for wanted in context.pick((100, 1_000, 10_000), (10, 100, 1_000, 4_000, 10_000)):
        context.say(f"scale: {wanted} open streams")
        for row in await json_lines(EXCHANGE, "--modes", "peek", "--streams", f"{wanted}"):
            axes["streams"].append({"size": wanted, "cost": row["picker_kb"] * wanted})
    context.say("scale: pickers")
    pickers = await _pickers(context)
    axes |= pickers
    axes["envoys"] = []
    for count in context.pick((5, 20, 80), (10, 100, 1_000)):
        context.say(f"scale: {count} Envoys")
        cells = await many(count, 10, 100, 4)
        axes["envoys"].append({"size": count, "cost": float(cells[CPU_COLUMN])})
    if context.full:
        context.say("scale: telemetry")
        axes |= telemetry_axes(await output("cost/telemetry.py", "--seconds", "4"))
    return {
        "units": {
            "endpoints": "µs per decision",
            "blocks": "µs per decision",
            "pools": "µs per decision",
            "prompt_bytes": "µs per exchange",
            "streams": "kB of all open streams",
            "pickers": "µs of all pickers per request",
            "pickers, requests": "requests/s of one Envoy thread",
            "envoys": "ms of CPU per endpoint change",
            "endpoints scraped": "µs of CPU per endpoint and second",
            "endpoints pushed": "µs of CPU per endpoint and second",
        },
        "axes": axes,
        "growth": {name: growth(rows) for name, rows in axes.items()},
        "line": {"streams": line(axes["streams"])},
    }


async def _pickers(context: Context) -> dict[str, list[dict[str, float]]]:
    """Return CPU and throughput by number of picker processes, each with its own port."""
    rounds, seconds = context.pick("2", "5"), context.pick("1", "3")
    few = ("--json", "--workers", "2", "4", "--rounds", rounds, "--seconds", seconds)
    (found,) = await json_lines("workers.py", *few)
    by_count = {int(count): row for count, row in found["by_workers"].items()}
    return {
        name: [{"size": count, "cost": row[key]} for count, row in by_count.items()]
        for name, key in (("pickers", "picker_us"), ("pickers, requests", "requests_per_s"))
    }


def growth(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None] | None:
    """Return ``a`` and ``b`` of ``cost = a * size ** b``, and ``r2`` of the logarithms.

    ``None`` for fewer than two sizes; ``r2`` is ``None`` for two, which any power fits.
    """
    points = [(log(row["size"]), log(row["cost"])) for row in rows if row["cost"] > 0]
    fitted = _fit(points)
    if fitted is None:
        return None
    intercept, slope, r2 = fitted
    return {"a": exp(intercept), "b": slope, "r2": r2}


def line(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None] | None:
    """Return ``each`` and ``base`` of ``cost = base + each * size``, and ``r2``; as ``growth``."""
    fitted = _fit([(row["size"], row["cost"]) for row in rows])
    return None if fitted is None else dict(zip(("base", "each", "r2"), fitted, strict=True))


def _fit(points: Sequence[tuple[float, float]]) -> tuple[float, float, float | None] | None:
    """Return intercept, slope and ``r2`` of least squares."""
    sizes = {x for x, _ in points}
    if len(sizes) < 2:
        return None
    middle_x = fmean(x for x, _ in points)
    middle_y = fmean(y for _, y in points)
    across = sum((x - middle_x) ** 2 for x, _ in points)
    both = sum((x - middle_x) * (y - middle_y) for x, y in points)
    up = sum((y - middle_y) ** 2 for _, y in points)
    r2 = None if len(sizes) < 3 or up == 0 else both**2 / (across * up)
    return middle_y - both / across * middle_x, both / across, r2


def telemetry_axes(text: str) -> dict[str, list[dict[str, float]]]:
    """Return the rows of ``bench/cost/telemetry.py``: cost per endpoint by source and endpoints."""
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
    """Return CPU microseconds of a decision and its settlement, with requests over all pools."""
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
