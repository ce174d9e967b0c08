"""The publisher: brings all clients from one state to the next, in stages.

A publication is a list of stages, each a whole snapshot for one audience (Envoys or pickers).

Rules:

1. A stage sets its audience's snapshot. The next stage begins when every client of that audience
   is SYNCED, has rejected a resource (NACKED), or is late (STALLED): ``patience`` says when, by a
   clock of each client's own, which a newer publication does not restart. An ``urgent`` stage waits
   for no answer.
2. A stage with ``wait_for_drained`` waits for the pickers' reports (``drains``). A stage with
   ``grace_s`` begins that long after the answers to the previous stage: an Envoy acknowledges
   before its workers apply the change, and requests may be in progress.
3. A NACKED or STALLED client no longer delays stages: it stays on the stage that it has reached
   while the others continue. As soon as it is SYNCED there it catches up stage by stage, and once
   it has reached the newest stage it counts again. A new publication includes NACKED clients
   again; a late one is sent the new snapshot, but it counts only after it has answered. A NACK from
   before the publication delays no stage and withholds nothing from the client.
4. A NACK in an Envoy stage before the stage ``switch`` abandons the publication: all clients return
   to the snapshots before it. A NACK in ``switch`` itself halts it (unless ``on_reject`` is
   ``keep``): the state reached stays in force, because the way back takes stages of its own, which
   the caller must publish. A later NACK leaves it in force for the other clients. A client that
   connected after the start, or that was already NACKED then, has no such veto.
5. A newer publication supersedes the running one. The state reached stays in force, and the new
   stages must be computed from it (``in_force``).
6. A client that connects gets its audience's newest snapshot and counts until it disconnects. With
   routes to clusters withdrawn in the meantime it gets a bridge first (``retired``).
7. A plan that fails changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tidegate_api.names import CLUSTER_TYPE, ROUTE_TYPE
from xds_server.protocol.client import Client
from xds_server.protocol.drains import Drains
from xds_server.protocol.messages import ResourceResponse, short_type
from xds_server.protocol.patience import LateNodes
from xds_server.protocol.publication import (
    MAX_STAGES,
    SWITCH,
    Audience,
    ClientProblem,
    OnReject,
    PickerLoad,
    Plan,
    PublicationOutcome,
    PublicationRun,
    Stage,
)
from xds_server.protocol.retired import Retired

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.protocol.messages import AckVerdict, DeltaRequest, SotwRequest
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.protocol.stream import DeltaStream, SotwStream

__all__ = [
    "Audience",
    "ClientProblem",
    "OnReject",
    "PickerLoad",
    "Plan",
    "PublicationOutcome",
    "PublicationRun",
    "Publisher",
    "Sent",
    "Stage",
]

Sent: TypeAlias = list[tuple[int, ResourceResponse]]
"""Messages to send, in order, each with the number of its client."""

BRIDGE_S: Final = 0.25
"""How long a client keeps its bridge after its routes: its workers apply these after the ACK."""


class Publisher:
    """Snapshots in force and the state of all clients; see the module's rules.

    Methods that change the state return the messages to send. ``now`` is monotonic seconds; call
    ``tick`` at ``wake_at``.
    """

    def __init__(self) -> None:
        # Snapshots of the audience's newest publication; the last one is in force.
        self._stages: dict[Audience, list[Snapshot]] = {"envoy": [], "picker": []}
        self._clients: dict[int, Client] = {}
        self._retired = Retired()
        self._crossing: dict[int, float] = {}
        self._drains = Drains()
        self._late = LateNodes()
        self._run: PublicationRun | None = None
        self._blocking = 0
        """Number of a client for which the stage was found to wait."""
        self._refused = False
        """A client has become NACKED since the last full check."""

    # --- clients --------------------------------------------------------------------------------

    def connect(
        self,
        number: int,
        node: str,
        audience: Audience,
        stream: SotwStream | DeltaStream,
        now: float,
    ) -> None:
        """Add a client whose node is known; nothing is sent before its first request."""
        stages = self._stages[audience]
        if stages:
            stream.on_snapshot(stages[-1], now)
        client = Client(number, node, audience, stream, now, len(stages) - 1, stream.standing())
        client.debt.known_late = node in self._late
        self._clients[number] = client

    def request(
        self, number: int, request: SotwRequest | DeltaRequest, now: float
    ) -> tuple[Sent, AckVerdict | None]:
        """Process a client's request; return the messages to send and the ACK or NACK, if any.

        Raises:
            ProtocolError: The request violates the protocol; the stream must end.
        """
        client = self._clients[number]
        if not client.clusters_requested and request.type_url == CLUSTER_TYPE:
            self._bridge(client, request, now)
        # The stream and its requests are of the same variant: the service pairs them.
        reaction = client.stream.on_request(request, now)  # type: ignore[arg-type] # see above
        if reaction.verdict is not None:
            waited_s, owes_more = reaction.verdict.waited_s, client.stream.owes_answer
            client.debt.answered(waited_s, now, owes_more=owes_more)
            self._late.note(client.node, late=False)
        sent = self._sent(client, reaction.responses, now)
        sent += self._catch_up(client, now)
        return sent + self._advance(now), reaction.verdict

    def _bridge(self, client: Client, request: SotwRequest | DeltaRequest, now: float) -> None:
        client.clusters_requested = True
        stages = self._stages[client.audience]
        bridge = self._retired.bridge(request, stages[-1]) if stages else None
        if bridge is not None:
            client.stream.on_snapshot(bridge, now)
            client.left, client.left_at, client.stage_index = "BEHIND", now, len(stages) - 2

    def disconnect(self, number: int, now: float) -> Sent:
        """Remove a client; stages no longer wait for it."""
        client = self._clients.pop(number, None)
        if client is not None and client.is_late(now):
            self._late.note(client.node, late=True)
        self._crossing.pop(number, None)
        return self._advance(now)

    def loads(self, reports: Mapping[str, PickerLoad], now: float) -> Sent:
        """Set the last report of each reporting picker, by node id."""
        self._drains.reported(reports)
        return self._advance(now)

    # --- publications ---------------------------------------------------------------------------

    def publish(
        self, plan: Plan, now: float, *, on_reject: OnReject = "rollback"
    ) -> tuple[PublicationRun, Sent]:
        """Start a publication; a running one ends as superseded.

        Args:
            plan: The stages, or a function that computes them.
            now: Monotonic seconds.
            on_reject: After a NACK in ``switch``: ``rollback`` halts, ``keep`` continues.

        Raises:
            ValueError: The plan has more than ``MAX_STAGES`` stages; nothing has changed.
        """
        stages = tuple(plan() if callable(plan) else plan)
        if len(stages) > MAX_STAGES:
            raise ValueError(f"a publication has at most {MAX_STAGES} stages, not {len(stages)}")
        if self._run is not None:
            self._finish(self._run, "superseded", now)
        before = {name: reached[-1] for name, reached in self._stages.items() if reached}
        run = self._run = PublicationRun(stages, now, before, on_reject)
        for client in self._clients.values():
            client.old_nacks = client.standing.nacks
            client.refusing = client.standing.state == "NACKED"
        return run, self._advance(now)

    def tick(self, now: float) -> Sent:
        """Apply the deadlines that have passed."""
        sent: Sent = []
        for number in [n for n, at in self._crossing.items() if at <= now]:
            sent += self._catch_up(self._clients[number], now)
        return sent + self._advance(now)

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return the audience's current snapshot; ``None`` if nothing was published yet."""
        stages = self._stages[audience]
        return stages[-1] if stages else None

    @property
    def settled(self) -> bool:
        """No publication is running."""
        return self._run is None

    @property
    def wake_at(self) -> float | None:
        """Latest time for the next call of ``tick``; ``None`` = no deadline is set."""
        times = [at for at in (self._run_wakes_at, *self._crossing.values()) if at is not None]
        return min(times, default=None)

    @property
    def _run_wakes_at(self) -> float | None:
        run = self._run
        if run is None:
            return None
        if run.hold_since is not None and run.following is not None:
            return self._drains.held_until(run.following, run.hold_since, self._pickers())
        return run.late_at if run.current is not None else None

    def outcome(self, run: PublicationRun, now: float) -> PublicationOutcome:
        """Return the state of a publication, running or ended."""
        return run.outcome or self._outcome(run, "waiting", now)

    # --- stages ---------------------------------------------------------------------------------

    def _advance(self, now: float) -> Sent:
        sent: Sent = []
        while (run := self._run) is not None:
            if run.current is not None and run.hold_since is None:
                verdict = self._gate(run, run.current, now)
                if verdict == "abandon":
                    sent += self._abandon(run, run.current, now)
                    break
                if verdict == "wait":
                    break
            stage = run.following
            if stage is None:
                self._finish(run, "done", now)
                break
            if not self._may_begin(run, stage, now):
                break
            sent += self._begin(run, stage, now)
        return sent

    def _gate(
        self, run: PublicationRun, stage: Stage, now: float
    ) -> Literal["pass", "wait", "abandon"]:
        if stage.urgent:
            return "pass"
        blocking = self._clients.get(self._blocking)
        stays = blocking is not None and blocking.blocks(stage) and now < run.late_at
        if stays and not self._refused:
            return "wait"  # fast path: after most answers the stage still waits for this client
        self._refused = False
        run.late_at = float("inf")
        for client in self._clients.values():
            if client.audience != stage.audience or client.left:
                continue
            standing = client.standing
            if standing.state == "NACKED" and standing.nacks > client.old_nacks:
                client.left, client.left_at = "NACKED", now
                if client.has_veto(run) and run.revocable(stage):
                    return "abandon"
            elif standing.state == "PENDING":
                late_at = min(client.late_at(stage.deadline_s), run.entered + stage.deadline_s)
                if now >= late_at:
                    client.left, client.left_at = "STALLED", now
                elif late_at < run.late_at:
                    run.late_at, self._blocking = late_at, client.number
        return "pass" if run.late_at == float("inf") else "wait"

    def _may_begin(self, run: PublicationRun, stage: Stage, now: float) -> bool:
        pickers = self._pickers()
        graced = stage.grace_s > 0 and run.current is not None and bool(self._clients)
        if not graced and not self._drains.waits(stage, pickers):
            return True
        if run.hold_since is None:
            run.hold_since = now
        return now >= self._drains.held_until(stage, run.hold_since, pickers)

    def _pickers(self) -> list[Client]:
        return [c for c in self._clients.values() if c.audience == "picker" and not c.left]

    def _begin(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        run.index += 1
        run.entered = run.late_at = now
        run.hold_since = None
        stages = self._stages[stage.audience]
        if stages and stage.audience == "envoy":
            self._retired.withdraw(stages[-1], stage.snapshot)
        if stage.audience not in run.touched:
            run.touched.add(stage.audience)
            return self._restart(stage.audience, stage.snapshot, now)
        stages.append(stage.snapshot)
        sent: Sent = []
        for client in self._clients.values():
            if client.audience == stage.audience and not client.left:
                sent += self._assign(client, len(stages) - 1, now)
        return sent

    def _restart(self, audience: Audience, snapshot: Snapshot, now: float) -> Sent:
        self._stages[audience] = [snapshot]
        sent: Sent = []
        for client in self._clients.values():
            if client.audience == audience:
                client.left = "STALLED" if client.is_late(now) else ""
                sent += self._assign(client, 0, now)
        return sent

    def _assign(self, client: Client, stage_index: int, now: float) -> Sent:
        client.stage_index = stage_index
        snapshot = self._stages[client.audience][stage_index]
        return self._sent(client, client.stream.on_snapshot(snapshot, now), now)

    def _catch_up(self, client: Client, now: float) -> Sent:
        sent: Sent = []
        newest = len(self._stages[client.audience]) - 1
        if client.left == "BEHIND":
            # Keep the bridge until the routes are updated and the client's workers apply them.
            if client.standing.state == "SYNCED" and client.stream.has_requested(ROUTE_TYPE):
                client.left, client.left_at = "CROSSED", now
                self._crossing[client.number] = now + BRIDGE_S
            return sent
        if self._crossing.get(client.number, now) > now:
            return sent
        self._crossing.pop(client.number, None)
        while client.left and client.standing.state == "SYNCED":
            if client.stage_index >= newest:
                client.left = ""
            else:
                sent += self._assign(client, client.stage_index + 1, now)
        return sent

    def _abandon(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        self._finish(run, "abandoned", now)
        sent: Sent = []
        if stage.label == SWITCH:
            return sent
        # Pickers first: they must stop naming clusters before Envoys remove them.
        for audience in ("picker", "envoy"):
            if audience in run.touched and audience in run.before:
                sent += self._restart(audience, run.before[audience], now)
        return sent

    # --- accounting -----------------------------------------------------------------------------

    def _sent(self, client: Client, responses: list[ResourceResponse], now: float) -> Sent:
        client.standing = client.stream.standing()
        if responses:
            client.debt.sent(now)
        self._refused = self._refused or client.standing.state == "NACKED"
        run = self._run
        if run is not None and client.connected <= run.started:
            for response in responses:
                name = short_type(response.type_url)
                if name not in run.channels:
                    run.channels.append(name)
        return [(client.number, response) for response in responses]

    def _finish(
        self, run: PublicationRun, state: Literal["done", "superseded", "abandoned"], now: float
    ) -> None:
        run.outcome = self._outcome(run, state, now)
        self._run = None

    def _outcome(
        self,
        run: PublicationRun,
        state: Literal["done", "superseded", "abandoned", "waiting"],
        now: float,
    ) -> PublicationOutcome:
        problems = [p for c in self._clients.values() if (p := c.problem()) is not None]
        stage = run.current
        return PublicationOutcome(
            state,
            len(self._clients),
            sum(1 for client in self._clients.values() if self._is_current(client)),
            tuple(problems),
            tuple(run.channels),
            None if state == "waiting" else now - run.started,
            "" if stage is None else stage.label,
        )

    def _is_current(self, client: Client) -> bool:
        newest = len(self._stages[client.audience]) - 1
        return client.standing.state == "SYNCED" and client.stage_index == newest
