"""Pure: what the picker's pages say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PICKS: Final = "tidegate_picker_picks_total"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the picker knows of one replica; unknown is ``None``."""

    in_flight: int
    queued: float | None
    """Requests that wait inside the replica, over its models."""
    cache: float | None
    """Share of its fullest KV cache in use, 0..1."""
    draining: bool


def read_picks(page: str) -> int:
    """Return how many picks the picker has made since its start.

    Raises:
        ValueError: the page is no Prometheus text.
    """
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_PICKS)) + "\n"
    return sum(
        int(sample.value)
        for family in text_string_to_metric_families(wanted)
        for sample in family.samples
    )


def read_replicas(state: Mapping[str, Any]) -> dict[str, Seen]:
    """Return what ``/debug/state`` says of each replica, by its id.

    A replica in several pools has one ledger entry and one set of readings, so any pool tells;
    it drains when any pool says so.
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
