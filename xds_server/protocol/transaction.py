"""The publisher: walks all clients from one state to the next, stage by stage.

A publication is a list of stages, each a whole snapshot for one audience (Envoys or pickers).

Rules:

1. A stage sets its audience's snapshot. The next stage begins when every client of that audience
   stands SYNCED, has refused (NACKED), or has missed the stage's deadline (STALLED).
2. A stage with ``wait_for_drained`` begins when these endpoints have nothing in flight by the
   pickers' reports, or at its hold deadline. A connected picker's zero counts from the report that
   names the response which it acknowledged last: an older one may lack its last picks. One that
   does not say so much is waited for ``REPORT_PATIENCE_S``; with no picker there is nothing in
   flight. A stage with ``grace_s`` begins so long after the answers to the one before: an Envoy
   answers before its workers follow, and requests may be halfway through.
3. A client that refused or stalled has left the gate: it stays on the stage it reached, whatever
   the others do. As soon as it stands SYNCED there it is led on, stage by stage, and once it has
   caught up it counts again. A publication takes all clients along afresh. A refusal older than
   the publication holds up nothing and keeps nothing from the client.
4. A refusal in an Envoy stage before the stage named ``switch`` abandons the publication: all
   clients go back to what was in force before. A refusal in ``switch`` itself halts it (unless it
   is told to keep on): what was reached stays in force, as going back takes stages of its own,
   which are the caller's to publish. Later refusals leave it in force for the others. A client
   that connected after the beginning, or that refused something already then, has no such veto.
5. A newer publication supersedes the running one. What was reached stays in force, and the new
   stages are to be computed from it (``in_force``).
6. A client that connects gets its audience's newest snapshot and counts from then on - over a
   bridge, if it comes back with routes to clusters withdrawn meanwhile (``retired``). One that
   disconnects no longer counts.
7. A plan that fails changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tidegate_api.names import CLUSTER_TYPE, POOL_TYPE, ROUTE_TYPE
from xds_server.protocol.client import Client
from xds_server.protocol.messages import ResourceResponse, short_type
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
    from collections.abc import Iterator, Mapping

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
"""What to send: the client's number and the message, in order."""

REPORT_PATIENCE_S: Final = 5.0
"""A picker that lost its report stream opens a new one within 2 s."""

BRIDGE_S: Final = 0.25
"""How long a client that came back late keeps what it may still use, once its routes follow."""


