"""Suite ``control``: cost of the control server, measured by ``bench/control.py``.

With one real Envoy and a picker: time from an operator's call to the last acknowledgement, per
resource type. With simulated delta clients: the same by number of clients, with CPU, bytes and
memory. Without clients (``bench/control_cost.py``): CPU time of a change by pools and endpoints,
and that of a bare echo stream per message, the floor of what a client costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bench.control import envoy, many
from bench.control_cost import HEADS as FIXED_HEADS
from bench.control_cost import SIZES, echo, fixed

if TYPE_CHECKING:
    from rich.table import Table

    from bench.suites.context import Context

POOLS: Final = 50
HEADS: Final = (
    "clients",
    "clusters",
    "endpoints",
    "endpoint change: ms to last ACK, p50 / p99",
    "CPU ms",
    "kB sent",
    "weight change: ms to last ACK, p50 / p99",
    "CPU ms",
    "kB sent",
    "RSS MB",
)


async def run(context: Context) -> dict[str, Any]:
    """Measure both."""
    changes = context.pick(20, 200)
    context.say("control: one real Envoy")
    real = table_of(await envoy(changes))
    rows = []
    for count in context.pick((10, 100), (10, 100, 1_000)):
        context.say(f"control: {count} simulated clients")
        rows.append(list(await many(count, POOLS, 1_000, context.pick(4, 10))))
    context.say("control: the fixed part, and a bare echo stream")
    parts = []
    for pools, endpoints in context.pick(SIZES[:3], SIZES):
        parts += await fixed(pools, endpoints)
    return {
        "changes": changes,
        "envoy": real,
        "clients": {"heads": HEADS, "rows": rows},
        "fixed": {"heads": FIXED_HEADS, "rows": parts},
        "echo_us": round(await echo(100)),
    }


def table_of(table: Table) -> dict[str, Any]:
    """Return the headings and cells of a table."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return {
        "heads": [str(column.header) for column in table.columns],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }
