"""What the hashing policies share: the key of a request, and the ranking of replicas for it.

The ranking is rendezvous hashing with weights (Thaler and Ravishankar 1998; Schindelhauer and
Schomaker 2005): a replica's price is ``-ln(h) / strength`` with ``h`` uniform in (0, 1) out of
key and replica, so each comes first for its share of the keys. A replica that joins takes keys
only for itself, one that leaves gives away only its own.

Replicas go into the hash by id, not by incarnation: one that restarts keeps its keys.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.request import Request

DEPTH: Final = 2
"""Blocks of the prompt that make a key: in the published conversation traces all prompts share
the first, and two keep 36.6 % of hits where all of them keep no more."""


def key_of(request: Request) -> int | None:
    """Return what a request is hashed by; ``None`` where it names nothing.

    It is the session, else the first blocks of the prompt, else the whole of a short prompt.
    """
    features = request.features
    if features.session is not None:
        return xxhash.xxh64_intdigest(features.session.encode("utf-8", "surrogateescape"), seed=1)
    if request.blocks:
        return request.blocks[:DEPTH][-1] & (1 << 64) - 1
    if features.prompt:
        return xxhash.xxh64_intdigest(features.prompt, seed=2)
    return None


def ranking(key: int, context: SchedulingContext) -> Sequence[float]:
    """Return a price per candidate that depends on key, id and strength alone."""
    return [
        -log((xxhash.xxh64_intdigest(candidate.key.id, seed=key) + 0.5) / 2.0**64) / strength
        for candidate, strength in zip(context.candidates, context.strength, strict=True)
    ]
