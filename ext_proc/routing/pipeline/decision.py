"""The result of a scheduling decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.pipeline.context import cheapest
from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.pipeline.scheduler import Choice
    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.ticket import Ticket


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
    """

    __slots__ = (
        "addresses",
        "candidates",
        "first_answer_s",
        "matched_blocks",
        "pool",
        "prices",
        "reason",
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

    @property
    def scores(self) -> list[tuple[str, float]]:
        """Endpoint id and price of each candidate, for explanations."""
        return [
            (candidate.key.id, price)
            for candidate, price in zip(self.candidates, self.prices, strict=True)
        ]


def unpriced(choice: Choice, pool: Pool, rng: Rng) -> Decision:
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
    )
