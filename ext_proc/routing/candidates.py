"""Candidates: whom a policy is shown in a large pool; a decision costs the same at any size.

Rules:

1. A pool of up to ``SMALL`` eligible seats is shown whole, and so is any pool to a policy that
   must see everyone, and one whose request came with a subset hint.
2. Of a larger one the candidates are the ``HOLDERS`` seats that hold most of the prompt, and
   ``SAMPLE`` seats drawn at random.
3. Where the in-flight limit leaves none of them, all seats are looked at: a sample never refuses.

The best of 32 drawn at random is in the best tenth of the pool with 97 % probability, and pickers
that draw apart do not chase the same replica (Mitzenmacher 2001, the power of random choices).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.draw import Rng
    from ext_proc.routing.prefix_index import PrefixIndex, Steps
    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import EndpointKey

SMALL: Final = 64
HOLDERS: Final = 8
SAMPLE: Final = 32


def shortlist(
    seats: Sequence[Seat],
    by_key: Mapping[EndpointKey, Seat],
    index: PrefixIndex,
    steps: Steps,
    rng: Rng,
) -> tuple[list[Seat], list[int]]:
    """Return the candidates among many seats, and how much of the prompt each holds.

    Args:
        seats: The eligible seats, more than ``SMALL``.
        by_key: The same ones by identity.
        index: The prefix index.
        steps: The prompt's walk through it.
        rng: Chance.
    """
    chosen: dict[int, Seat] = {}
    matched: dict[int, int] = {}
    for key, depth in index.deepest(steps, HOLDERS).items():
        seat = by_key.get(key)
        if seat is not None:
            chosen[seat.position] = seat
            matched[seat.position] = depth
    count = len(seats)
    for _ in range(SAMPLE):
        seat = seats[int(rng.random() * count)]
        if seat.position not in chosen:
            chosen[seat.position] = seat
            matched[seat.position] = index.depth(steps, seat.key) if steps else 0
    return list(chosen.values()), list(matched.values())
