"""What a policy knows of one request and its candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.latency.model import FleetLatencyModel
    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng


class SchedulingContext(Plain):
    """One request and its eligible candidates; the lists run side by side.

    Args:
        request: The request.
        candidates: At least one.
        variant: Their variant.
        slots: Endpoints in the pool, eligible or not; a candidate's ``position`` is below it.
        pending: Requests on each replica: ours in flight, and what others have waiting there if
            known.
        work: Uncached input tokens that we have in flight on each replica.
        strength: Capacity; above 0.
        matched: Blocks of the prompt that each replica probably holds, contiguous from the root.
        blocks: Full blocks of the prompt; 0 = unknown or shorter than one.
        shared: How many of these are common property (``PrefixIndex.shared_depth``).
        load_factor: The pool's.
        tokens: Estimated tokens of the prompt; ``None`` where there is none to be seen.
        block_tokens: Estimated tokens of one block.
        latency_model: What the pool's usual replica needs.
        now: Monotonic seconds.
        rng: Chance.
        ramp: Ramp factor of each candidate, 1 = warm; ``None`` where all are. The router gives
            ramping candidates their turns (``slow_start``): policies price them like the others.
        branched: How many of the blocks belong to several prompts (``PrefixIndex.branched_depth``);
            0 where the policy does not ask for it (``Policy.copies``).
    """

    __slots__ = (
        "block_tokens",
        "blocks",
        "branched",
        "candidates",
        "latency_model",
        "load_factor",
        "matched",
        "now",
        "pending",
        "ramp",
        "request",
        "rng",
        "shared",
        "slots",
        "strength",
        "tokens",
        "variant",
        "work",
    )

    def __init__(
        self,
        request: Request,
        candidates: Sequence[Candidate],
        variant: str,
        slots: int,
        pending: Sequence[float],
        work: Sequence[float],
        strength: Sequence[float],
        matched: Sequence[int],
        blocks: int,
        shared: int,
        load_factor: float,
        tokens: float | None,
        block_tokens: float,
        latency_model: FleetLatencyModel,
        now: float,
        rng: Rng,
        ramp: Sequence[float] | None = None,
        branched: int = 0,
    ) -> None:
        self.request = request
        self.candidates = candidates
        self.variant = variant
        self.slots = slots
        self.pending = pending
        self.work = work
        self.strength = strength
        self.matched = matched
        self.blocks = blocks
        self.shared = shared
        self.load_factor = load_factor
        self.tokens = tokens
        self.block_tokens = block_tokens
        self.latency_model = latency_model
        self.now = now
        self.rng = rng
        self.ramp = ramp
        self.branched = branched
