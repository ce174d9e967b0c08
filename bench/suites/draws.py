"""Suite ``draws``: `auto` on simulated fleets drawn at random, beside exact knowledge.

It runs ``bench/compare/draws.py``. The short form has one draw and one run of 300 requests of
each; that is off by up to a fifth, so it shows the order of magnitude only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.suites.script import json_lines

if TYPE_CHECKING:
    from bench.suites.context import Context


async def run(context: Context) -> dict[str, Any]:
    """Simulate the draws of the form, on two processes."""
    draws, runs, requests = context.pick(("1", "1", "300"), ("30", "3", "1500"))
    context.say(f"draws: {draws}, {runs} runs each")
    rows = await json_lines(
        *("compare/draws.py", "--json", "--draws", draws, "--runs", runs),
        *("--requests", requests, "--processes", "2"),
    )
    return {"rows": rows}
