"""prefix-affinity: picks the replica that holds most of the prompt, within a bound on the load.

Formula, lower is better::

    gain  = max(0, matched - shared)           blocks that only this replica and few others hold
    load  = (work + 512 * (pending + 1)) / strength             tokens, ours in flight
    price = (blocks - gain) + load / (load + 4096)              blocks to compute, then load
            + (blocks + 1 if the replica is above its bound)
    bound = max(2, ceil(load_factor * (all pending + 1) * strength / all strength))   requests;
            1 instead of 2 if several conversations share the whole match

The longest match wins among the replicas within the bound; load decides between equal matches and
for a prompt that no replica holds. Replicas above the bound follow in the same order.

Inputs: prefix index; own ledger; fresh readings of the replicas' queues; capacity.
Default: ``load_factor`` 1.5.
Use it for: LLMs whose prompts recur, as in conversations, agents and shared documents.
Not for: models without a prompt (it then works like least-in-flight, weighted by work).

The bound is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016),
with the prefix index instead of the hash. It counts the request being placed and is at least 2, as
otherwise any second request would turn affinity off in a nearly idle fleet. ``shared`` blocks (a
system prompt that many conversations continue) give no preference: in the published conversation
traces every prompt starts with the same block, and the longest match alone would send them all to
one replica. Blocks become shared copy by copy: a prefix of ``d`` blocks that ``c`` replicas hold
gives no preference once ``(c + 1) * d`` prompts continue it, because one block for each pays for
another copy. Until then it gives a preference for an idle replica only: the bound of 2 is for a
conversation's own blocks, so a second request behind a system prompt creates the next copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.policies.base import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import SchedulingContext

REQUEST_TOKENS: Final = 512.0
"""Load of a request in flight in addition to its prefill, in prefill tokens. A decoding step costs
a batch about 0.35 ms per member, and prefill runs at 8,000 tokens/s, so 200 output tokens cost
about 560 prefill tokens. Measure before using it on other hardware."""
HALF_LOAD_TOKENS: Final = 4096.0
"""Load that costs half a block; it only scales a term that keeps the order of loads."""
MIN_BOUND: Final = 2


class PrefixAffinity(Policy):
    """Longest useful match within bounded loads, among the sampled candidates of a large pool."""

    everyone = False
    copies = True
    stepwise = True

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return blocks to compute (whole part) and load (fraction) of each candidate."""
        # Requests per unit of strength. ``pending + 1 <= ceil(x)`` is ``pending < x``; the
        # subtraction keeps a product such as 1.1 * 10 = 11.000000000000002 from rounding up.
        share = context.load_factor * (sum(context.pending) + 1.0) / sum(context.strength)
        blocks, shared, branched = context.blocks, context.shared, context.branched
        prices = []
        for pending, work, strength, matched in zip(
            context.pending, context.work, context.strength, context.matched, strict=True
        ):
            load = (work + REQUEST_TOKENS * (pending + 1.0)) / strength
            price = blocks + load / (load + HALF_LOAD_TOKENS)
            if matched > shared:
                price -= matched - shared
            least = 1 if 0 < matched <= branched else MIN_BOUND
            if pending + 1.0 > least and pending >= share * strength - 1e-9:
                price += blocks + 1.0
            prices.append(price)
        return prices

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Return ``prefix`` if a match decided, ``spill`` if the bound overruled one."""
        gain = max(0, context.matched[index] - context.shared)
        if max(context.matched) - context.shared > gain:
            return "spill"
        return "prefix" if gain else "least"
