"""The scheduling context that a policy gets, and the order that its prices give."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ext_proc.routing.pipeline.ramp import factor
from ext_proc.routing.state.context import SchedulingContext
from ext_proc.routing.state.replica import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.state.pool_state import PoolState
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng


DRAWN: Final = 3
"""Places of an order for which equal prices are drawn singly."""


def make_context(
    pool_state: PoolState,
    request: Request,
    variant: str,
    candidates: Sequence[Candidate],
    matched: Sequence[int],
    shared: int,
    rng: Rng,
    now: float,
    unix_now: float,
    branched: int = 0,
    *,
    weighs: bool = True,
) -> SchedulingContext:
    """Build the scheduling context of a request and its candidates.

    Args:
        pool_state: The pool.
        request: The request.
        variant: Its variant.
        candidates: Its candidates.
        matched: Leading blocks of the prompt that each candidate probably has cached.
        shared: Leading blocks that are worth a copy on every replica.
        rng: Source of randomness.
        now: Monotonic seconds, for the age of readings.
        unix_now: Wall-clock seconds, for ramps.
        branched: Leading blocks that belong to several prompts.
        weighs: Whether the policy uses work and strength (``Policy.weighs``).
    """
    pool = pool_state.pool
    stale = now - FRESH_S
    pending: list[float] = [
        candidate.load.in_flight + candidate.replica.others
        if candidate.replica.others_at > stale
        else candidate.load.in_flight
        for candidate in candidates
    ]
    scale = request.bytes_per_token
    block_tokens = request.block_tokens or pool.block_chars / scale
    tokens: float | None = request.tokens
    if tokens is None:
        prompt = request.features.prompt
        tokens = len(request.blocks) * block_tokens
        if prompt is not None and len(prompt) > tokens * scale:
            tokens = len(prompt) / scale
    ramp = _ramp(pool, candidates, unix_now) if pool.slow_start.window_s > 0.0 else None
    return SchedulingContext(
        request,
        candidates,
        variant,
        pool_state.size,
        pending,
        [candidate.load.work for candidate in candidates] if weighs else (),
        [candidate.capacity for candidate in candidates] if weighs or ramp is not None else (),
        matched,
        len(request.blocks),
        shared,
        pool.load_factor,
        float(int(tokens)) if tokens else None,
        block_tokens,
        pool_state.latency_model,
        now,
        rng,
        ramp,
        branched,
    )


def _ramp(pool: Pool, candidates: Sequence[Candidate], unix_now: float) -> list[float] | None:
    ramp: list[float] | None = None
    for number, candidate in enumerate(candidates):
        joined, restarted = candidate.joined_unix_s, candidate.replica.restarted_unix_s
        if restarted is not None:
            joined = restarted if joined is None else max(joined, restarted)
        if joined is not None and (risen := factor(pool.slow_start, joined, unix_now)) < 1.0:
            if ramp is None:
                ramp = [1.0] * len(candidates)
            ramp[number] = risen
    return ramp


def silent_last(context: SchedulingContext, prices: Sequence[float]) -> Sequence[float]:
    """Return the prices with silent replicas last."""
    if not any(candidate.replica.silent for candidate in context.candidates):
        return prices
    behind = max(prices) - min(prices) + 1.0
    return [
        price + behind if candidate.replica.silent else price
        for candidate, price in zip(context.candidates, prices, strict=True)
    ]


def cheapest(
    prices: Sequence[float], count: int, rng: Rng, prompted: SchedulingContext | None = None
) -> list[int]:
    """Return the indices of the ``count`` lowest prices, equal ones in random order.

    Behind the first ``DRAWN`` equal ones follow each other as they are, from a random one on.

    Args:
        prices: Prices by index.
        count: How many.
        rng: Source of randomness.
        prompted: The context of a request with a prompt whose candidates report their caches. If
            several idle ones have the lowest price, the one that was sent the fewest tokens to
            compute then comes first: a prompt evicts others, and so the caches of an idle fleet
            are under equal pressure. Of equal ones it is the one whose last prefill ended first.
    """
    price_of = prices.__getitem__
    ranked = sorted(range(len(prices)), key=price_of)
    if len(set(prices)) == len(ranked):  # nothing to draw
        return ranked[:count]
    wanted = min(count, len(ranked))
    drawn = min(DRAWN, wanted)
    order: list[int] = []
    begin, random = 0, rng.random
    while begin < wanted:
        end = bisect_right(ranked, prices[ranked[begin]], begin + 1, key=price_of)
        ties = ranked[begin:end]
        left = end - begin
        if left > 1:
            if prompted is not None and not begin and not prompted.pending[ties[0]]:
                left -= _least_sent(prompted, ties, order)
            least = max(left - drawn + len(order), 1)
            order += [ties.pop(int(random() * many)) for many in range(left, least, -1)]
            left = len(ties)
            if left > 1 and len(order) < wanted:
                at = int(random() * left)
                ties = ties[at:] + ties[:at]
        order += ties
        begin = end
    return order[:wanted]


def _least_sent(prompted: SchedulingContext, ties: list[int], order: list[int]) -> int:
    """Move the one that was sent the fewest tokens from ``ties`` to ``order``; return how many."""
    candidates = prompted.candidates
    sent = [
        (candidates[index].replica.prefilled, candidates[index].replica.busy_until)
        for index in ties
    ]
    least = min(sent)
    if sent.count(least) > 1:
        return 0
    order.append(ties.pop(sent.index(least)))
    return 1


def work_of(context: SchedulingContext, index: int) -> float:
    """Estimate the uncached input tokens of a request on one candidate, at least 1."""
    if context.tokens is None:
        return 1.0
    return max(1.0, context.tokens - context.matched[index] * context.block_tokens)
