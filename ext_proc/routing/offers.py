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
    from ext_proc.routing.roster import Roster, Seat
    from ext_proc.routing.types import Pool, Request

CHARS_PER_TOKEN: Final = 4
"""The usual rule of thumb for text; exact for prompts of 32-bit token ids."""


def make_offer(
    roster: Roster,
    request: Request,
    variant: str,
    seats: Sequence[Seat],
    matched: Sequence[int],
    shared: int,
    rng: Rng,
    now: float,
    unix_now: float,
    branched: int = 0,
) -> Offer:
    """Gather what a policy may know of a request and its seats.

    Args:
        roster: The pool.
        request: The request.
        variant: Its variant.
        seats: Its candidates.
        matched: How many of its blocks each probably has cached.
        shared: How many of these are common property.
        rng: Chance.
        now: Monotonic seconds, for the age of readings.
        unix_now: Wall clock, for ramps.
        branched: How many of its blocks belong to several prompts.
    """
    pool = roster.pool
    stale = now - FRESH_S
    pending: list[float] = [
        seat.load.in_flight + seat.replica.others
        if seat.replica.others_at > stale
        else seat.load.in_flight
        for seat in seats
    ]
    block_tokens = request.block_tokens or pool.block_chars / CHARS_PER_TOKEN
    tokens: float | None = request.tokens
    if tokens is None:
        prompt = request.features.prompt
        tokens = len(request.blocks) * block_tokens
        if prompt is not None and len(prompt) > tokens * CHARS_PER_TOKEN:
            tokens = len(prompt) / CHARS_PER_TOKEN
    return Offer(
        request,
        seats,
        variant,
        roster.size,
        pending,
        [seat.load.work for seat in seats],
        [seat.capacity for seat in seats],
        matched,
        len(request.blocks),
        shared,
        pool.load_factor,
        float(int(tokens)) if tokens else None,
        block_tokens,
        roster.pace,
        now,
        rng,
        _ramp(pool, seats, unix_now) if pool.slow_start.window_s > 0.0 else None,
        branched,
    )


def _ramp(pool: Pool, seats: Sequence[Seat], unix_now: float) -> list[float] | None:
    ramp: list[float] | None = None
    for number, seat in enumerate(seats):
        joined, restarted = seat.joined_unix_s, seat.replica.restarted_unix_s
        if restarted is not None:
            joined = restarted if joined is None else max(joined, restarted)
        if joined is not None and (risen := factor(pool.slow_start, joined, unix_now)) < 1.0:
            if ramp is None:
                ramp = [1.0] * len(seats)
            ramp[number] = risen
    return ramp


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
    if len(set(prices)) == len(prices):
        return sorted(range(len(prices)), key=prices.__getitem__)[:count]
    left, random = list(prices), rng.random
    wanted = min(count, len(left))
    order: list[int] = []
    while len(order) < wanted:
        lowest = min(left)
        ties = [index for index, price in enumerate(left) if price == lowest]
        while ties and len(order) < wanted:
            chosen = ties.pop(int(random() * len(ties))) if len(ties) > 1 else ties.pop()
            left[chosen] = inf
            order.append(chosen)
    return order


def work_of(offer: Offer, index: int) -> float:
    """Estimate the uncached input tokens of a request on one seat, at least 1."""
    if offer.tokens is None:
        return 1.0
    return max(1.0, offer.tokens - offer.matched[index] * offer.block_tokens)
