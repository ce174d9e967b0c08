"""Turns: how a replica that ramps up gets its share, at any load.

Dividing its load by a ramp factor, as weighted least-request does, gives it that share only where
everybody is busy: with a few requests in flight it is never the cheapest and starves, and once
the ramp is far enough it takes everything at once. So its share is drawn:

1. Of the requests whose prompt no replica holds, each ramping replica is *called* with the
   probability ``f * c / sum(f * c)``: its ramped part of the candidates' capacity.
2. The called one comes first, unless it already has more to do, per capacity, than the others on
   average. A ramping replica that is not called comes last; where prices are seconds, its price
   counts ``1 / f`` times instead, so that warm replicas are not overrun while new ones stand idle.
3. A replica that holds part of the prompt that the others lack keeps its price: an affinity hit
   is worth the same on a young replica.
4. Where all candidates ramp there is nobody to spare them: prices stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.rng import Rng


def with_slow_start(
    context: SchedulingContext, prices: Sequence[float], rng: Rng, *, in_seconds: bool = False
) -> Sequence[float]:
    """Return the prices with ramping candidates put first or last; see the module's rules."""
    ramp = context.ramp
    if ramp is None or max(ramp) < 1.0:
        return prices
    lowest, highest = min(prices), max(prices)
    first, behind = lowest - 1.0, highest - lowest + 1.0
    called = -1 if max(context.matched) > context.shared else _called(context, ramp, rng)
    return [
        price
        if factor >= 1.0 or matched > context.shared
        else first
        if index == called
        else price / factor
        if in_seconds
        else price + behind
        for index, (price, factor, matched) in enumerate(
            zip(prices, ramp, context.matched, strict=True)
        )
    ]


def _called(context: SchedulingContext, ramp: Sequence[float], rng: Rng) -> int:
    """Draw the ramping candidate whose turn it is; -1 = none, or it has enough to do."""
    strengths = [factor * capacity for factor, capacity in zip(ramp, context.strength, strict=True)]
    left = rng.random() * sum(strengths)
    for index, strength in enumerate(strengths):
        if ramp[index] >= 1.0:
            continue
        left -= strength
        if left < 0.0:
            mean = sum(context.pending, 0.0) / sum(context.strength, 0.0)
            busy = context.pending[index] / context.strength[index] > mean
            return -1 if busy else index
    return -1
