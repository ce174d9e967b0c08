"""What a policy is given, and what it must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.draw import Rng
    from ext_proc.routing.pace import FleetPace
    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import Outcome, Pool, Request, Ticket

HELD: Final = "held"
"""The label of a decision whose reply waits for companions (``co_batch``)."""


class Offer(NamedTuple):
    """One request and its eligible seats; the lists run side by side."""

    request: Request
    seats: Sequence[Seat]
    """At least one."""
    variant: str
    slots: int
    """Endpoints in the pool, eligible or not; a seat's ``position`` is below it."""
    pending: Sequence[float]
    """Requests on each replica: ours in flight, and what others have waiting there if known."""
    work: Sequence[float]
    """Uncached input tokens that we have in flight on each replica."""
    strength: Sequence[float]
    """Capacity; above 0."""
    matched: Sequence[int]
    """Blocks of the prompt that each replica probably holds, contiguous from the root."""
    blocks: int
    """Full blocks of the prompt; 0 = unknown or shorter than one."""
    shared: int
    """How many of these are common property (``PrefixIndex.shared_depth``)."""
    load_factor: float
    tokens: float | None
    """Estimated tokens of the prompt; ``None`` where there is none to be seen."""
    block_tokens: float
    """Estimated tokens of one block."""
    pace: FleetPace
    """What the pool's usual replica needs."""
    now: float
    """Monotonic seconds."""
    rng: Rng
    """Chance."""
    ramp: Sequence[float] | None = None
    """Ramp factor of each seat, 1 = warm; ``None`` where all are. The router gives ramping seats
    their turns (``turns``): policies price them like the others."""
    branched: int = 0
    """How many of the blocks belong to several prompts (``PrefixIndex.branched_depth``); 0 where
    the policy does not ask for it (``Policy.copies``)."""


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
