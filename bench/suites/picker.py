"""Suite ``picker``: CPU of one exchange compared with a bare ``grpc.aio`` picker.

It runs ``bench/cost/exchange.py``: the same messages, alternating, the minimum of several rounds,
without Envoy; over each installed transport, and also compiled if ``build/compiled`` was built from
the current source. ``bench/workers.py`` adds the cost of a second worker behind a real Envoy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bench.suites.script import ROOT, json_lines
from ext_proc.server import transport
from tools.compiling import is_current

if TYPE_CHECKING:
    from bench.suites.context import Context

COMPILED: Final = ROOT / "build" / "compiled"


async def run(context: Context) -> dict[str, Any]:
    """Measure each body mode."""
    modes = context.pick(("none", "peek"), ("none", "peek", "buffered", "duplex"))
    rounds, count = context.pick("3", "8"), context.pick("1500", "3000")
    over = ("grpc", *(["nghttp2"] if transport.named("auto") == "nghttp2" else []))
    builds = {"": {}}
    if is_current(ROOT, COMPILED):
        builds[", compiled"] = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(COMPILED)}
    rows = []
    for mode in modes:
        for build, environment in builds.items():
            context.say(f"picker: {mode}{build}")
            rows += await json_lines(
                *("cost/exchange.py", "--modes", mode, "--rounds", rounds, "--count", count),
                *("--transport", *over),
                environment=environment,
            )
    context.say("picker: two workers")
    rounds, seconds = context.pick("3", "6"), context.pick("1.5", "3")
    (workers,) = await json_lines("workers.py", "--json", "--rounds", rounds, "--seconds", seconds)
    return {"rows": rows, "workers": workers}
