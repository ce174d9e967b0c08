"""Parsing of the picker's metrics and debug pages. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PICKS: Final = "tidegate_picker_picks_total"


@dataclass(frozen=True, slots=True)
class Seen:
    """The picker's state of one replica; unknown is ``None``."""

    in_flight: int
    queued: float | None
    """Requests queued in the replica, summed over its models."""
    cache: float | None
    """Usage of its fullest KV cache, 0 to 1."""
    draining: bool


def read_picks(page: str) -> int:
    """Return the number of picks since the picker's start.

    Raises:
        ValueError: The page is not in Prometheus text format.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_PICKS)) + "\n"
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(wanted)
        for sample in family.samples
    )


def read_replicas(state: Mapping[str, Any]) -> dict[str, Seen]:
    """Return the state of each replica in ``/debug/state``, by endpoint id.

    A replica in several pools has one ledger entry and one set of readings, so any pool will do;
    it is draining if it drains in any pool.
    """
    seen: dict[str, Seen] = {}
    for pool in state["router"]["pools"].values():
        for name, endpoint in pool["endpoints"].items():
            readings = endpoint["readings"]
            drains = name in seen and seen[name].draining
            seen[name] = Seen(
                in_flight=int(endpoint["in_flight"]),
                queued=_sum(reading["queued"] for reading in readings),
                cache=max(
                    (one["kv_used"] for one in readings if one["kv_used"] is not None),
                    default=None,
                ),
                draining=bool(endpoint["draining"]) or drains,
            )
    return seen


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
