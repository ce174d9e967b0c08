"""Standing requests: those that replicas have whole and have not begun to answer. Pure.

Rules:

1. A request stands from the moment at which its client had sent all of it. Until then it is the
   client's to go on, and says nothing of the replica.
2. The proxy tells once a second of each running request. One that it has not told of for
   ``FORGOTTEN_S`` has ended, or the log is lost.
3. At most ``MAX_REQUESTS`` are kept; further ones are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ext_proc.routing.values.pool import EndpointKey

FORGOTTEN_S: Final = 5.0
MAX_REQUESTS: Final = 16_384


class Stands(NamedTuple):
    """One standing request."""

    key: EndpointKey
    client: int
    since: float
    """When its client had sent it, monotonic seconds."""
    told_at: float
    pool: str = ""
    headed: bool = False
    """Headers of an answer have come."""


class StandingRequests:
    """Standing requests by ticket; see the module's rules."""

    def __init__(self) -> None:
        self._of: dict[int, Stands] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[tuple[int, Stands]]:
        return iter(self._of.items())

    def note(
        self,
        ticket_id: int,
        key: EndpointKey,
        client: int,
        since: float,
        now: float,
        pool: str = "",
        *,
        headed: bool = False,
    ) -> None:
        """Note that a replica has a request and has not begun to answer it; see ``Stands``."""
        if ticket_id in self._of or len(self._of) < MAX_REQUESTS:
            self._of[ticket_id] = Stands(key, client, since, now, pool, headed)

    def ended(self, ticket_id: int | None) -> None:
        """Note that an answer has begun, or the request has ended."""
        if ticket_id is not None:
            self._of.pop(ticket_id, None)

    def by_replica(self, now: float) -> Mapping[EndpointKey, Sequence[Stands]]:
        """Return the standing requests of each replica, without those that are forgotten."""
        found: dict[EndpointKey, list[Stands]] = {}
        for ticket_id, each in list(self._of.items()):
            if now - each.told_at > FORGOTTEN_S:
                del self._of[ticket_id]
            else:
                found.setdefault(each.key, []).append(each)
        return found
