"""consistent-hash-bounded: maps each key to one replica, within a bound on the load.

Formula::

    price = -ln(hash(key, id)) / strength  (+ a constant behind all others at the bound)
    bound = ceil(load_factor * (all pending + 1) * strength / all strength)     requests

Inputs: those of consistent-hash; own ledger and fresh queues; ``load_factor``, default 1.5.
Use it for: several pickers that must agree without communication; sessions; hot keys.
Not for: prompts of very different length, because all requests count the same.

This is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016). It is
deterministic: pickers with the same loads choose the same replica, because overflow goes to the
next replica in the key's order. The bound counts the request being placed, so at least one replica
is always within it. Without a key the least loaded replica is chosen.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, ClassVar, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.hashing import key_of, ranking
from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext

_ROUNDING: Final = 1e-9
"""Keeps a product such as 1.1 * 10 = 11.000000000000002 from rounding up."""


class ConsistentHashBounded(Policy):
    """Weighted rendezvous hashing with bounded loads; stateless."""

    keyed: ClassVar[bool] = True

    def __init__(self) -> None:
        self._least = LeastInFlight()

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's price in the key's order, those at the bound last."""
        key = key_of(context.request)
        if key is None:
            return self._least.prices(context)
        share = context.load_factor * (sum(context.pending) + 1.0) / sum(context.strength)
        ranked = ranking(key, context)
        behind = max(ranked) + 1.0
        return [
            price + behind if pending + 1.0 > ceil(share * strength - _ROUNDING) else price
            for price, pending, strength in zip(
                ranked, context.pending, context.strength, strict=True
            )
        ]

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``hash`` for the key's first replica, else ``spill``; without a key ``least``."""
        key = key_of(context.request)
        if key is None:
            return "least"
        ranked = ranking(key, context)
        return "hash" if ranked[index] == min(ranked) else "spill"
