"""Candidates: whom a policy is shown in a large pool; a decision costs the same at any size.

Rules:

1. A pool of up to ``SMALL`` eligible candidates is shown whole, and so is any pool to a policy that
   must see everyone, and one whose request came with a subset hint.
2. Of a larger one the candidates are the ``HOLDERS`` candidates that hold most of the prompt
   (equals by chance), ``SAMPLE`` candidates drawn at random, and the ``REMEMBERED`` cheapest of
   those that the decision before saw and did not take.
3. Where the in-flight limit leaves none of them, all candidates are looked at: a sample never
   refuses.

The best of 12 drawn at random is in the best fifth of the pool with 93 % probability, and pickers
that draw apart do not chase the same replica (Mitzenmacher 2001, the power of random choices).
Remembering the best that were left makes a small sample as good as a much larger one (Mitzenmacher,
Prabhakar and Shah 2002, load balancing with memory): what is good stays in view until it is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.cache.prefix_table import Steps
    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.rng import Rng

SMALL: Final = 32
HOLDERS: Final = 6
SAMPLE: Final = 12
REMEMBERED: Final = 4


def shortlist(
    candidates: Sequence[Candidate],
    by_key: Mapping[EndpointKey, Candidate],
    remembered: Iterable[Candidate],
    index: PrefixIndex,
    steps: Steps,
    rng: Rng,
) -> tuple[list[Candidate], list[int]]:
    """Return the candidates among many candidates, and how much of the prompt each holds.

    Args:
        candidates: The eligible candidates, more than ``SMALL``.
        by_key: The same ones by identity.
        remembered: Some of them that were good a moment ago.
        index: The prefix index.
        steps: The prompt's walk through it.
        rng: Chance.
    """
    matched: dict[Candidate, int] = {}
    random = rng.random
    if steps:
        for key, depth in index.deepest(steps, HOLDERS, random()).items():
            candidate = by_key.get(key)
            if candidate is not None:
                matched[candidate] = depth
    count = len(candidates)
    for candidate in (*remembered, *[candidates[int(random() * count)] for _ in range(SAMPLE)]):
        if candidate not in matched:
            matched[candidate] = index.depth(steps, candidate.key) if steps else 0
    return list(matched), list(matched.values())


def worth_remembering(
    context: SchedulingContext, prices: Sequence[float], picked: int
) -> tuple[Candidate, ...]:
    """Return the cheapest candidates of an offer that were not picked.

    Whoever holds more of this prompt than is common property is cheap for this one only.
    """
    shared, matched = context.shared, context.matched
    left = [at for at in range(len(prices)) if matched[at] <= shared and at != picked]
    left.sort(key=prices.__getitem__)
    return tuple([context.candidates[at] for at in left[:REMEMBERED]])
