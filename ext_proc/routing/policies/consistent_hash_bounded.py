"""consistent-hash-bounded: each key has its replica, until that one has more than its share.

Formula::

    price = -ln(hash(key, id)) / strength  (+ a constant behind all others at the bound)
    bound = ceil(load_factor * (all pending + 1) * strength / all strength)     requests

Inputs: those of consistent-hash; own ledger and fresh queues; ``load_factor``, default 1.5.
Use it for: several pickers that must agree without talking, sessions, hot keys.
Not for: prompts of very different length; a request is a request here.

This is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016). It is
deterministic: where pickers see the same loads they choose the same replica, as the overflow goes
to the next in the key's own order. The bound counts the request being placed, so somebody is
always within it. Without a key the least loaded is chosen.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.hashing import key_of, ranking
from ext_proc.routing.policies.least_in_flight import LeastInFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext

_ROUNDING: Final = 1e-9
"""Keeps a product such as 1.1 * 10 = 11.000000000000002 from rounding up."""


class ConsistentHashBounded(Policy):
    """Rendezvous hashing with weights and bounded loads; keeps no state."""

    def __init__(self) -> None:
        self._least = LeastInFlight()

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's place in the order of the key, full ones behind."""
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
        """Tell ``hash`` for the key's own replica, ``spill`` for the next ones."""
        key = key_of(context.request)
        if key is None:
            return "least"
        ranked = ranking(key, context)
        return "hash" if ranked[index] == min(ranked) else "spill"