class Publisher:
    """Holds what is in force and leads the clients; see the module's rules.

    Every method that takes ``now`` returns what is to be sent; call ``tick`` at ``wake_at``.
    """

    def __init__(self) -> None:
        # The snapshots of the newest publication that touched an audience; the last is in force.
        self._ladders: dict[Audience, list[Snapshot]] = {"envoy": [], "picker": []}
        self._clients: dict[int, Client] = {}
        self._retired = Retired()
        self._crossing: dict[int, float] = {}
        self._loads: dict[str, PickerLoad] = {}
        self._run: PublicationRun | None = None
        self._awaited = 0
        """A client that was seen to hold up the stage."""
        self._refused = False
        """A client stands NACKED that was not looked at since."""

    # --- clients --------------------------------------------------------------------------------

    def connect(
        self,
        number: int,
        node: str,
        audience: Audience,
        stream: SotwStream | DeltaStream,
        now: float,
    ) -> None:
        """Take in a stream whose node is known; nothing is sent before its first request."""
        ladder = self._ladders[audience]
        if ladder:
            stream.on_snapshot(ladder[-1], now)
        client = Client(number, node, audience, stream, now, len(ladder) - 1, stream.standing())
        self._clients[number] = client

    def request(
        self, number: int, request: SotwRequest | DeltaRequest, now: float
    ) -> tuple[Sent, AckVerdict | None]:
        """Pass a client's message on; return what to send, and what the message said.

        Raises:
            ProtocolError: The message breaks the protocol; the stream must end.
        """
        client = self._clients[number]
        if not client.greeted and request.type_url == CLUSTER_TYPE:
            self._greet(client, request, now)
        # The stream and its requests are of the same variant: the service pairs them.
        reaction = client.stream.on_request(request, now)  # type: ignore[arg-type] # see above
        sent = self._sent(client, reaction.responses)
        sent += self._lead_on(client, now)
        return sent + self._advance(now), reaction.verdict

    def _greet(self, client: Client, request: SotwRequest | DeltaRequest, now: float) -> None:
        client.greeted = True
        ladder = self._ladders[client.audience]
        bridge = self._retired.bridge(request, ladder[-1]) if ladder else None
        if bridge is not None:
            client.stream.on_snapshot(bridge, now)
            client.left, client.left_at, client.rung = "BEHIND", now, len(ladder) - 2

    def disconnect(self, number: int, now: float) -> Sent:
        """Forget a client; it holds up nothing any more."""
        self._clients.pop(number, None)
        self._crossing.pop(number, None)
        return self._advance(now)

    def loads(self, reports: Mapping[str, PickerLoad], now: float) -> Sent:
        """Take what each reporting picker said last, by its node id."""
        self._loads = dict(reports)
        return self._advance(now)

    # --- publications ---------------------------------------------------------------------------

    def publish(
        self, plan: Plan, now: float, *, on_reject: OnReject = "rollback"
    ) -> tuple[PublicationRun, Sent]:
        """Begin a publication; a running one ends as superseded.

        Args:
            plan: The stages.
            now: The time.
            on_reject: What a refusal in the stage ``switch`` does: it halts the publication, or
                the other clients keep on.

        Raises:
            ValueError: The plan has more than ``MAX_STAGES`` stages; nothing has changed.
        """
        stages = tuple(plan() if callable(plan) else plan)
        if len(stages) > MAX_STAGES:
            raise ValueError(f"a publication has at most {MAX_STAGES} stages, not {len(stages)}")
        if self._run is not None:
            self._finish(self._run, "superseded", now)
        before = {name: ladder[-1] for name, ladder in self._ladders.items() if ladder}
        run = self._run = PublicationRun(stages, now, before, on_reject)
        for client in self._clients.values():
            client.old_nacks = client.standing.nacks
            client.refusing = client.standing.state == "NACKED"
        return run, self._advance(now)

    def tick(self, now: float) -> Sent:
        """Look at the deadlines."""
        sent: Sent = []
        for number in [n for n, at in self._crossing.items() if at <= now]:
            sent += self._lead_on(self._clients[number], now)
        return sent + self._advance(now)

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return what the audience should hold now."""
        ladder = self._ladders[audience]
        return ladder[-1] if ladder else None

    @property
    def settled(self) -> bool:
        """No publication is under way."""
        return self._run is None

    @property
    def wake_at(self) -> float | None:
        """When ``tick`` must be called at the latest; ``None`` = nothing is awaited."""
        times = [at for at in (self._run_wakes_at, *self._crossing.values()) if at is not None]
        return min(times, default=None)

    @property
    def _run_wakes_at(self) -> float | None:
        run = self._run
        if run is None:
            return None
        if run.hold_since is not None and run.following is not None:
            return self._held_until(run.hold_since, run.following)
        return run.entered + run.current.deadline_s if run.current is not None else None

    def outcome(self, run: PublicationRun, now: float) -> PublicationOutcome:
        """Return how a publication stands, or how it ended."""
        return run.outcome or self._outcome(run, "waiting", now)

    # --- the walk -------------------------------------------------------------------------------

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
        late = now >= run.entered + stage.deadline_s
        awaited = self._clients.get(self._awaited)
        if awaited is not None and awaited.holds_up(stage) and not (late or self._refused):
            return "wait"  # most answers leave another one awaited: a look at one client tells
        self._refused = False
        waiting = False
        for client in self._clients.values():
            if client.audience != stage.audience or client.left:
                continue
            standing = client.standing
            if standing.state == "NACKED" and standing.nacks > client.old_nacks:
                client.left, client.left_at = "NACKED", now
                if client.has_veto(run) and run.revocable(stage):
                    return "abandon"
            elif standing.state == "PENDING":
                if late:
                    client.left, client.left_at = "STALLED", now
                else:
                    waiting, self._awaited = True, client.number
        return "wait" if waiting else "pass"

    def _may_begin(self, run: PublicationRun, stage: Stage, now: float) -> bool:
        graced = stage.grace_s > 0 and run.current is not None and bool(self._clients)
        if not graced and not self._waits(stage):
            return True
        if run.hold_since is None:
            run.hold_since = now
        return now >= self._held_until(run.hold_since, stage)

    def _held_until(self, since: float, stage: Stage) -> float:
        """Return when the stage begins, if nothing is heard until then."""
        until = since + stage.grace_s
        if not self._waits(stage):
            return until
        patience = since + stage.hold_deadline_s
        if self._drained(stage):
            patience = min(patience, since if self._all_told() else since + REPORT_PATIENCE_S)
        return max(until, patience)

    def _waits(self, stage: Stage) -> bool:
        return bool(stage.wait_for_drained) and (bool(self._loads) or any(self._pickers()))

    def _drained(self, stage: Stage) -> bool:
        ids = stage.wait_for_drained
        return not any(load.in_flight.get(id_) for load in self._loads.values() for id_ in ids)

    def _all_told(self) -> bool:
        """Tell whether each picker reported since it took what was sent to it last."""
        for client in self._pickers():
            load = self._loads.get(client.node)
            if load is None or load.taken != client.stream.acknowledged(POOL_TYPE):
                return False
        return True

    def _pickers(self) -> Iterator[Client]:
        return (c for c in self._clients.values() if c.audience == "picker" and not c.left)

    def _begin(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        run.index += 1
        run.entered = now
        run.hold_since = None
        ladder = self._ladders[stage.audience]
        if ladder and stage.audience == "envoy":
            self._retired.withdraw(ladder[-1], stage.snapshot)
        if stage.audience not in run.touched:
            run.touched.add(stage.audience)
            return self._restart(stage.audience, stage.snapshot, now)
        ladder.append(stage.snapshot)
        sent: Sent = []
        for client in self._clients.values():
            if client.audience == stage.audience and not client.left:
                sent += self._assign(client, len(ladder) - 1, now)
        return sent

    def _restart(self, audience: Audience, snapshot: Snapshot, now: float) -> Sent:
        self._ladders[audience] = [snapshot]
        sent: Sent = []
        for client in self._clients.values():
            if client.audience == audience:
                client.left = ""
                sent += self._assign(client, 0, now)
        return sent

    def _assign(self, client: Client, rung: int, now: float) -> Sent:
        client.rung = rung
        snapshot = self._ladders[client.audience][rung]
        return self._sent(client, client.stream.on_snapshot(snapshot, now))

    def _lead_on(self, client: Client, now: float) -> Sent:
        sent: Sent = []
        top = len(self._ladders[client.audience]) - 1
        if client.left == "BEHIND":
            # Its routes may name what the bridge keeps, and its workers follow them later.
            if client.standing.state == "SYNCED" and client.stream.asked(ROUTE_TYPE):
                client.left, client.left_at = "CROSSED", now
                self._crossing[client.number] = now + BRIDGE_S
            return sent
        if self._crossing.get(client.number, now) > now:
            return sent
        self._crossing.pop(client.number, None)
        while client.left and client.standing.state == "SYNCED":
            if client.rung >= top:
                client.left = ""
            else:
                sent += self._assign(client, client.rung + 1, now)
        return sent

    def _abandon(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        self._finish(run, "abandoned", now)
        sent: Sent = []
        if stage.label == SWITCH:
            return sent
        # Pickers first: they stop naming what Envoys then forget.
        for audience in ("picker", "envoy"):
            if audience in run.touched and audience in run.before:
                sent += self._restart(audience, run.before[audience], now)
        return sent

    # --- the books ------------------------------------------------------------------------------

    def _sent(self, client: Client, responses: list[ResourceResponse]) -> Sent:
        client.standing = client.stream.standing()
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
            sum(1 for client in self._clients.values() if self._follows(client)),
            tuple(problems),
            tuple(run.channels),
            None if state == "waiting" else now - run.started,
            "" if stage is None else stage.label,
        )

    def _follows(self, client: Client) -> bool:
        top = len(self._ladders[client.audience]) - 1
        return client.standing.state == "SYNCED" and client.rung == top
