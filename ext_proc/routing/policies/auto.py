"""auto: picks the replica that costs the fleet the fewest seconds. The default.

Formula, in seconds, lower is better; for a request with a prompt::

    price   = drain + (uncached + spoilt * private) / R + delta * pending + others / R' + barrier
    drain   = min(max(0, busy_until - now), work in flight whose answers have not begun / R)
    spoilt  = ALPHA * share of busy candidates + BETA * pending / mean pending of the candidates
    delta   = 64 / R
    barrier = LAMBDA * f / (1 - f),  f = max(0, 2 k - 1)      k = share of the KV cache in use

and for a request without one::

    price   = drain + (pending + 1) * service

``uncached`` is the tokens of the prompt that the replica does not hold, ``private`` those of them
that belong to one conversation only (``PrefixTable.branched_depth``). ``busy_until`` is a virtual
clock that each dispatch advances by its uncached prefill; it follows ``R``. ``R`` and ``service``
are learned per replica (``latency_model``). ``others / R'`` is the work that other pickers have
queued there, counted as requests of the usual length.

``R`` is divided by the lateness of the replica's oldest pending first byte
(``pending_first_bytes``), or of its latest answers (``slowdown``), once either is significant;
``drain`` is then at least the pending work. A replica that turns slow is therefore avoided as soon
as it is late and while it stays slow, not only after many late answers.

The replica that holds the prompt wins until waiting for it costs more than computing the prompt
again. ``ALPHA`` adds the cost to all other requests: prefill that is done twice, and the blocks
that the copy evicts. It counts as far as the fleet is busy, i.e. for the share of the candidates
whose clock is ahead: a second prefill where replicas are idle delays no other. There is no bound on
requests, because prompts differ a hundredfold in tokens, and no minimum share of a prompt for a
match: the seconds cover both. Blocks that several prompts share cost only their own prefill,
because the copy is reused by the next of these prompts. If they
were priced like a conversation, a popular prefix would stay on its first replica and make that the
busiest. A prefix that is worth a copy on every replica (``PrefixTable.shared_depth``) and is at
most half of the prompt counts as held by all. Otherwise a nearly idle fleet would send every new
conversation to one replica. The half is Preble's rule.

``BETA`` is the cost of a prefill to the answers that run beside it, whose next tokens all wait for
it; it is highest where most are running. Of two replicas with equal drain, long prompts therefore
go to one and short ones to the other. It is relative to the mean, so that in a fleet of long
answers it does not outweigh waiting.

``delta`` is small: it orders replicas with equal drain, and keeps answers from piling up where
prefixes are. ``drain`` covers the delay of a first token.

Inputs: prefix index; own ledger; first bytes and durations of own requests; fresh readings of queue
and KV cache. A stale or missing reading removes only its own term.
Defaults: ``ALPHA`` 4; ``BETA`` 1/4; ``LAMBDA`` 0.15 s (that of SMG's least_load, but only above
half full, because a cache that is half empty preempts no request); 8,000 tokens/s until learned.
Use it for: everything; with equal replicas and no prompts it is least-in-flight.
Not for: pickers that must agree without communication (consistent-hash-bounded).

``ALPHA`` was fitted on Mooncake's conversation trace, ``delta`` on its first half and on generated
sessions, ``BETA`` among 1/8, 1/4, 1/2 and 1 on the first third of that trace, Azure's, and three of
the generators; other workloads of ``docs/reports/routing.md`` decided which terms stayed.

The form is that of Preble (Srivatsa et al., ICLR 2025) and Mooncake (Qin et al., FAST 2025): work
in seconds instead of scores. Ties are drawn at random. Only of idle replicas that report their
caches the one that was sent the fewest tokens to compute gets a prompt: drawn at random, prompts
that no replica holds crowded some caches, and by turns, prompts of kinds that alternate had a cache
for each kind (``bench/compare/kv_belief.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.model import IN_FLIGHT_TOKENS
from ext_proc.routing.policies.base import Policy
from ext_proc.routing.state.candidates import FRESH_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.candidates import Candidate, SchedulingContext

ALPHA: Final = 4.0
BETA: Final = 0.25
LAMBDA_S: Final = 0.15
FULL: Final = 0.999
"""Maximum of ``f``, so that the barrier stays finite."""


class Auto(Policy):
    """Cache affinity and load priced in seconds; stateless."""

    everyone = False
    in_seconds = True
    copies = True
    weighs = False

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return the cost of each candidate, seconds."""
        now, latency_model, tokens = context.now, context.latency_model, context.tokens
        if tokens is None:
            return _without_prompt(context)
        prices: list[float] = []
        per_token, per_block = latency_model.seconds_per_token, context.block_tokens
        delta, other = IN_FLIGHT_TOKENS * per_token, latency_model.mean_tokens * per_token
        ahead = [candidate.replica.busy_until > now for candidate in context.candidates]
        busy, waiting = ahead.count(True) / len(ahead), sum(context.pending)
        whole = (1.0 + ALPHA * busy) * per_token
        stalled = BETA * per_token * len(context.pending) / waiting if waiting else 0.0
        stale, common = now - FRESH_S, _common(context)
        branched = max(context.branched, common)
        private, copied, idle, seen = 1.0, 0.0, 0.0, -1
        for candidate, pending, matched, drains in zip(
            context.candidates, context.pending, context.matched, ahead, strict=True
        ):
            slowness, replica = candidate.latency_model.slowness, candidate.replica
            if matched != seen:  # most candidates hold as much as the one before: nothing
                seen = matched
                private = max(tokens - max(matched, branched) * per_block, 1.0)
                copied = 0.0
                if matched < branched:
                    copied = per_token * (branched - max(matched, common)) * per_block
                idle = whole * private + copied
            if not (pending or drains or replica.kv_used) and replica.first_bytes.due >= now:
                prices.append(idle * slowness)
                continue
            price = (whole + stalled * pending) * private + copied + delta * pending
            if pending > candidate.load.in_flight:
                price += other * (pending - candidate.load.in_flight)
            if replica.first_bytes.due < now:
                slowness *= replica.first_bytes.lateness(now, latency_model.reported_until)
                price = price * slowness + _drain_s(candidate, context, per_token * slowness)
            elif drains:
                price = price * slowness + replica.drain_s(now, per_token * slowness)
            else:
                price *= slowness
            if replica.kv_used and replica.kv_at > stale:
                price += barrier_s(replica.kv_used)
            prices.append(price)
        return prices

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``prefix`` if a match decided, ``spill`` if cost overruled a longer one."""
        held, shared = context.matched[index], context.shared
        if max(context.matched) > max(held, shared):
            return "spill"
        return "prefix" if held > shared else "least"

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return the terms of the price, seconds; their sum is the price."""
        candidate, latency_model, pending = (
            context.candidates[index],
            context.latency_model,
            context.pending[index],
        )
        slowness = candidate.latency_model.slowness
        if context.tokens is None:
            drain = candidate.replica.drain_s(
                context.now, latency_model.seconds_per_token * slowness
            )
            service = latency_model.service_s * slowness
            return {"drain_s": drain, "in_flight_s": pending * service, "own_s": service}
        slowness *= candidate.replica.first_bytes.lateness(
            context.now, latency_model.reported_until
        )
        matched, per_token = context.matched[index], latency_model.seconds_per_token * slowness
        held = max(matched, _common(context))
        copied = max(0, context.branched - held) * context.block_tokens
        private = max(1.0, context.tokens - max(held, context.branched) * context.block_tokens)
        waiting, all_pending = pending - candidate.load.in_flight, sum(context.pending)
        share = pending * len(context.pending) / all_pending if all_pending else 0.0
        return {
            "drain_s": _drain_s(candidate, context, per_token),
            "own_s": (private + copied) * per_token,
            "cost_to_others_s": (ALPHA * _busy(context) + BETA * share) * private * per_token,
            "in_flight_s": latency_model.delta_s * pending * slowness,
            "others_s": waiting * latency_model.mean_tokens * per_token,
            "memory_s": _memory_s(candidate, context.now),
        }


