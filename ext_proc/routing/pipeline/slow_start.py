"""Slow start: gives a ramping replica its share of requests, at any load.

Dividing its load by a ramp factor, as weighted least-request does, gives a ramping replica its
share only if all replicas are busy: with a few requests in flight it is never the cheapest and
starves, and later in the ramp it suddenly takes all requests. Its share is therefore drawn at
random:

1. For requests whose prompt no replica holds beyond its shared blocks, each ramping replica is
   *drawn* with probability ``f * c / sum(f * c)``: its ramped share of the candidates' capacity.
2. The drawn replica comes first, unless its load per capacity is already above the mean, or prompts
   wait more than ``PATIENCE_S`` longer on it than on the freest warm candidate. A ramping replica
   that is not drawn comes last; if prices are seconds, its price is multiplied by ``1 / f``
   instead, so that warm replicas are not overloaded while new ones are idle.
3. A ramping replica that holds more of the prompt than its shared blocks keeps its price: an
   affinity hit is worth the same on a new replica.
4. The restraint ends where prompts wait more than ``PATIENCE_S`` on each warm candidate, and the
   rest of that wait is longer than the ramping one's divided by its ramp factor: it then keeps its
   price. Most of a fleet may ramp at once, and the few warm replicas cannot serve for all.
5. If all candidates are ramping, prices are unchanged.

``f`` is Envoy's factor for a new replica, whose own slow start has no effect on a host that the
picker selects (``envoy.extensions.load_balancing_policies.common.v3.SlowStartConfig``)::

    factor = max(min_weight, (max(age, 1 s) / window) ** (1 / aggression))   while age < window
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.settings import SlowStart


MIN_AGE_S: Final = 1.0
"""Envoy's minimum of the age; it also covers a joining time in the future by a skewed clock."""


def factor(slow_start: SlowStart, joined_unix_s: float | None, unix_now: float) -> float:
    """Return the share of its weight that a replica may use.

    Args:
        slow_start: The pool's slow-start settings.
        joined_unix_s: When the replica joined, wall-clock seconds; ``None`` = it is warm.
        unix_now: Wall-clock seconds.

    Returns:
        A number in (0, 1]; 1 = warm.
    """
    if joined_unix_s is None:
        return 1.0
    age = max(unix_now - joined_unix_s, MIN_AGE_S)
    if age >= slow_start.window_s:
        return 1.0
    risen = float((age / slow_start.window_s) ** (1.0 / slow_start.aggression))
    # The fleet file allows a minimum of 0 %. Loads are divided by the factor, so it stays above 0.
    return max(slow_start.min_weight, risen, 1e-3)


PATIENCE_S: Final = 0.5
"""Difference in waiting between warm and ramping replicas that outweighs no share, seconds."""


def with_slow_start(
    context: SchedulingContext, prices: Sequence[float], rng: Rng, *, in_seconds: bool = False
) -> Sequence[float]:
    """Return the prices with ramping candidates put first or last; see the module's rules."""
    ramp = context.ramp
    if ramp is None or max(ramp) < 1.0:
        return prices
    lowest, highest = min(prices), max(prices)
    first, behind = lowest - 1.0, highest - lowest + 1.0
    drawn = -1 if max(context.matched) > context.shared else _drawn(context, ramp, rng)
    waits = _waits(context)
    least = min([wait for wait, factor in zip(waits, ramp, strict=True) if factor >= 1.0])
    if drawn >= 0 and waits[drawn] > least + PATIENCE_S:
        drawn = -1
    least -= PATIENCE_S
    return [
        price
        if factor >= 1.0 or matched > context.shared or wait < least * factor
        else first
        if index == drawn
        else price / factor
        if in_seconds
        else price + behind
        for index, (price, factor, matched, wait) in enumerate(
            zip(prices, ramp, context.matched, waits, strict=True)
        )
    ]


def _waits(context: SchedulingContext) -> list[float]:
    """Return the seconds of prefill before the request on each candidate."""
    now, per_token = context.now, context.latency_model.seconds_per_token
    return [
        each.replica.drain_s(now, per_token * each.latency_model.slowness)
        for each in context.candidates
    ]


def _drawn(context: SchedulingContext, ramp: Sequence[float], rng: Rng) -> int:
    """Draw a ramping candidate to come first; -1 = none, or its load is above the mean."""
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
