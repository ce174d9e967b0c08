"""Origins: on whose behalf a request is sent, so that one caller's failures count once. Pure.

An *origin* is what a request says of itself, a *client* is who sent it as far as the proxy vouches
for it (``Request.client``). A client may send requests of any number of origins.

Rules:

1. The origin of a request is the first that it has of: session, sequence, last block of the prompt,
   its body where that is kept (``routing.suspicion``). It is kept by ticket, because the verdict
   comes after the request. Where chance decided on which replica it runs, that experiment
   (``routing.health.experiment``) takes the place of its origin.
2. A request with none of these is ``ANONYMOUS``: nothing connects it with others, so each counts.
   A request without a ticket, or whose ticket is no longer known, is ``UNKNOWN``; all of these are
   one origin.
3. All requests whose client is not known are one client, ``UNKNOWN``.
4. At most ``MAX_TICKETS`` requests are kept. They are kept in two generations: when the younger one
   is full it replaces the older one, so noting a request takes one assignment. Of those whose work
   goes on without their callers (``GOES_ON``) the ticket is kept, too.
5. An origin is turned into a number only for a verdict that needs it. Numbers are equal in all
   processes.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.request import Form

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Request
    from ext_proc.routing.values.ticket import Ticket

UNKNOWN: Final = 0
ANONYMOUS: Final = 1
GOES_ON: Final = frozenset({Form.HTTP_INFER, Form.GENERATE, Form.GRPC_INFER})
"""Forms whose work an engine does to its end."""
MAX_TICKETS: Final = 16_384
MAX_CLIENTS: Final = 4096
"""Clients whose numbers are cached."""
MAX_CHARS: Final = 128
"""Longer sessions are equal if their beginnings are."""
_GENERATION: Final = MAX_TICKETS // 2

_Identity = tuple[object, ...] | str | int | None


def identity(request: Request) -> _Identity:
    """Return what identifies the origin of a request; ``None`` = anonymous."""
    features = request.features
    session = features.session
    if session is not None:
        return session if len(session) <= MAX_CHARS else session[:MAX_CHARS]
    if features.sequence_id is not None:
        return features.sequence
    blocks = request.blocks
    return blocks[-1] if blocks else None


def number_of(identity: _Identity) -> int:
    """Return an identity as an integer of 63 bits."""
    if identity is None:
        return ANONYMOUS
    digest = blake2b(repr(identity).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1) | 2


@lru_cache(maxsize=MAX_CLIENTS)
def client_number(client: str | None) -> int:
    """Return a client as an integer of 63 bits."""
    return UNKNOWN if client is None else number_of(("client", client))


class SentRequests:
    """Origins, clients and tickets of the latest requests that were sent."""

    __slots__ = ("_older", "_younger")

    def __init__(self) -> None:
        self._younger: dict[int, tuple[_Identity, str | None, Ticket | None]] = {}
        self._older: dict[int, tuple[_Identity, str | None, Ticket | None]] = {}

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def note(
        self, ticket: Ticket, request: Request, experiment: tuple[object, ...] | None = None
    ) -> None:
        """Keep a request that was sent, with the experiment of which it is part."""
        younger = self._younger
        who = identity(request) if experiment is None else experiment
        goes_on = ticket if request.features.form in GOES_ON else None
        younger[ticket.id] = who, request.client, goes_on
        if len(younger) >= _GENERATION:
            self._older, self._younger = younger, {}

    def origin(self, ticket_id: int | None) -> int:
        """Return the number of a request's origin; ``UNKNOWN`` if the ticket is not known."""
        for kept in (self._younger, self._older):
            if ticket_id in kept:
                return number_of(kept[ticket_id][0])
        return UNKNOWN

    def client(self, ticket_id: int | None) -> int:
        """Return the number of a request's client; ``UNKNOWN`` if it is not known."""
        for kept in (self._younger, self._older):
            if ticket_id in kept:
                return client_number(kept[ticket_id][1])
        return UNKNOWN

    def goes_on(self, ticket_id: int) -> Ticket | None:
        """Return the ticket of a request whose work goes on without its caller, if it is known."""
        found = self._younger.get(ticket_id) or self._older.get(ticket_id)
        return None if found is None else found[2]
