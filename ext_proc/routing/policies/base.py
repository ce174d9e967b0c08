"""What a policy is given, and what it must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from ext_proc.routing.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.draw import Rng
    from ext_proc.routing.pace import FleetPace
    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import Outcome, Pool, Request, Ticket

HELD: Final = "held"
"""The label of a decision whose reply waits for companions (``co_batch``)."""


class Offer(Plain):
    """One request and its eligible seats; the lists run side by side.

    Args:
        request: The request.
        seats: At least one.
        variant: Their variant.
        slots: Endpoints in the pool, eligible or not; a seat's ``position`` is below it.
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
        pace: What the pool's usual replica needs.
        now: Monotonic seconds.
        rng: Chance.
        ramp: Ramp factor of each seat, 1 = warm; ``None`` where all are. The router gives ramping
            seats their turns (``turns``): policies price them like the others.
        branched: How many of the blocks belong to several prompts (``PrefixIndex.branched_depth``);
            0 where the policy does not ask for it (``Policy.copies``).
    """

    __slots__ = (
        "block_tokens",
        "blocks",
        "branched",
        "load_factor",
        "matched",
        "now",
        "pace",
        "pending",
        "ramp",
        "request",
        "rng",
        "seats",
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
        seats: Sequence[Seat],
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
        pace: FleetPace,
        now: float,
        rng: Rng,
        ramp: Sequence[float] | None = None,
        branched: int = 0,
    ) -> None:
        self.request = request
        self.seats = seats
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
        self.pace = pace
        self.now = now
        self.rng = rng
        self.ramp = ramp
        self.branched = branched


class Policy(Protocol):
    """Chooses among seats by giving each a price.

    A policy is made per pool and lives as long as the pool names it. What it needs to know of
    durations is learned outside it (``pace``), for all policies alike: so a policy that is
    swapped in knows at once what the one before has seen.
    """

    everyone: ClassVar[bool] = True
    """It must see each eligible seat. Of a large pool the others are shown the holders of the
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
    """It weighs copies of what several prompts have in common, and is told ``Offer.branched``."""

    def prices(self, offer: Offer) -> Sequence[float]:
        """Return a price per seat, lower is better; equal ones are drawn by chance.

        Asking changes nothing but ``offer.rng``: a simulator or an explanation may ask as often
        as it likes.
        """
        ...

    def picked(self, offer: Offer, index: int) -> str:
        """Take note that the seat at ``index`` got the request; return the reason's label."""
        ...

    def parts(self, offer: Offer, index: int) -> Mapping[str, float]:
        """Return what the price of one seat consists of, by name, for explanations.

        Without parts a price speaks for itself.
        """
        del offer, index
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
