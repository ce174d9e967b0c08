"""What a policy is given, and what it must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.state.context import SchedulingContext
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.ticket import Outcome, Ticket

HELD: Final = "held"
"""The label of a decision whose reply waits for companions (``co_batch``)."""


class Policy(Protocol):
    """Chooses among candidates by giving each a price.

    A policy is made per pool and lives as long as the pool names it. What it needs to know of
    durations is learned outside it (``latency_model``), for all policies alike: so a policy that is
    swapped in knows at once what the one before has seen.
    """

    everyone: ClassVar[bool] = True
    """It must see each eligible candidate. Of a large pool the others are shown the holders of the
    prompt and a random sample (``candidates``), which makes a decision cost the same at any
    size."""
    stepwise: ClassVar[bool] = False
    """What prompts have in common becomes common property copy by copy, as its continuations pay
    for each, and not at once where they pay for all."""
    learns: ClassVar[bool] = False
    """It hears what became of its decisions: ``charged`` and ``settled``."""

    in_seconds: ClassVar[bool] = False
    """Its prices are seconds above 0, so twice the price is twice as bad."""

    def configure(self, pool: Pool) -> None:
        """Take the settings of the pool, before the first question and whenever they change."""
        del pool

    copies: ClassVar[bool] = False
    """It weighs copies of what several prompts share, by ``SchedulingContext.branched``."""

    def prices(self, context: SchedulingContext) -> Sequence[float]:
        """Return a price per candidate, lower is better; equal ones are drawn by chance.

        Asking changes nothing but ``context.rng``: a simulator or an explanation may ask as often
        as it likes.
        """
        ...

    def picked(self, context: SchedulingContext, index: int) -> str:
        """Take note that the candidate at ``index`` got the request; return the reason's label."""
        ...

    def parts(self, context: SchedulingContext, index: int) -> Mapping[str, float]:
        """Return what the price of one candidate consists of, by name, for explanations.

        Without parts a price speaks for itself.
        """
        del context, index
        return {}

    def charged(self, ticket: Ticket) -> None:
        """Hear the ticket of the decision that ``picked`` was just told of."""
        del ticket

    def settled(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Hear how a request of the pool ended, whoever decided it."""
        del ticket, outcome, now

    def describe(self, now: float) -> Mapping[str, object]:
        """Return what it keeps, ready for JSON; empty where it keeps nothing worth a look."""
        del now
        return {}
