"""auto: the replica that costs the fleet the fewest seconds. The default.

Formula, in seconds, lower is better; for a request with a prompt::

    price   = drain + (uncached + spoilt * private) / R + delta * pending + others / R' + barrier
    drain   = min(max(0, busy_until - now), work in flight / R)
    spoilt  = ALPHA + BETA * pending / mean pending of the candidates
    delta   = 64 / R
    barrier = LAMBDA * f / (1 - f),  f = max(0, 2 k - 1)      k = share of the KV cache in use

and for one without::

    price   = drain + (pending + 1) * service

``uncached`` is what of the prompt the replica does not hold, ``private`` what of it belongs to one
conversation only (``PrefixIndex.branched_depth``). ``busy_until`` is a virtual clock that each
dispatch moves by its uncached prefill. ``R`` and ``service`` are learned per replica (``pace``);
``others / R'`` is what other pickers have waiting there, taken for requests of the usual length.

``R`` is divided by how late the replica's first unanswered request is (``awaited``), or how late
its latest answers began (``slowdown``), once either is clear; ``drain`` then is at least what it
has not answered. A replica that turns slow is so left alone as soon as it is late and while it
stays slow, not once many answers have come late.

So the replica that holds the prompt wins until waiting for it costs more than computing the
prompt again, counting with ``ALPHA`` what this costs all the others: prefill that is done twice,
and the blocks that the copy displaces. There is no bound of requests, as prompts differ a
hundredfold in tokens, and no share of the prompt that makes a match: both are in the seconds.
What several prompts have in common costs no more than its own prefill: its copy is not done
twice, it is what the next of these prompts finds. Were it priced like a conversation, a popular
prefix would stay where it was first seen, and its replica be the busiest. A prefix that is worth
a copy everywhere (``PrefixIndex.shared_depth``) and at most half of the prompt counts as held by
all: a fleet with little to do would otherwise send every new conversation to one replica. The half
is Preble's rule.

``BETA`` is what a prefill costs the answers that run beside it, whose next tokens all wait for
it: most where most are running. Two replicas that are equally far from free so take a long prompt
and short ones apart. It is a share, so that a fleet of long answers does not outweigh waiting.

``delta`` is small: it orders replicas that are equally far from free, and keeps answers from
piling up where prefixes are. What delays a first token is in ``drain``.

Inputs: prefix index; own ledger; first bytes and durations of own requests; fresh readings of queue
and KV cache. A reading that is stale or missing takes its term away and nothing else.
Defaults: ``ALPHA`` 4; ``BETA`` 1/4; ``LAMBDA`` 0.15 s (that of SMG's least_load, but from half
full on, as a cache that is half empty preempts nobody); 8,000 tokens/s until learned.
Use it for: everything; with equal replicas and no prompts it is least-in-flight.
Not for: pickers that must agree without talking (consistent-hash-bounded).

Fitted were ``ALPHA`` on Mooncake's conversation trace, ``delta`` on its first half and on generated
sessions, ``BETA`` among 1/8, 1/4, 1/2 and 1 on the first third of that trace, Azure's, and three of
the generators; other workloads of ``docs/routing.md`` decided which terms stayed.

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
BETA: Final = 0.25
LAMBDA_S: Final = 0.15
FULL: Final = 0.999
"""A cache is never priced fuller than this: the barrier is high, not infinite."""


class Auto(Policy):
    """Affinity priced in seconds; keeps no state of its own."""

    everyone = False
    in_seconds = True
    copies = True

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return the seconds that each seat costs."""
        now, pace, tokens = offer.now, offer.pace, offer.tokens
        if tokens is None:
            return _without_prompt(offer)
        prices: list[float] = []
        per_token, per_block = pace.seconds_per_token, offer.block_tokens
        delta, other = pace.delta_s, pace.mean_tokens * per_token
        whole, waiting = (1.0 + ALPHA) * per_token, sum(offer.pending)
        stalled = BETA * per_token * len(offer.pending) / waiting if waiting else 0.0
        stale, common = now - FRESH_S, _common(offer)
        branched = max(offer.branched, common)
        for seat, pending, matched in zip(offer.seats, offer.pending, offer.matched, strict=True):
            slowness, replica, in_flight = seat.pace.slowness, seat.replica, seat.load.in_flight
            price = whole + stalled * pending
            deep = matched if matched > branched else branched  # noqa: FURB136 - a call costs twice as much here
            private = tokens - deep * per_block
            if private > 1.0:
                price *= private
            if matched < branched:
                held = matched if matched > common else common  # noqa: FURB136 - the same
                price += per_token * (branched - held) * per_block
            if pending:
                price += delta * pending
                if pending > in_flight:
                    price += other * (pending - in_flight)
            if replica.awaited.due < now:
                slowness *= replica.awaited.lateness(now, pace.heard_to)
                price = price * slowness + _drain_s(seat, offer, per_token * slowness)
            elif replica.busy_until > now:
                price = price * slowness + replica.drain_s(now, per_token * slowness)
            else:
                price *= slowness
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
        if offer.tokens is None:
            drain = seat.replica.drain_s(offer.now, pace.seconds_per_token * slowness)
            service = pace.service_s * slowness
            return {"drain_s": drain, "in_flight_s": pending * service, "own_s": service}
        slowness *= seat.replica.awaited.lateness(offer.now, pace.heard_to)
        matched, per_token = offer.matched[index], pace.seconds_per_token * slowness
        held = max(matched, _common(offer))
        copied = max(0, offer.branched - held) * offer.block_tokens
        private = max(1.0, offer.tokens - max(held, offer.branched) * offer.block_tokens)
        waiting, all_pending = pending - seat.load.in_flight, sum(offer.pending)
        share = pending * len(offer.pending) / all_pending if all_pending else 0.0
        return {
            "drain_s": _drain_s(seat, offer, per_token),
            "own_s": (private + copied) * per_token,
            "cost_to_others_s": (ALPHA + BETA * share) * private * per_token,
            "in_flight_s": pace.delta_s * pending * slowness,
            "others_s": waiting * pace.mean_tokens * per_token,
            "memory_s": _memory_s(seat, offer.now),
        }


