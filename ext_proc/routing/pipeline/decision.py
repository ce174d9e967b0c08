"""The result of a scheduling decision: the order that prices give, addresses, time until a repeat.

Rules for the time that the proxy waits for a replica's first sign before it tries another:

1. The route has a bound on the time to the headers of an answer (``timeouts.first_answer``). Here
   it is shortened for a request whose answer is streamed: there the headers come with the first
   token at the latest; the time of other answers depends on their unknown length. Engines that send
   headers at once always keep it: Envoy has no bound on the time to the first token.
2. The bound is ``FIRST_ANSWER_FACTOR`` times the larger of two values: the expected time of this
   prompt on the pick, behind the work before it, and the recent peak of the pick's times to the
   first byte, which rises with a queue. It is never below ``first_answer_least_s``.
3. Where either is unknown, nothing is shortened. gRPC streams have no bound: they may be idle.
4. Bounds are steps of 1.5, so that few different ones occur and replies can be cached.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.placement import Sent
from ext_proc.routing.pipeline.sampling import SMALL
from ext_proc.routing.values.plain import Plain
from ext_proc.routing.values.request import GRPC_STREAM, NAMES_ADAPTER
from tidegate_api.pools import MAX_LISTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.health.placement import Holders, Placement
    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.state.candidates import Candidate, PoolState, SchedulingContext
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.ticket import Ticket


DRAWN: Final = 3
"""Places of an order for which equal prices are drawn singly."""
SHARED_MEMORY: Final = b"shared_memory_region"
"""In the body of a request that names a region, in JSON and in protobuf: Triton answers 404 to one
that it does not know, whatever it has of the model."""


class Decision(Plain):
    """An ordered choice of replicas with its reason.

    Args:
        ticket: The charge of the pick; ``None`` for non-inference requests.
        addresses: The pick, followed by its fallbacks.
        pool: The pool's name.
        variant: The variant's name.
        reason: Short label from a fixed set, e.g. ``prefix``, ``least``, ``sequence``.
        retriable: False if only the pick can serve it, because it has the sequence's state.
        matched_blocks: Blocks of the prompt that the pick probably holds.
        candidates: The candidates.
        prices: Their prices, lower is better.
        repeatable: False for sequences, and for requests that several replicas died with: a second
            replica must not read the request.
        first_answer_s: Bound on the time to the headers of the answer; ``None`` = the route's own.
        repeat_missing: A 404 may be repeated on the fallbacks: some replica has the model.
    """

    __slots__ = (
        "addresses",
        "candidates",
        "first_answer_s",
        "matched_blocks",
        "pool",
        "prices",
        "reason",
        "repeat_missing",
        "repeatable",
        "retriable",
        "ticket",
        "variant",
    )

    def __init__(
        self,
        ticket: Ticket | None,
        addresses: tuple[str, ...],
        pool: str,
        variant: str,
        reason: str,
        retriable: bool = True,
        matched_blocks: int = 0,
        candidates: Sequence[Candidate] = (),
        prices: Sequence[float] = (),
        repeatable: bool = True,
        first_answer_s: float | None = None,
        repeat_missing: bool = False,
    ) -> None:
        self.ticket = ticket
        self.addresses = addresses
        self.pool = pool
        self.variant = variant
        self.reason = reason
        self.retriable = retriable
        self.matched_blocks = matched_blocks
        self.candidates = candidates
        self.prices = prices
        self.repeatable = repeatable
        self.first_answer_s = first_answer_s
        self.repeat_missing = repeat_missing

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Endpoint id and price of each candidate, for explanations."""
        return [
            (candidate.key.id, price)
            for candidate, price in zip(self.candidates, self.prices, strict=True)
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


def listed(
    choice: Choice,
    order: Sequence[int],
    pool_state: PoolState,
    failed: Mapping[EndpointKey, float],
) -> tuple[str, ...]:
    """Return the addresses of a pick and its fallbacks, at most ``MAX_LISTED``.

    Rules:

    1. Where replicas share a host, or are in several zones, no host comes again before all others,
       nor a zone: what fails together is not all that is tried. Else the order is that of prices.
    2. Replicas whose latest sign was a failure come behind the others, the latest one last.
    3. Behind those that may have the model come those that may have it since (``Holders.maybe``).

    Args:
        choice: The candidates.
        order: Indices of the pick and of fallbacks, by price: more than are listed, where hosts or
            zones are mixed.
        pool_state: The pool.
        failed: Replicas whose latest sign was a failed connection, and when (``Conditions``).
    """
    candidates, placed = choice.context.candidates, choice.placed
    if choice.leased or not pool_state.pool.fallbacks:
        return (candidates[order[0]].address,)
    if pool_state.mixes and len(candidates) > 1:
        order = _mixed(candidates, order)
    if failed:
        last = sorted(order[1:], key=lambda index: failed.get(candidates[index].key, 0.0))
        order = [order[0], *last]
    addresses = [candidates[index].address for index in order]
    if placed is not None and placed.maybe and len(addresses) < MAX_LISTED:
        request = choice.context.request
        open_ = pool_state.open_by_key.get((choice.context.variant, request.protocol), {})
        if request.care is None and request.subset is None:
            maybe = [open_[each].address for each in placed.maybe if each in open_]
            addresses += [each for each in maybe if each not in addresses]
    return tuple(addresses[:MAX_LISTED])


def _mixed(candidates: Sequence[Candidate], order: Sequence[int]) -> list[int]:
    """Return the indices with hosts and zones in turn; the pick stays the first."""
    hosts: dict[str, int] = {}
    zones: dict[str, int] = {}
    turns: list[tuple[int, int, int, int]] = []
    for place, index in enumerate(order):
        candidate = candidates[index]
        host = hosts[candidate.host] = hosts.get(candidate.host, -1) + 1
        zone = zones[candidate.zone] = zones.get(candidate.zone, -1) + 1
        turns.append((host, zone, place, index))
    turns.sort()
    return [turn[3] for turn in turns]


def repeats(
    placement: Placement,
    holders: Holders | None,
    context: SchedulingContext,
    picked: int,
    ticket: Ticket | None,
) -> bool:
    """Note a pick that has the model READY; return whether a 404 may be repeated.

    Args:
        placement: The table.
        holders: Which replicas have the request's model.
        context: The candidates.
        picked: Index of the pick.
        ticket: The pick's ticket, ``None`` if it has none.
    """
    model = context.request.features.model
    if holders is None:
        return False
    candidates = context.candidates
    if holders.version and ticket is not None:
        pool, variant = ticket.pool, context.variant
        sent = Sent(pool, variant, model or "", holders.version)
        placement.sent(candidates[picked].key, sent)
    request = context.request
    if model is None or not holders.repeats or placement.is_own(holders, model, request.client):
        return False
    if request.body is not None and SHARED_MEMORY in request.body:
        return False
    features = request.features
    if features.adapter is not None and features.form in NAMES_ADAPTER:
        return False  # an engine answers 404 to an adapter that it does not know
    if ticket is not None and candidates[picked].key in holders.ready:
        placement.note(ticket.id, model, request.client, context.now)
    return True


def unpriced(
    choice: Choice,
    pool_state: PoolState,
    rng: Rng,
    placement: Placement,
    failed: Mapping[EndpointKey, float],
) -> Decision:
    """Send a non-inference request to the least loaded replica; changes no state but ``rng``."""
    context = choice.context
    order = cheapest(choice.prices, SMALL if pool_state.mixes else MAX_LISTED, rng)
    addresses = listed(choice, order, pool_state, failed)
    missing = repeats(placement, choice.placed, context, order[0], None)
    return Decision(
        ticket=None,
        addresses=addresses,
        pool=pool_state.pool.name,
        variant=context.variant,
        reason="other",
        candidates=context.candidates,
        prices=choice.prices,
        repeat_missing=missing and len(addresses) > 1,
    )


FIRST_ANSWER_FACTOR: Final = 5.0
FIRST_ANSWER_STEP: Final = 1.5


def first_answer_s(
    context: SchedulingContext, picked: int, pool: Pool, ticket: Ticket | None
) -> float | None:
    """Return the bound for a request, ``None`` for the route's own.

    Args:
        context: The context of its decision.
        picked: Position of the pick among the candidates.
        pool: Its pool.
        ticket: Its ticket.
    """
    features = context.request.features
    if not features.streaming or ticket is None:
        return None
    least, most = pool.first_answer_least_s, pool.first_answer_s
    if not 0.0 < least < most:
        return None
    candidate = context.candidates[picked]
    expected = candidate.latency_model.expects(ticket.work + ticket.coming)
    served = candidate.replica.served.get(pool.name)
    peak = None if served is None else served.peak.value(context.now)
    if expected is None or peak is None or features.form is GRPC_STREAM:
        return None
    expected += ticket.drain_s or 0.0
    wanted = FIRST_ANSWER_FACTOR * max(expected, peak)
    while least < wanted:
        least *= FIRST_ANSWER_STEP
    return least if least < most else None
