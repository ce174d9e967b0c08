"""The interface of a routing policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.candidates import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.ticket import Outcome, Ticket

HELD: Final = "held"
"""Reason of a decision whose reply is held until other requests join it (``co_batch``)."""


class Policy(Protocol):
    """Chooses among candidates by giving each a price.

    A policy is created per pool and lives as long as the pool names it. Latencies are learned
    outside of it (``latency_model``), for all policies alike, so a policy that replaces another one
    uses what was learned before.
    """

    everyone: ClassVar[bool] = True
    """It needs every eligible candidate. Other policies get, in a large pool, the holders of the
    prompt and a random sample (``sampling``), so that the cost of a decision does not depend on the
    pool's size."""
    stepwise: ClassVar[bool] = False
    """Blocks that several prompts share become widely shared (``SchedulingContext.shared``) copy by
    copy, once their continuations pay for the next copy, not only once they pay for all copies."""
    learns: ClassVar[bool] = False
    """It is called with the results of its decisions: ``charged`` and ``settled``."""

    in_seconds: ClassVar[bool] = False
    """Its prices are seconds above 0, so that a price twice as high is twice as bad."""

    weighs: ClassVar[bool] = True
    """It reads ``SchedulingContext.work`` or ``strength``; they are empty for other policies."""

    keyed: ClassVar[bool] = False
    """What a request names (its session, its prompt) decides its replica, whatever is cached."""

    def configure(self, pool: Pool) -> None:
        """Take the pool's settings, before the first decision and whenever they change."""
        del pool

    copies: ClassVar[bool] = False
    """It prices copies of blocks that several prompts share, by ``SchedulingContext.branched``."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return a price per candidate, lower is better; ties are broken at random (``cheapest``).

        Changes nothing but ``context.rng``, so that simulators and explanations may call it freely.
        """
        ...

    def stays(self, context: SchedulingContext) -> bool:
        """Return whether a request must not be moved from the replica with the lowest price."""
        del context
        return False

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Note that the candidate at ``index`` got the request; return the reason's label."""
        ...

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return the terms of one candidate's price by name, for explanations.

        Empty for a price that has no terms.
        """
        del context, index
        return {}

    def charged(self, ticket: Ticket) -> None:
        """Take the ticket of the decision for which ``picked`` was just called."""
        del ticket

    def settled(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Take the outcome of a request of the pool, decided by any policy."""
        del ticket, outcome, now

    def describe(self, now: float) -> Mapping[str, object]:
        """Return its state, ready for JSON; empty if there is none to show."""
        del now
        return {}