def _busy(context: SchedulingContext) -> float:
    """Return the share of the candidates that have prefill of ours to do."""
    now = context.now
    busy = [candidate.replica.busy_until > now for candidate in context.candidates]
    return busy.count(True) / len(busy)


def _without_prompt(context: SchedulingContext) -> list[float]:
    """Return the price of each candidate for a request without a prompt."""
    now, latency_model = context.now, context.latency_model
    prices: list[float] = []
    for candidate, pending in zip(context.candidates, context.pending, strict=True):
        slowness, replica = candidate.latency_model.slowness, candidate.replica
        price = (pending + 1.0) * latency_model.service_s * slowness
        if replica.busy_until > now:
            price += replica.drain_s(now, latency_model.seconds_per_token * slowness)
        prices.append(price)
    return prices


def _drain_s(candidate: Candidate, context: SchedulingContext, per_token: float) -> float:
    """Return the drain in seconds; of a late replica it is at least its pending work."""
    replica, now = candidate.replica, context.now
    drain = replica.drain_s(now, per_token)
    if replica.first_bytes.lateness(now, context.latency_model.reported_until) > 1.0:
        return max(drain, replica.first_bytes.work * per_token)
    return drain


def _memory_s(candidate: Candidate, now: float) -> float:
    fresh = candidate.replica.kv_at > now - FRESH_S
    return barrier_s(candidate.replica.kv_used) if fresh else 0.0


def _common(context: SchedulingContext) -> int:
    """Return the number of leading blocks that count as held by all."""
    return context.shared if 2 * context.shared <= context.blocks else 0


def barrier_s(kv_used: float) -> float:
    """Return the cost of a KV cache's fullness, seconds.

    A nearly full cache preempts running requests; the barrier keeps new work away before that. A
    cache that is less than half full costs nothing.
    """
    used = min(max(2.0 * kv_used - 1.0, 0.0), FULL)
    return LAMBDA_S * used / (1.0 - used)
