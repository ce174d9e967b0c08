"""The table of the channels that changes take, from the module that tells operators what drains."""

from __future__ import annotations

from pages import code, table

from xds_server.fleet.channels import CHANNELS

_TITLES = ("changed field", "Envoy's resources", "pickers", "costs")
_ORDER = ("EDS", "RDS", "ECDS", "RTDS", "SDS", "CDS", "LDS")


def tables() -> dict[str, str]:
    """Return the table, cheapest rows first."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for field, types in CHANNELS.items():
        rows.setdefault((_cost(field, types), *types), []).append(field)
    ordered = sorted(rows.items(), key=lambda row: max(map(_rank, row[0][1:]), default=-1))
    return {
        "all": table(
            _TITLES,
            (
                (
                    ", ".join(map(code, fields)),
                    ", ".join(sorted((each for each in types if each != "POOL"), key=_rank)) or "-",
                    "POOL" if "POOL" in types else "-",
                    cost,
                )
                for (cost, *types), fields in ordered
            ),
        )
    }


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else -1


def _cost(field: str, types: tuple[str, ...]) -> str:
    if "LDS" in types:
        return "**open connections drain**"
    if field.endswith(".name"):
        return "nothing for other pools; what is removed goes last"
    if "CDS" in types:
        return "the cluster warms: first health checks, new connections"
    return "nothing"
