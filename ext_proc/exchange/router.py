"""Interface between an exchange and the request router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.pipeline.decision import Decision
    from ext_proc.routing.queue.queue import Queue
    from ext_proc.routing.queue.waiting import QueuedRequest
    from ext_proc.routing.relief import Relief
    from ext_proc.routing.state.owners import Told
    from ext_proc.routing.uploads import Uploads
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.pool import Protocol as Spoken
    from ext_proc.routing.values.proposal import Proposal
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.request import Features, Request
    from ext_proc.routing.values.ticket import Outcome, Ticket


class RequestRouter(Protocol):
    """The part of the request router that exchanges and their streams use."""

    on_room: Callable[[], None]
    """Called when a request has ended while others wait."""

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The pools by name."""

    @property
    def relief(self) -> Relief:
        """What is left out while the picker's CPU does not suffice."""

    @property
    def uploads(self) -> Uploads:
        """The uploads under way."""

    @property
    def queue(self) -> Queue:
        """The requests that wait for a replica with room."""

    def bytes_per_token(self, pool: str, model: str | None = None) -> float:
        """Return the scale of a pool's text (``routing.scales``)."""

    def pool_for(self, features: Features, path: str, protocol: Spoken) -> str | Refusal:
        """Return the pool of a request whose route does not name one."""

    def decide(
        self, request: Request, now: float, unix_now: float, granted: Proposal | None = None
    ) -> Decision | Refusal:
        """Choose a replica and charge the request to it."""

    def place(self, proposal: Proposal, told: Told, latest: float) -> Callable[[], None]:
        """Ask the picker that places a sequence; return what takes the question back."""

    def wait(
        self, waiting: QueuedRequest, now: float, unix_now: float
    ) -> Decision | Refusal | None:
        """Decide a request, or let it wait for a replica with room (``None``)."""

    def pump(self, now: float, unix_now: float) -> int:
        """Let go what can go of the requests that wait; return how many were told."""

    def served(self, ticket: Ticket, address: str, now: float) -> Ticket:
        """Move the charge to the replica at ``address``; return the ticket that is open now."""

    def settle(self, ticket: Ticket, outcome: Outcome, now: float) -> bool:
        """Release the charge; return whether it was still open."""
