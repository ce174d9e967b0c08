"""Problem: a broken rule with its location, and helpers of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAX_LISTED = 10
"""Most names that one message lists; the others are counted."""

Location = tuple[str | int, ...]
"""Field names and list positions, starting at the fleet, in pydantic's format."""


def spell(location: Location) -> str:
    """Return a location as text: ``pools[0].endpoints[2].grpc``."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "fleet"


def listed(names: Iterable[str]) -> str:
    """Return names as text: ``a, b, c``, at most ``MAX_LISTED`` of them."""
    every = list(names)
    text = ", ".join(every[:MAX_LISTED])
    more = len(every) - MAX_LISTED
    return f"{text} and {more} more" if more > 0 else text


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule."""

    location: Location
    message: str
    """What is wrong and how to correct it."""

    @property
    def path(self) -> str:
        """The location as text."""
        return spell(self.location)


def repeated(
    values: Sequence[str], at: Location, field: str | None, what: str
) -> Iterator[Problem]:
    """Yield a problem for each repeated value of the list at ``at``."""
    first: dict[str, int] = {}
    for position, value in enumerate(values):
        if value in first:
            where = (*at, position) if field is None else (*at, position, field)
            yield Problem(
                where,
                f"{what} '{value}' is already used by {spell((*at, first[value]))}; "
                "write each only once",
            )
        first.setdefault(value, position)
