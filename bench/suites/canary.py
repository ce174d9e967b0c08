"""Suite ``canary``: how often the canary's controller is wrong, and how soon it sees what is bad.

It runs ``bench/compare/canary.py``. The short form has 2 runs of each world, which show that it
works and no more; the long one has 1,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.suites.script import json_lines

if TYPE_CHECKING:
    from bench.suites.context import Context


async def run(context: Context) -> dict[str, Any]:
    """Simulate the runs of the form, on two processes."""
    runs = context.pick("2", "1000")
    context.say(f"canary: {runs} runs of each world")
    rows = await json_lines("compare/canary.py", "--json", "--runs", runs, "--processes", "2")
    return {"rows": rows}
