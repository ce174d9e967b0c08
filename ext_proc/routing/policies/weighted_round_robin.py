"""weighted-round-robin: each replica in turn, the stronger ones more often.

Formula (nginx's smooth weighted round robin): each pick adds its strength to every replica's
credit, the largest credit wins and pays the sum of all strengths: 5, 1, 1 give a a b a c a a.
Inputs: capacity and membership. Each variant has its own credits.
Use it for: uniform requests on mixed hardware, where shares must be exact over short windows.
Not for: anything whose cost varies; it ignores load.

Guarantee: over any window of whole rounds each replica gets its share exactly. A change of
strength keeps the credits, so no burst follows it. A seat that is not eligible earns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.policies.base import Offer


class WeightedRoundRobin(Policy):
    """Credits per variant and replica; at most twice as many as the pool has endpoints."""

    def __init__(self) -> None:
        self._credits: dict[str, dict[str, float]] = {}

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return the credit each seat would have, negated."""
        credit = self._credits.get(offer.variant, {})
        return [
            -(credit.get(seat.key.id, 0.0) + strength)
            for seat, strength in zip(offer.seats, offer.strength, strict=True)
        ]

    def picked(self, offer: Offer, index: int) -> str:
        """Give each seat its credit and let the winner pay; the label is ``round-robin``."""
        credit = self._credits.setdefault(offer.variant, {})
        if len(credit) > 2 * offer.slots:  # replicas came and went
            offered = {seat.key.id for seat in offer.seats}
            for gone in [each for each in credit if each not in offered]:
                del credit[gone]
        for seat, strength in zip(offer.seats, offer.strength, strict=True):
            credit[seat.key.id] = credit.get(seat.key.id, 0.0) + strength
        credit[offer.seats[index].key.id] -= sum(offer.strength)
        return "round-robin"
