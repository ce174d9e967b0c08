"""Interface between an exchange and the request router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.pipeline.decision import Decision
    from ext_proc.routing.uploads import Uploads
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.pool import Protocol as Spoken
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.request import Features, Request
    from ext_proc.routing.values.ticket import Outcome, Ticket


class RequestRouter(Protocol):
    """The part of the request router that an exchange uses."""

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The pools by name."""

    @property
    def uploads(self) -> Uploads:
        """The uploads under way."""

    def bytes_per_token(self, pool: str, model: str | None = None) -> float:
        """Return the scale of a pool's text (``routing.scales``)."""

    def pool_for(self, features: Features, path: str, protocol: Spoken) -> str | Refusal:
        """Return the pool of a request whose route does not name one."""

    def decide(self, request: Request, now: float, unix_now: float) -> Decision | Refusal:
        """Choose a replica and charge the request to it."""

    def served(self, ticket: Ticket, address: str, now: float) -> Ticket:
        """Move the charge to the replica at ``address``; return the ticket that is open now."""

    def settle(self, ticket: Ticket, outcome: Outcome, now: float) -> bool:
        """Release the charge; return whether it was still open."""