def _without_prompt(offer: Offer) -> list[float]:
    """Return the price of each seat for a request that has no prompt."""
    now, pace = offer.now, offer.pace
    prices: list[float] = []
    for seat, pending in zip(offer.seats, offer.pending, strict=True):
        slowness, replica = seat.pace.slowness, seat.replica
        price = (pending + 1.0) * pace.service_s * slowness
        if replica.busy_until > now:
            price += replica.drain_s(now, pace.seconds_per_token * slowness)
        prices.append(price)
    return prices


def _drain_s(seat: Seat, offer: Offer, per_token: float) -> float:
    """Return the seconds before a request: of a late replica at least all that is unanswered."""
    replica, now = seat.replica, offer.now
    drain = replica.drain_s(now, per_token)
    if replica.awaited.lateness(now, offer.pace.heard_to) > 1.0:
        return max(drain, replica.awaited.work * per_token)
    return drain


def _memory_s(seat: Seat, now: float) -> float:
    fresh = seat.replica.kv_at > now - FRESH_S
    return barrier_s(seat.replica.kv_used) if fresh else 0.0


def _common(offer: Offer) -> int:
    """Return how many blocks count as held by all."""
    return offer.shared if 2 * offer.shared <= offer.blocks else 0


def barrier_s(kv_used: float) -> float:
    """Return what the fullness of a KV cache costs, seconds.

    A cache that is nearly full preempts running requests; the barrier keeps work away before. One
    that is not yet half full costs nothing.
    """
    used = min(max(2.0 * kv_used - 1.0, 0.0), FULL)
    return LAMBDA_S * used / (1.0 - used)
