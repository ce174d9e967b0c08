"""Scheduling context: the input of a policy for one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.latency.model import FleetLatencyModel
    from ext_proc.routing.state.pool_state import Candidate
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.rng import Rng


class SchedulingContext(Plain):
    """One request and its eligible candidates; the lists are parallel to ``candidates``.

    Args:
        request: The request.
        candidates: At least one.
        variant: The variant of the candidates.
        slots: Endpoints in the pool, eligible or not; a candidate's ``position`` is below it.
        pending: Requests on each replica: ours in flight, plus those of other clients queued there
            if known.
        work: Uncached input tokens that we have in flight on each replica; empty if the policy does
            not use them (``Policy.weighs``).
        strength: Capacity of each replica, above 0; empty if neither policy nor ``ramp`` uses it.
        matched: Blocks of the prompt that each replica probably holds, contiguous from the root.
        blocks: Full blocks of the prompt; 0 = unknown or shorter than one block.
        shared: Leading blocks that are worth a copy on every replica
            (``PrefixTable.shared_depth``).
        load_factor: The pool's setting.
        tokens: Estimated tokens of the prompt; ``None`` if no prompt was read.
        block_tokens: Estimated tokens per block.
        latency_model: The pool's fleet latency model.
        now: Monotonic seconds.
        rng: Source of randomness.
        ramp: Ramp factor of each candidate, 1 = warm; ``None`` if all are warm. The router limits
            ramping candidates itself (``slow_start``), so policies price them like the others.
        branched: Leading blocks that belong to several prompts (``PrefixTable.branched_depth``);
            0 if the policy does not use them (``Policy.copies``).
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
