"""Which replica has which model, as rows and as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from tidegate_api.admin.v1.admin_pb2 import PlacedModel

MAX_COLUMNS: Final = 8
"""Most replicas that are shown as columns; more are listed in one."""
UNKNOWN: Final = "unknown"


def rows_of(models: Iterable[PlacedModel]) -> list[dict[str, Any]]:
    """Return a row for each version of a model on each replica; what is not known is ``None``."""
    return [
        {
            "pool": one.pool,
            "model": one.model,
            "version": one.version or None,
            "endpoint": one.endpoint,
            "state": one.state or None,
            "reason": one.reason or None,
            "for_seconds": round(one.for_seconds, 1) if one.HasField("for_seconds") else None,
            "age_seconds": round(one.age_seconds, 1) if one.HasField("age_seconds") else None,
        }
        for one in models
    ]


def matrix(rows: list[dict[str, Any]]) -> Table:
    """Return a table of models by replicas."""
    from tidegate.terminal.output import table

    places: dict[tuple[str, str, str | None], dict[str, dict[str, Any]]] = {}
    for row in rows:
        places.setdefault((row["pool"], row["model"], row["version"]), {})[row["endpoint"]] = row
    replicas = sorted({row["endpoint"] for row in rows})
    wide = len(replicas) <= MAX_COLUMNS
    return table(
        ("pool", "model", "version", "ready", *(replicas if wide else ("replicas",))),
        [
            (
                *place,
                f"{sum(one['state'] == 'READY' for one in found.values())} of {len(found)}",
                *(
                    [_cell(found.get(name)) for name in replicas]
                    if wide
                    else [", ".join(f"{name} {_cell(found[name])}" for name in sorted(found))]
                ),
            )
            for place, found in places.items()
        ],
    )


def _cell(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    return f"{row['state'] or UNKNOWN}" + (f": {row['reason']}" if row["reason"] else "")
