"""Suite ``control``: cost of the control server, measured by ``bench/control.py``.

With one real Envoy and a picker: time from an operator's call to the last acknowledgement, per
resource type. With simulated delta clients: the same by number of clients, with CPU, bytes and
memory. Without clients (``bench/control_cost.py``): CPU time of a change by pools and endpoints,
and that of a bare echo stream per message, the floor of what a client costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bench.control import HEADS, Size, alone, envoy, sizes
from bench.control_cost import HEADS as FIXED_HEADS
from bench.control_cost import SIZES, echo, fixed

if TYPE_CHECKING:
    from rich.table import Table

    from bench.suites.context import Context

QUICK: Final = (Size(10, 50, 1_000), Size(100, 50, 1_000))
ROW_S: Final = (40.0, 240.0)
"""Limits of a row of the short and of the long form, seconds."""


async def run(context: Context) -> dict[str, Any]:
    """Measure all of it; what is done is kept if the rest is cut."""
    changes, found = context.pick(20, 200), dict[str, Any]()
    context.say("control: one real Envoy")
    found |= {"changes": changes, "envoy": table_of(await envoy(changes))}
    context.say("control: the fixed part, and a bare echo stream")
    parts: list[list[str]] = []
    for pools, endpoints in context.pick(SIZES[:3], SIZES):
        parts += await fixed(pools, endpoints)
    found["fixed"] = {"heads": FIXED_HEADS, "rows": parts}
    found["echo_us"] = round(await echo(100))
    rows: list[list[str]] = []
    found["clients"] = {"heads": HEADS, "rows": rows}
    table = context.pick(QUICK, tuple(sizes()))
    for number, size in enumerate(table, 1):
        context.say(
            f"control: {size.clients} clients, {size.pools} pools, {size.endpoints:,} endpoints"
            f" ({number} of {len(table)})"
        )
        rows.append(list(await alone(size, context.pick(4, 3), context.pick(*ROW_S))))
        context.save(found)
    return found


def table_of(table: Table) -> dict[str, Any]:
    """Return the headings and cells of a table."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return {
        "heads": [str(column.header) for column in table.columns],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }
