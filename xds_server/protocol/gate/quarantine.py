"""Clients that refuse what others accept, and may not veto changes for ever. Pure.

Rules:

1. A client's *refusals* are the publications in which it refused something, without an acceptance
   (rule 4) in between. Several NACKs in one publication are one refusal.
2. A client with ``LIMIT`` refusals or more is quarantined once another client of its audience holds
   what it refuses, in the same stage. What no client accepts quarantines none: then the change is
   wrong, not the client.
3. A quarantined client has no veto and no stage waits for it. It keeps what it accepted and is
   offered every further change, stage by stage; parked content is not sent to it again.
4. Its refusals are forgotten, and its quarantine ends, once it holds a completed publication whose
   content of a type that it refused is another than those in force when it refused. So the way back
   to what it held before proves nothing.
5. Refusals belong to a client and outlive its connection: a client that connects with the same node
   id takes over a copy, unless it reports another build. Of two clients that are connected with one
   id, the acceptance of one changes nothing for the other. ``MAX_NODES`` nodes are remembered; the
   oldest are dropped first. A restart of the server forgets all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from xds_server.protocol.snapshot import Snapshot

LIMIT: Final = 3
"""Refusals in a row that quarantine a client."""

MAX_NODES: Final = 4096
"""Most nodes whose refusals are remembered."""

MAX_VERSIONS: Final = 8
"""Most contents of a type that are remembered as held before refusals."""


@dataclass(slots=True)
class Refusals:
    """What one client has refused; see the module's rules."""

    build: str = ""
    """The client's build as it reports it; empty = unknown."""
    count: int = 0
    """Refusals in a row."""
    quarantined: bool = False
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Type refused -> versions of its sets that were in force when the client refused."""
    message: str = ""
    """What the client said last."""

    @property
    def suspect(self) -> bool:
        """It has refused so often that its veto needs a second client that refuses too."""
        return self.count >= LIMIT

    def refused(self, type_url: str, in_force: str, message: str) -> None:
        """Note a refusal.

        Args:
            type_url: The type that the client refused.
            in_force: Version of the type's set before the publication; empty if there was none.
            message: The client's error message.
        """
        self.count += 1
        self.message = message
        known = self.held.get(type_url, ())
        if in_force not in known and len(known) < MAX_VERSIONS:
            self.held[type_url] = (*known, in_force)

    def accepts(self, snapshot: Snapshot) -> bool:
        """Return whether a client that holds ``snapshot`` has accepted what it refused (rule 4)."""
        return any(snapshot.version(url) not in known for url, known in self.held.items())

    def forget(self) -> None:
        """End the quarantine, with all refusals."""
        self.count, self.quarantined, self.message = 0, False, ""
        self.held.clear()

    def copy(self) -> Refusals:
        """Return a copy for another client of the same node."""
        return replace(self, held=dict(self.held))


class RefusingNodes:
    """The refusals of nodes, connected or not (rule 5)."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, tuple[int, Refusals]] = {}

    def __len__(self) -> int:
        """Return how many nodes are remembered."""
        return len(self._nodes)

    def of(self, node: Hashable, build: str) -> Refusals:
        """Return the refusals with which a client of ``node`` begins."""
        _, known = self._nodes.get(node, (0, None))
        if known is None:
            return Refusals(build)
        if build and known.build and build != known.build:
            del self._nodes[node]
            return Refusals(build)
        taken = known.copy()
        taken.build = build or known.build
        return taken

    def note(self, node: Hashable, client: int, refusals: Refusals) -> None:
        """Remember the refusals of a client of ``node``, by its number, and what becomes of them.

        Of two clients of a node the one that is closer to quarantine is remembered.
        """
        owner, known = self._nodes.get(node, (client, refusals))
        if owner != client and (known.quarantined, known.count) > (False, refusals.count):
            return
        self._nodes.pop(node, None)
        self._nodes[node] = (client, refusals)
        if len(self._nodes) > MAX_NODES:
            del self._nodes[next(iter(self._nodes))]

    def forget(self, node: Hashable, client: int, *, others: bool) -> None:
        """Forget a node after an acceptance of one of its clients.

        Args:
            node: The node.
            client: Number of the client that accepted.
            others: Further clients of the node are connected: only the refusals that are its own
                are forgotten.
        """
        owner, _ = self._nodes.get(node, (0, None))
        if owner == client or not others:
            self._nodes.pop(node, None)
