"""Filters: which seats may be chosen at all, before any price is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.types import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.roster import Seat


def in_subset(seats: Sequence[Seat], subset: frozenset[str] | None) -> Sequence[Seat]:
    """Keep the seats that a subset hint allows.

    The hint is that of the endpoint-picker protocol (Gateway API Inference Extension, proposal
    004): an entry is ``ip:port``, or a bare IP that allows every port of it. ``None`` is no hint
    and allows all; an empty hint allows none.
    """
    if subset is None:
        return seats
    return [
        seat
        for seat in seats
        if seat.address in subset or seat.host in subset or f"[{seat.host}]" in subset
    ]


def below_limit(seats: Sequence[Seat], limit: int) -> Sequence[Seat]:
    """Keep the seats whose replica has fewer than ``limit`` requests in flight; 0 = no limit."""
    if limit == 0:
        return seats
    return [seat for seat in seats if seat.load.in_flight < limit]


def eligible(
    seats: Sequence[Seat], *, subset: frozenset[str] | None, limit: int, where: str
) -> Sequence[Seat] | Refusal:
    """Apply all filters.

    Args:
        seats: What the pool offers.
        subset: The request's subset hint.
        limit: Most requests in flight on one replica; 0 = no limit.
        where: Pool and variant, for the message.

    Returns:
        At least one seat, or why there is none: ``SATURATED`` only where the in-flight limit
        alone stands in the way, which waiting cures; else ``NO_ENDPOINTS``.
    """
    if not seats:
        return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint that takes new work")
    allowed = in_subset(seats, subset)
    if not allowed:
        return Refusal(
            RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint in the subset that was asked for"
        )
    free = below_limit(allowed, limit)
    if not free:
        return Refusal(
            RefusalKind.SATURATED,
            f"each endpoint of {where} has {limit} requests in flight, its limit",
        )
    return free
