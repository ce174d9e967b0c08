"""The result of a scheduling decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.placement import Sent
from ext_proc.routing.pipeline.context import cheapest
from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.health.placement import Holders, Placement
    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.ticket import Ticket


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
        repeat_missing: A 404 may be repeated on the first fallback, which has the model READY.
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


def repeats(
    placement: Placement,
    holders: Holders | None,
    context: SchedulingContext,
    order: Sequence[int],
    ticket: Ticket | None,
) -> bool:
    """Note a pick that has the model READY; return whether its 404 may be repeated.

    Args:
        placement: The table.
        holders: Which replicas have the request's model.
        context: The candidates.
        order: Their indices, the pick first and its fallbacks after it.
        ticket: The pick's ticket, ``None`` if it has none.
    """
    model = context.request.features.model
    if holders is None:
        return False
    candidates = context.candidates
    if holders.version and ticket is not None:
        pool, variant = ticket.pool, context.variant
        sent = Sent(pool, variant, model or "", holders.version)
        placement.sent(candidates[order[0]].key, sent)
    request = context.request
    if model is None or not holders.repeats or placement.is_own(holders, model, request.client):
        return False
    if request.body is not None and SHARED_MEMORY in request.body:
        return False
    if ticket is not None and candidates[order[0]].key in holders.ready:
        placement.note(ticket.id, model, request.client, context.now)
    return len(order) > 1 and candidates[order[1]].key in holders.ready


def unpriced(choice: Choice, pool: Pool, rng: Rng, placement: Placement) -> Decision:
    """Send a non-inference request to the least loaded replica; changes no state but ``rng``."""
    context = choice.context
    order = cheapest(choice.prices, 1 + pool.fallbacks, rng)
    return Decision(
        ticket=None,
        addresses=tuple([context.candidates[index].address for index in order]),
        pool=pool.name,
        variant=context.variant,
        reason="other",
        candidates=context.candidates,
        prices=choice.prices,
        repeat_missing=repeats(placement, choice.placed, context, order, None),
    )
