"""Suite ``picker``: CPU of one exchange beside a bare ``grpc.aio`` picker with the same messages.

It is ``bench/exchange.py``: both in turn, the least of several rounds, no Envoy.
``bench/workers.py`` adds what a second worker costs, behind a real Envoy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.suites.script import json_lines

if TYPE_CHECKING:
    from bench.suites.context import Context


async def run(context: Context) -> dict[str, Any]:
    """Measure each body mode."""
    modes = context.pick(("none", "peek"), ("none", "peek", "buffered", "duplex"))
    rounds, count = context.pick("3", "8"), context.pick("1500", "3000")
    rows = []
    for mode in modes:
        context.say(f"picker: {mode}")
        rows += await json_lines(
            "exchange.py", "--modes", mode, "--rounds", rounds, "--count", count
        )
    context.say("picker: two workers")
    rounds, seconds = context.pick("3", "6"), context.pick("1.5", "3")
    (workers,) = await json_lines("workers.py", "--json", "--rounds", rounds, "--seconds", seconds)
    return {"rows": rows, "workers": workers}
