"""consistent-hash: maps each key to one replica.

Formula: rendezvous hashing, ``price = -ln(hash(key, id)) / strength`` (``hashing``).
Inputs: the session, else the first two blocks of the prompt; capacity. Load is not used.
Use it for: sessions whose state is in a replica's cache; pickers that must agree without
communication; a baseline for affinity.
Not for: hot keys (consistent-hash-bounded); requests without a key (replicas are drawn at random).

Guarantee: a change of the pool moves only the keys of the replica that was added or removed. The
fallbacks are the next replicas in the key's order, so retries agree too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.policies.hashing import key_of, ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext


class ConsistentHash(Policy):
    """Weighted rendezvous hashing; stateless."""

    keyed: ClassVar[bool] = True

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's price in the key's order."""
        key = key_of(context.request)
        return [0.0] * len(context.candidates) if key is None else ranking(key, context)

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``hash``, or ``random`` without a key."""
        del index
        return "random" if key_of(context.request) is None else "hash"
