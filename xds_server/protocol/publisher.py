"""The publisher: brings all clients from one state to the next, in stages.

A publication is a list of stages, each a whole snapshot for one audience (Envoys or pickers).

Rules:

1. A stage sets its audience's snapshot. The next stage begins when every client of that audience
   is SYNCED, has rejected a resource (NACKED), is late (STALLED) or has never answered (NEW):
   ``patience`` says when it is late, by a clock of each client's own, which a newer publication
   does not restart. An ``urgent`` stage waits for no answer.
2. A stage with ``wait_for_drained`` waits for the pickers' reports (``Drains``). A stage with
   ``grace_s`` begins that long after the answers to the previous stage: an Envoy acknowledges
   before its workers apply the change, and requests may be in progress.
3. A NACKED, STALLED or NEW client delays no stage: it stays on the one that it has reached while
   the others continue. As soon as it is SYNCED there it catches up stage by stage, and once
   it has reached the newest stage it counts again. A new publication includes NACKED clients
   again; a late one is sent the new snapshot, but it counts only after it has answered. A NACK from
   before the publication delays no stage and withholds nothing from the client.
4. Refusals that end a publication (``verdict``) abandon it. Before the stage ``switch`` all clients
   return to the snapshots before it. ``switch`` itself halts: the state reached stays in force,
   because the way back takes stages of its own, which the caller must publish. After it nothing is
   abandoned. A client that connected after the start, that was already NACKED then, or that is in
   quarantine (``quarantine``) has no such veto.
5. A newer publication supersedes the running one. The state reached stays in force, and the new
   stages must be computed from it (``in_force``).
6. A client that connects gets its audience's newest snapshot and counts until it disconnects. With
   routes to clusters withdrawn in the meantime it gets a bridge first (``Retired``).
7. A plan that fails changes nothing.
8. With ``waves`` a stage comes to one Envoy first (``Waves``). Envoys whose wave has not come stay
   on the newest stage that was for all. A publication that is abandoned in ``switch`` before the
   last wave returns all Envoys there. One that is superseded before it leaves that stage in force,
   so that a newer plan never carries to all what few have tried: the caller finds ``in_waves``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from xds_server.protocol.client import Client, Nodes, outcome_of
from xds_server.protocol.course import Course, Sent
from xds_server.protocol.gate.verdict import Drains, judge
from xds_server.protocol.publication import (
    MAX_STAGES,
    QUORUM,
    SWITCH,
    Audience,
    OnReject,
    PickerLoad,
    Plan,
    PublicationOutcome,
    PublicationRun,
    Stage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.protocol.gate.verdict import Verdict
    from xds_server.protocol.messages import AckVerdict, DeltaRequest, SotwRequest
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.protocol.stream import DeltaStream, SotwStream


class Publisher:
    """Snapshots in force and the state of all clients; see the module's rules.

    Methods that change the state return the messages to send. ``now`` is monotonic seconds; call
    ``tick`` at ``wake_at``.
    """

    def __init__(self) -> None:
        self._course = Course()
        self._nodes = Nodes()
        self._drains = Drains()
        self._run: PublicationRun | None = None

    # --- clients --------------------------------------------------------------------------------

    def connect(
        self,
        number: int,
        node: str,
        audience: Audience,
        stream: SotwStream | DeltaStream,
        now: float,
        *,
        build: str = "",
        group: str = "",
        cluster: str = "",
        reports: bool = True,
    ) -> None:
        """Add a client whose node is known; nothing is sent before its first request.

        Args:
            number: Its number, which no other client has had.
            node: Its node id.
            audience: Its audience.
            stream: Its stream.
            now: Monotonic seconds.
            build: The build that it reports; empty = unknown.
            group: Its node group; empty = none.
            cluster: Its node's cluster; empty = none.
            reports: Whether it reports requests in flight, as pickers do.
        """
        client = Client(number, node, audience, stream, now, -1, stream.standing(), group=group)
        client.cluster, client.reports = cluster, reports
        self._nodes.joined(client, build, now)
        self._course.join(client, now)

    def request(
        self, number: int, request: SotwRequest | DeltaRequest, now: float
    ) -> tuple[Sent, AckVerdict | None]:
        """Process a client's request; return the messages to send and the ACK or NACK, if any.

        Raises:
            ProtocolError: The request violates the protocol; the stream must end.
        """
        client = self._course.clients[number]
        self._course.asked(client, request, now)
        # The stream and its requests are of the same variant: the service pairs them.
        reaction = client.stream.on_request(request, now)  # type: ignore[arg-type] # see above
        if reaction.verdict is not None:
            self._nodes.answered(client, now)
            type_url, waited_s = reaction.verdict.type_url, reaction.verdict.waited_s
            owes_more = client.stream.owes_answer
            client.debt.answered(type_url, waited_s, now, owes_more=owes_more)
        sent = self._course.sent(client, reaction.responses, now)
        sent += self._course.catch_up(client, now)
        sent += self._advance(now)
        if client.refusals.count and self._run is None:
            self._forgive(client)
        return sent, reaction.verdict

    def disconnect(self, number: int, now: float) -> Sent:
        """Remove a client; stages no longer wait for it."""
        client = self._course.leave(number)
        if client is not None:
            self._nodes.gone(client, now)
        return self._advance(now)

    def loads(self, reports: Mapping[str, PickerLoad], now: float) -> Sent:
        """Set the last report of each reporting picker, by node id."""
        self._drains.reported(reports)
        return self._advance(now)

    # --- publications ---------------------------------------------------------------------------

    def publish(
        self,
        plan: Plan,
        now: float,
        *,
        on_reject: OnReject = "rollback",
        quorum: float = QUORUM,
        waves: bool = False,
    ) -> tuple[PublicationRun, Sent]:
        """Start a publication; a running one ends as superseded.

        Args:
            plan: The stages, or a function that computes them.
            now: Monotonic seconds.
            on_reject: What refusals do (``verdict``).
            quorum: With ``quorum``: the share of refusals that abandons, above 0 and at most 1.
            waves: Stages come to Envoys in waves, but the first state ever and urgent stages.

        Raises:
            ValueError: The plan has more than ``MAX_STAGES`` stages; nothing has changed.
        """
        stages = tuple(plan() if callable(plan) else plan)
        if len(stages) > MAX_STAGES:
            raise ValueError(f"a publication has at most {MAX_STAGES} stages, not {len(stages)}")
        if self._run is not None:
            self._finish(self._run, "superseded", now)
        before: dict[Audience, Snapshot] = {}
        for audience in ("envoy", "picker"):
            held = self.in_force(audience)
            if held is not None:
                before[audience] = held
        run = self._run = PublicationRun(stages, now, before, on_reject, quorum, waves)
        for client in self._course.clients.values():
            client.old_nacks = client.standing.nacks
            client.refusing = client.standing.state == "NACKED"
        return run, self._advance(now)

    def tick(self, now: float) -> Sent:
        """Apply the deadlines that have passed."""
        return self._course.crossed(now) + self._advance(now)

    # --- status ---------------------------------------------------------------------------------

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return the newest snapshot for all of an audience; ``None`` = nothing was published."""
        return self._course.snapshot(audience, self._course.for_all(audience))

    @property
    def settled(self) -> bool:
        """No publication is running."""
        return self._run is None

    @property
    def wake_at(self) -> float | None:
        """Latest time for the next call of ``tick``; ``None`` = no deadline is set."""
        times = [at for at in (self._run_wakes_at, *self._course.crossings) if at is not None]
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

    def quarantine(self, number: int) -> str:
        """Return why a client is in quarantine; empty if it is not."""
        refusals = self._course.clients[number].refusals
        if not refusals.quarantined:
            return ""
        return f"refused {refusals.count} changes in a row that others accept: {refusals.message}"

    def twins(self, number: int) -> int:
        """Return how many clients are connected with a client's node id, itself included."""
        return self._nodes.twins(self._course.clients[number])

    def quarantined(self, audience: Audience) -> int:
        """Return the number of connected clients in quarantine."""
        clients = self._course.clients.values()
        return sum(c.refusals.quarantined for c in clients if c.audience == audience)

    def shared_nodes(self, audience: Audience) -> int:
        """Return the number of node ids under which several clients are connected."""
        return self._nodes.shared(audience)

    # --- stages ---------------------------------------------------------------------------------

    def _advance(self, now: float) -> Sent:
        sent: Sent = []
        while (run := self._run) is not None:
            current = run.current
            if current is not None and run.hold_since is None:
                verdict = self._gate(run, current, now)
                if verdict == "abandon":
                    sent += self._abandon(run, current, now)
                    break
                if verdict == "wait":
                    break
                if self._course.waves.open and current.audience == "envoy" and not current.urgent:
                    sent += self._course.next_wave(run, now)
                    continue
            stage = run.following
            if stage is None:
                self._finish(run, "done", now)
                break
            if not self._may_begin(run, stage, now):
                break
            run.index += 1
            run.entered = run.late_at = now
            run.hold_since = None
            sent += self._course.begin(run, stage, now)
        return sent

    def _gate(self, run: PublicationRun, stage: Stage, now: float) -> Verdict:
        if stage.urgent:
            return "pass"
        clients = self._course.clients
        blocking = clients.get(run.blocking)
        stays = blocking is not None and blocking.blocks(stage) and now < run.late_at
        if stays and not self._course.refusal_seen:
            return "wait"  # fast path: after most answers the stage still waits for this client
        self._course.refusal_seen = False
        verdict = judge(run, stage, clients.values(), now)
        for number in run.newly_refused:
            self._nodes.refused(clients[number])
        run.newly_refused.clear()
        return verdict

    def _may_begin(self, run: PublicationRun, stage: Stage, now: float) -> bool:
        pickers = self._pickers()
        graced = stage.grace_s > 0 and run.current is not None and bool(self._course.clients)
        if not graced and not self._drains.waits(stage, pickers):
            return True
        if run.hold_since is None:
            run.hold_since = now
        return now >= self._drains.held_until(stage, run.hold_since, pickers)

    def _pickers(self) -> list[Client]:
        pickers = [c for c in self._course.clients.values() if c.audience == "picker"]
        return [c for c in pickers if c.reports and not c.left and not c.unheard]

    def _abandon(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        early = self._course.waves.open
        self._finish(run, "abandoned", now)
        sent: Sent = []
        if stage.label != SWITCH:
            # Pickers first: they must stop naming clusters before Envoys remove them.
            for audience in ("picker", "envoy"):
                if audience in run.touched and audience in run.before:
                    sent += self._course.restart(audience, run.before[audience], now)
        elif early:
            back = self.in_force("envoy")
            sent += self._course.restart("envoy", back, now) if back is not None else []
        return sent

    # --- ends -----------------------------------------------------------------------------------

    def _finish(
        self, run: PublicationRun, state: Literal["done", "superseded", "abandoned"], now: float
    ) -> None:
        run.outcome = self._outcome(run, state, now)
        self._run = None
        self._course.finished()
        for client in self._course.clients.values():
            if client.audience in run.touched and client.has_veto(run):
                client.stood = client.stood or client.standing.state == "SYNCED"
        if state == "done":
            for client in self._course.clients.values():
                if client.refusals.count:
                    self._forgive(client)

    def _forgive(self, client: Client) -> None:
        """Forget a client's refusals if it has accepted what it refused; no publication runs."""
        snapshot = self.in_force(client.audience)
        if snapshot is not None and self._course.current(client):
            self._nodes.accepted(client, snapshot)

    def _outcome(
        self,
        run: PublicationRun,
        state: Literal["done", "superseded", "abandoned", "waiting"],
        now: float,
    ) -> PublicationOutcome:
        course = self._course
        acked = sum(course.current(client) for client in course.clients.values())
        outcome = outcome_of(run, state, course.clients.values(), acked, now)
        return replace(outcome, in_waves=True) if course.waves.open else outcome
