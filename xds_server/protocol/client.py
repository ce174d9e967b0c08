"""One connected client within a publication, and what is remembered of its node. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from xds_server.protocol.gate.patience import STOOD_S, Debt, LateNodes
from xds_server.protocol.gate.quarantine import Refusals, RefusingNodes
from xds_server.protocol.messages import short_type
from xds_server.protocol.publication import STAGE_DEADLINE_S, ClientProblem, PublicationOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from xds_server.protocol.messages import Standing
    from xds_server.protocol.publication import Audience, PublicationRun, Stage
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.protocol.stream import DeltaStream, SotwStream


@dataclass(slots=True)
class Client:
    """A client's stream, its stage, and whether publications wait for it."""

    number: int
    node: str
    audience: Audience
    stream: SotwStream | DeltaStream
    connected: float
    stage_index: int
    """Index of its snapshot among the audience's snapshots (``Publisher``); -1 = none yet."""
    standing: Standing
    old_nacks: int = 0
    """Number of NACKs before the running publication."""
    refusing: bool = False
    """The client was NACKED when the running publication began."""
    left: Literal["", "NACKED", "STALLED", "NEW", "BEHIND", "CROSSED", "QUARANTINED", "WAVE"] = ""
    """Why no stage waits for the client; empty = stages wait for it.

    NACKED: it rejected a resource. STALLED: it is late with an answer (``patience``). NEW: it has
    never answered. BEHIND: it holds a bridge snapshot (``Retired``). CROSSED: its routes have left
    the bridge, its clusters follow after ``BRIDGE_S``. QUARANTINED: it refuses what others accept
    (``quarantine``). WAVE: the stage has not come to it yet (``Waves``).
    """
    clusters_requested: bool = False
    """The client has sent its first CDS request."""
    left_at: float = 0.0
    """Time of the last change of ``left``, monotonic seconds."""
    debt: Debt = field(default_factory=Debt)
    """What it owes, and for how long publications wait for it."""
    refusals: Refusals = field(default_factory=Refusals)
    """What it has refused, and whether it is in quarantine."""
    group: str = ""
    """Its node group; empty = none."""
    cluster: str = ""
    """Its node's cluster; empty = none."""
    stood: bool = False
    """It was connected through a publication, and held what that had come to at its end."""
    reports: bool = True
    """Of a picker's audience: it reports its requests in flight, for which drains wait."""

    @property
    def key(self) -> tuple[Audience, str]:
        """What is remembered of its node is kept under this key."""
        return self.audience, self.node

    @property
    def kin(self) -> tuple[str, str]:
        """What clients of one kind have in common whatever their node ids: cluster and build."""
        return self.cluster, self.refusals.build

    @property
    def had_state(self) -> bool:
        """It had a state before the running publication: of this server, or of one before."""
        return self.stood or self.stream.resumed

    @property
    def unheard(self) -> bool:
        """It has answered nothing yet, here or on an earlier stream, so it serves nothing yet."""
        return self.debt.slowest_s is None and not self.stream.resumed

    def late_at(self, limit_s: float = STAGE_DEADLINE_S) -> float:
        """Return when it is late, monotonic seconds; infinite if it owes nothing."""
        return self.debt.late_at(self.standing.type_url, limit_s)

    def is_late(self, now: float) -> bool:
        """Return whether it owes an answer for longer than its patience."""
        return self.standing.state == "PENDING" and now >= self.late_at()

    def blocks(self, stage: Stage) -> bool:
        """Return whether the stage waits for this client's answer."""
        pending = self.standing.state == "PENDING"
        return pending and self.audience == stage.audience and not self.left

    def has_veto(self, run: PublicationRun) -> bool:
        """Return whether its NACK can end the run: it was connected and not NACKED at the start."""
        trusted = not self.refusing and not self.refusals.quarantined
        return self.connected <= run.started and trusted

    def rejoin(self, now: float) -> None:
        """Let stages wait for it again, unless it is late or in quarantine."""
        if self.refusals.quarantined:
            self.left = "QUARANTINED"
        else:
            self.left = "STALLED" if self.is_late(now) else ""

    def problem(self, now: float) -> ClientProblem | None:
        """Return why the client does not hold its snapshot; ``None`` if it does or still may."""
        standing = self.standing
        short = short_type(standing.type_url)
        if standing.state == "NACKED":
            return ClientProblem(self.node, "NACKED", short, standing.message)
        late = self.left == "STALLED" or (self.left == "NEW" and self.is_late(now))
        if late and standing.state == "PENDING":
            reason = f"has not acknowledged {short} in time"
            return ClientProblem(self.node, "STALLED", short, reason)
        return None


def outcome_of(
    run: PublicationRun,
    state: Literal["done", "superseded", "abandoned", "waiting"],
    clients: Collection[Client],
    acked: int,
    now: float,
) -> PublicationOutcome:
    """Return the outcome of a publication.

    Args:
        run: The publication.
        state: Its state.
        clients: All connected clients.
        acked: How many of them hold their audience's newest snapshot.
        now: Monotonic seconds.
    """
    stage = run.current
    return PublicationOutcome(
        state,
        len(clients),
        acked,
        tuple(problem for c in clients if (problem := c.problem(now)) is not None),
        tuple(run.channels),
        None if state == "waiting" else now - run.started,
        "" if stage is None else stage.label,
    )


class Nodes:
    """What is remembered of nodes beyond one connection: lateness, refusals, who shares an id.

    Rules:

    1. Memory is kept by audience and node id. What it is worth is said in ``patience`` and
       ``quarantine``; both are bounded there.
    2. *Twins* are several connected clients with one node id of one audience: two processes with
       one configured id, or one that has reconnected before the end of its old connection was
       noticed. Each is a client of its own. A new one begins as late if a twin is late now, and
       with the refusals that are remembered of the node.
    """

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
