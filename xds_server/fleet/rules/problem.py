"""A broken rule, and the words that rules share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Location = tuple[str | int, ...]
"""Field names and list positions from the fleet downwards, as pydantic writes them."""


def spell(location: Location) -> str:
    """Write a location for people: ``pools[0].endpoints[2].grpc``."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "fleet"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule."""

    location: Location
    message: str
    """What is wrong and what to write."""

    @property
    def path(self) -> str:
        """The place, for people."""
        return spell(self.location)


def repeated(
    values: Sequence[str], at: Location, field: str | None, what: str
) -> Iterator[Problem]:
    """Yield a problem for each value that stands in the list at ``at`` a second time."""
    first: dict[str, int] = {}
    for position, value in enumerate(values):
        if value in first:
            where = (*at, position) if field is None else (*at, position, field)
            yield Problem(
                where,
                f"{what} '{value}' is already that of {spell((*at, first[value]))}; "
                "write each only once",
            )
        first.setdefault(value, position)
