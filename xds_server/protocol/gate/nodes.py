"""What is remembered of a node beyond one connection: lateness, refusals, and who shares its id.

Rules:

1. Memory is kept by audience and node id. What it is worth is said in ``patience`` and
   ``quarantine``; both are bounded there.
2. *Twins* are several connected clients with one node id of one audience: two processes with one
   configured id, or one that has reconnected before the end of its old connection was noticed.
   Each is a client of its own. A new one begins as late if a twin is late now, and with the
   refusals that are remembered of the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.protocol.gate.patience import STOOD_S, LateNodes
from xds_server.protocol.gate.quarantine import RefusingNodes

if TYPE_CHECKING:
    from xds_server.protocol.client import Client
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.snapshot import Snapshot


class Nodes:
    """The nodes of all clients, and of some that are gone; see the module's rules."""

    def __init__(self) -> None:
        self._late = LateNodes()
        self._unsteady = LateNodes()
        self._refusing = RefusingNodes()
        self._connected: dict[tuple[Audience, str], dict[int, Client]] = {}

    def joined(self, client: Client, build: str, now: float) -> None:
        """Note a new client, and let it begin with what is remembered of its node."""
        twins = self._connected.setdefault(client.key, {})
        late = client.key in self._late or any(twin.is_late(now) for twin in twins.values())
        client.debt.known_late = late
        client.debt.unsteady = client.key in self._unsteady
        client.refusals = self._refusing.of(client.key, build)
        twins[client.number] = client

    def gone(self, client: Client, now: float) -> None:
        """Note that a client has disconnected."""
        twins = self._connected[client.key]
        del twins[client.number]
        if not twins:
            del self._connected[client.key]
        if client.is_late(now):
            self._late.note(client.key, late=True)
        if client.standing.state == "PENDING":
            self._unsteady.note(client.key, late=True)

    def answered(self, client: Client, now: float) -> None:
        """Note that a client answers; called before its debt is settled."""
        if client.debt.known_late:
            self._late.note(client.key, late=False)
        if client.debt.unsteady and now >= client.connected + STOOD_S:
            client.debt.unsteady = False
            self._unsteady.note(client.key, late=False)

    def refused(self, client: Client) -> None:
        """Remember a client's refusals."""
        self._refusing.note(client.key, client.number, client.refusals)

    def accepted(self, client: Client, snapshot: Snapshot) -> None:
        """Forget a client's refusals if holding ``snapshot`` means that it accepts now."""
        if client.refusals.accepts(snapshot):
            client.refusals.forget()
            client.left = ""
            others = len(self._connected[client.key]) > 1
            self._refusing.forget(client.key, client.number, others=others)

    def twins(self, client: Client) -> int:
        """Return how many clients are connected with its node id, itself included."""
        return len(self._connected[client.key])

    def shared(self, audience: Audience) -> int:
        """Return the number of node ids under which several clients are connected."""
        found = (twins for (name, _), twins in self._connected.items() if name == audience)
        return sum(len(twins) > 1 for twins in found)
