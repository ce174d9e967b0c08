"""token-bucket: gives each replica a work allowance whose rate follows its queue.

Formula, per replica, in seconds of its learned work; a pick takes the request's own seconds::

    level = min(BURST, level + rate * elapsed)
    price = -level
    rate  * 0.7   at most once a second, while more than 4 requests per strength of others wait
    rate  + 0.05  at most once a second, while fewer than 1 waits and the allowance is used up
    0.1 <= rate <= 2

A request's own seconds are ``uncached / R``, or the learned service time without a prompt. One
pick may overdraw the allowance, because a long prompt exceeds any burst.

Inputs: durations of own requests; fresh readings of the replicas' queues (unknown: the rate stays).
Defaults: ``BURST`` 0.25 s.
Use it for: bursts in front of a batcher; replicas that other clients use too and whose queue shows
when to yield.
Not for: affinity; fleets without readings, where it only spreads work by seconds.

Guarantee: while another replica has allowance, an overdrawn replica is not picked: in ``t`` seconds
it gets at most ``BURST + 2 t`` seconds of work plus the one request that overdraws. If all are
overdrawn, the least overdrawn is picked; only the pool's in-flight limit refuses requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext
    from ext_proc.routing.values.pool import EndpointKey

BURST_S: Final = 0.25
LEAST_RATE: Final = 0.1
MOST_RATE: Final = 2.0
EVERY_S: Final = 1.0
HIGH: Final = 4.0
LOW: Final = 1.0


class _Bucket(NamedTuple):
    level: float
    at: float
    rate: float
    judged: float


class TokenBucket(Policy):
    """A bucket per replica; at most twice as many as the pool has endpoints."""

    def __init__(self) -> None:
        self._buckets: dict[EndpointKey, _Bucket] = {}

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return each candidate's negated allowance, seconds."""
        return [-self.level(candidate, context.now) for candidate in context.candidates]

    def level(self, candidate: Candidate, now: float) -> float:
        """Return the allowance of a replica, seconds of work."""
        bucket = self._buckets.get(candidate.key)
        if bucket is None:
            return BURST_S
        return min(BURST_S, bucket.level + bucket.rate * (now - bucket.at))

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Take the request's seconds; return ``least``, or ``spill`` if it had no allowance."""
        candidate, now = context.candidates[index], context.now
        if len(self._buckets) > 2 * context.slots:  # replicas were added and removed
            present = {each.key for each in context.candidates}
            for gone in [each for each in self._buckets if each not in present]:
                del self._buckets[gone]
        level = self.level(candidate, now)
        rate, judged = 1.0, now
        if (bucket := self._buckets.get(candidate.key)) is not None:
            rate, judged = bucket.rate, bucket.judged
            if now - judged >= EVERY_S:
                rate, judged = self._judge(candidate, rate, level, now), now
        if context.tokens is None:
            own = context.latency_model.service_s
        else:
            uncached = context.tokens - context.matched[index] * context.block_tokens
            own = max(1.0, uncached) * context.latency_model.seconds_per_token
        left = level - own * candidate.latency_model.slowness
        self._buckets[candidate.key] = _Bucket(left, now, rate, judged)
        return "least" if level > 0.0 else "spill"

    def _judge(self, candidate: Candidate, rate: float, level: float, now: float) -> float:
        waiting = candidate.replica.others_queued(now)
        if waiting is None:
            return rate
        if waiting > HIGH * candidate.capacity:
            return max(LEAST_RATE, rate * 0.7)
        if waiting < LOW and level <= 0.0:
            return min(MOST_RATE, rate + 0.05)
        return rate
