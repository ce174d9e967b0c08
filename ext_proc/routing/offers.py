"""Between the router and its policies: what a policy is shown, and the order its prices make."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Offer
from ext_proc.routing.ramp import factor
from ext_proc.routing.roster import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.draw import Rng
    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.roster import Roster, Seat
    from ext_proc.routing.types import Pool, Request

CHARS_PER_TOKEN: Final = 4
"""The usual rule of thumb for text; exact for prompts of 32-bit token ids."""


def make_offer(
    roster: Roster,
    index: PrefixIndex,
    request: Request,
    variant: str,
    seats: Sequence[Seat],
    now: float,
    unix_now: float,
) -> Offer:
    """Gather what a policy may know of a request and its seats.

    Args:
        roster: The pool.
        index: What the replicas probably have cached.
        request: The request.
        variant: Its variant.
        seats: Its eligible seats.
        now: Monotonic seconds, for the age of readings.
        unix_now: Wall clock, for ramps.
    """
    slow_start = roster.pool.slow_start
    stale = now - FRESH_S
    pending: list[float] = []
    work: list[float] = []
    ramp: list[float] | None = None
    for number, seat in enumerate(seats):
        load, replica = seat.load, seat.replica
        known = replica.others_at > stale
        pending.append(load.in_flight + replica.others if known else load.in_flight)
        work.append(load.work)
        joined, restarted = seat.joined_unix_s, replica.restarted_unix_s
        if restarted is not None:
            joined = restarted if joined is None else max(joined, restarted)
        if joined is not None and (risen := factor(slow_start, joined, unix_now)) < 1.0:
            if ramp is None:
                ramp = [1.0] * len(seats)
            ramp[number] = risen
    found = index.match_all(request.blocks) if request.blocks else {}
    shared = 0
    if found:
        matched = [found.get(seat.key, 0) for seat in seats]
        shared = index.shared_depth(request.blocks, max(matched), len(seats))
    else:
        matched = [0] * len(seats)
    return Offer(
        seats,
        variant,
        roster.size,
        pending,
        work,
        [seat.capacity for seat in seats],
        matched,
        len(request.blocks),
        shared,
        roster.pool.load_factor,
        ramp,
    )


def silent_last(offer: Offer, prices: Sequence[float]) -> Sequence[float]:
    """Return the prices with replicas that stopped answering behind all the others."""
    if not any(seat.replica.silent for seat in offer.seats):
        return prices
    behind = max(prices) - min(prices) + 1.0
    return [
        price + behind if seat.replica.silent else price
        for seat, price in zip(offer.seats, prices, strict=True)
    ]


def cheapest(prices: Sequence[float], count: int, rng: Rng) -> list[int]:
    """Return the indices of the ``count`` lowest prices, equal ones in random order."""
    left = list(prices)
    order: list[int] = []
    for _ in range(min(count, len(left))):
        lowest = min(left)
        ties = [index for index, price in enumerate(left) if price == lowest]
        chosen = ties[0] if len(ties) == 1 else ties[int(rng.random() * len(ties))]
        order.append(chosen)
        left[chosen] = inf
    return order


def work_of(request: Request, pool: Pool, matched: int) -> float:
    """Estimate the uncached input tokens of a request: whole, at least 1."""
    characters = len(request.blocks) * pool.block_chars
    if request.features.prompt is not None:
        characters = max(characters, len(request.features.prompt))
    characters -= matched * pool.block_chars
    return float(max(1, characters // CHARS_PER_TOKEN))


def scores(offer: Offer, prices: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """Return endpoint id and price of each seat."""
    ids = [seat.key.id for seat in offer.seats]
    return tuple(zip(ids, prices, strict=True))
