"""consistent-hash: each key has its replica.

Formula: rendezvous hashing, ``price = -ln(hash(key, id)) / strength`` (``hashing``).
Inputs: the session, else the first two blocks of the prompt; capacity. No load at all.
Use it for: sessions whose state lives in a replica's cache; pickers that must agree without
talking; a baseline for affinity.
Not for: hot keys (consistent-hash-bounded), requests without a key (they are drawn by chance).

Guarantee: a change of membership moves only the keys of the replica that came or went. The
fallbacks are the next in the key's own order, so retries agree too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.hashing import key_of, ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext


class ConsistentHash(Policy):
    """Rendezvous hashing with weights; keeps no state."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's place in the order of the key."""
        key = key_of(context.request)
        return [0.0] * len(context.candidates) if key is None else ranking(key, context)

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Keep no state; the label is ``hash``, or ``random`` without a key."""
        del index
        return "random" if key_of(context.request) is None else "hash"
