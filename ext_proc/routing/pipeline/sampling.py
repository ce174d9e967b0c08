"""Sampling: selects candidates in a large pool, so that a decision costs the same at any size.

Rules:

1. All eligible candidates are used if there are at most ``SMALL``, if the policy needs every
   candidate (``Policy.everyone``), or if the request has a subset hint.
2. Otherwise the candidates are the ``HOLDERS`` candidates that hold most of the prompt (ties broken
   at random), ``SAMPLE`` candidates drawn at random, and the ``REMEMBERED`` cheapest candidates
   that the previous decision did not pick.
3. If conditions or the in-flight limit leave none of them, all candidates are used: a sample never
   causes a refusal.

The best of 12 random candidates is in the best fifth of the pool with 93 % probability, and pickers
that draw independently do not all choose the same replica (Mitzenmacher 2001, the power of random
choices). Remembering the best candidates that were left makes a small sample as good as a much
larger one (Mitzenmacher, Prabhakar and Shah 2002, load balancing with memory): a good candidate
stays in the sample until it is picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ext_proc.routing.cache.prefix_table import PrefixTable, Steps
    from ext_proc.routing.state.candidates import Candidate, SchedulingContext
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
    index: PrefixTable,
    steps: Steps,
    rng: Rng,
) -> tuple[list[Candidate], list[int]]:
    """Return a sample of the candidates, and the match depth of each.

    Args:
        candidates: The eligible candidates, more than ``SMALL``.
        by_key: The same candidates by identity.
        remembered: Good candidates left over from the previous decision.
        index: The prefix index.
        steps: Result of ``index.match`` for the prompt.
        rng: Source of randomness.
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
    """Return the cheapest candidates that were not picked, for the next sample.

    Candidates that hold more of this prompt than its shared blocks are left out, because they are
    cheap for this prompt only.
    """
    shared, matched = context.shared, context.matched
    left = [at for at in range(len(prices)) if matched[at] <= shared and at != picked]
    left.sort(key=prices.__getitem__)
    return tuple([context.candidates[at] for at in left[:REMEMBERED]])
