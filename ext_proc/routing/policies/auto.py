"""auto: the replica that costs the fleet the fewest seconds. The default.

Formula, in seconds, lower is better; for a request with a prompt::

    price   = drain + (1 + ALPHA) * uncached / R + delta * pending + others / R' + barrier
    drain   = min(max(0, busy_until - now), work in flight / R)
    barrier = LAMBDA * k / (1 - k)                     k = share of the KV cache in use

and for one without::

    price   = drain + (pending + 1) * service

``uncached`` is what of the prompt the replica does not hold (a common prefix that is no more than
half of the prompt counts as held by all), ``busy_until`` a virtual clock that
each dispatch moves by its uncached prefill. ``R``, ``delta`` and ``service`` are learned per
replica (``pace``); ``others / R'`` is what other pickers have waiting there, taken for requests
of the usual length.

So the replica that holds the prompt wins until waiting for it costs more than computing the
prompt again, counting with ``ALPHA`` what this costs all the others: prefill that was done twice,
and the blocks that the copy displaces. There is no bound of requests, as prompts differ a
hundredfold in tokens, and no share of the prompt that makes a match: both are in the seconds.
What is common property (``PrefixIndex.shared_depth``) and less than half of the prompt, such as
a system prompt before a conversation, is worth a copy on each replica; were it priced, a fleet
with little to do would send every new conversation to one replica. The half is Preble's rule.

Inputs: prefix index; own ledger; durations of own requests; fresh readings of queue and KV cache.
Defaults: ``ALPHA`` 4, ``LAMBDA`` 0.15 s (that of SMG's least_load); 8,000 tokens/s until learned.
Use it for: everything; with equal replicas and no prompts it is least-in-flight.
Not for: pickers that must agree without talking (consistent-hash-bounded).

The form is that of Preble (Srivatsa et al., ICLR 2025) and Mooncake (Qin et al., FAST 2025): work
in seconds instead of scores. Idle replicas with equal prices are drawn by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy
from ext_proc.routing.roster import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.policies.base import Offer
    from ext_proc.routing.roster import Seat

ALPHA: Final = 4.0
LAMBDA_S: Final = 0.15
FULL: Final = 0.999
"""A cache is never priced fuller than this: the barrier is high, not infinite."""


class Auto(Policy):
    """Affinity priced in seconds; keeps no state of its own."""

    everyone = False

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return the seconds that each seat costs."""
        now, pace, tokens = offer.now, offer.pace, offer.tokens
        prices: list[float] = []
        if tokens is None:
            service, per_token = pace.service_s, pace.seconds_per_token
            for seat, pending in zip(offer.seats, offer.pending, strict=True):
                slowness, replica = seat.pace.slowness, seat.replica
                price = (pending + 1.0) * service * slowness
                if replica.busy_until > now:
                    price += replica.drain_s(now, per_token * slowness)
                prices.append(price)
            return prices
        per_token, per_block = pace.seconds_per_token, offer.block_tokens
        delta, other = pace.delta_s, pace.mean_tokens * per_token
        whole = (1.0 + ALPHA) * per_token
        stale = now - FRESH_S
        common = _common(offer)
        for seat, pending, matched in zip(offer.seats, offer.pending, offer.matched, strict=True):
            slowness, replica, in_flight = seat.pace.slowness, seat.replica, seat.load.in_flight
            uncached = tokens - (matched if matched > common else common) * per_block  # noqa: FURB136 - a call costs twice as much here
            price = whole * uncached if uncached > 1.0 else whole
            if pending:
                price += delta * pending
                if pending > in_flight:
                    price += other * (pending - in_flight)
            price *= slowness
            if replica.busy_until > now:
                price += replica.drain_s(now, per_token * slowness)
            if replica.kv_used and replica.kv_at > stale:
                price += barrier_s(replica.kv_used)
            prices.append(price)
        return prices

    def picked(self, offer: Offer, index: int) -> str:
        """Tell ``prefix`` where a match decided, ``spill`` where seconds overruled a longer one."""
        gain = max(0, offer.matched[index] - offer.shared)
        if max(offer.matched) - offer.shared > gain:
            return "spill"
        return "prefix" if gain else "least"

    def parts(self, offer: Offer, index: int) -> Mapping[str, float]:
        """Return the seconds of each term; their sum is the price."""
        seat, pace, pending = offer.seats[index], offer.pace, offer.pending[index]
        slowness = seat.pace.slowness
        drain = seat.replica.drain_s(offer.now, pace.seconds_per_token * slowness)
        if offer.tokens is None:
            service = pace.service_s * slowness
            return {"drain_s": drain, "in_flight_s": pending * service, "own_s": service}
        held = max(offer.matched[index], _common(offer))
        uncached = max(1.0, offer.tokens - held * offer.block_tokens)
        own = uncached * pace.seconds_per_token * slowness
        waiting = pending - seat.load.in_flight
        return {
            "drain_s": drain,
            "own_s": own,
            "cost_to_others_s": ALPHA * own,
            "in_flight_s": pace.delta_s * pending * slowness,
            "others_s": waiting * pace.mean_tokens * pace.seconds_per_token * slowness,
            "memory_s": _memory_s(seat, offer.now),
        }


def _common(offer: Offer) -> int:
    return offer.shared if 2 * offer.shared <= offer.blocks else 0


def _memory_s(seat: Seat, now: float) -> float:
    fresh = seat.replica.kv_at > now - FRESH_S
    return barrier_s(seat.replica.kv_used) if fresh else 0.0


def barrier_s(kv_used: float) -> float:
    """Return what the fullness of a KV cache costs, seconds.

    A cache that is nearly full preempts running requests; the barrier keeps work away before.
    """
    used = min(max(kv_used, 0.0), FULL)
    return LAMBDA_S * used / (1.0 - used)
