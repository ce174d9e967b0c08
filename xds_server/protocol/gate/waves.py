"""Waves: a stage goes to one Envoy, then to its node group, then to all. Pure.

Rules:

1. The wave *one* is the first Envoy, by node group and node id, that can tell: it holds the stage
   before, has answered on this connection before, and has refused nothing of late.
2. When it has accepted, the wave *group* follows: the other Envoys of its node group. When these
   have answered or are late, the wave *all* follows: all others, with those that could not tell.
3. If the wave *one* does not accept although the publication goes on, another Envoy takes its
   place, at most ``MAX_TRIES`` Envoys in all. Then, or if there is none, the stage goes to all.
4. Until its wave an Envoy stays on the stage before, also one that connects meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from xds_server.protocol.client import Client

MAX_TRIES: Final = 3
"""Most Envoys on which a stage is tried, one after the other."""


class Waves:
    """The waves of the current stage; see the module's rules."""

    def __init__(self) -> None:
        self._wave: Literal["one", "group", "all"] = "all"
        self._group = ""
        self._first = 0
        self._tries = 0

    @property
    def open(self) -> bool:
        """The stage has not come to all Envoys yet."""
        return self._wave != "all"

    def close(self) -> None:
        """End the waves: the stage is for all."""
        self._wave = "all"

    def begin(self, waiting: Iterable[Client]) -> Collection[Client]:
        """Return the first wave of a new stage; all of ``waiting`` if none of them can tell."""
        self._tries = 0
        return self._one(list(waiting))

    def following(self, clients: Mapping[int, Client]) -> Collection[Client]:
        """Return the next wave; called when the one before was answered.

        Args:
            clients: All connected clients by number.
        """
        waiting = [client for client in clients.values() if client.left == "WAVE"]
        if self._wave == "one":
            first = clients.get(self._first)
            if first is None or first.left or first.standing.state != "SYNCED":
                return self._one(waiting)
            group = [client for client in waiting if client.group == self._group]
            if group:
                self._wave = "group"
                return group
        self._wave = "all"
        return waiting

    def _one(self, waiting: list[Client]) -> Collection[Client]:
        able = [client for client in waiting if _can_tell(client)]
        if not able or self._tries >= MAX_TRIES:
            self._wave = "all"
            return waiting
        self._tries += 1
        first = min(able, key=lambda client: (client.group, client.node, client.number))
        self._wave, self._group, self._first = "one", first.group, first.number
        return (first,)


def _can_tell(client: Client) -> bool:
    debt = client.debt
    answered = debt.slowest_s is not None and not (debt.known_late or debt.unsteady)
    trusted = not client.refusals.count and not client.refusing
    return client.standing.state == "SYNCED" and answered and trusted
