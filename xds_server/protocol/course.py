"""Which stage each client is on, and how it comes to the next one. Pure.

Rules:

1. The *course* of an audience is the snapshots of its newest publication, in their order. The last
   one is in force. With waves it may be for some Envoys only: then the one before is *for all*.
2. A client is led over the stages one by one. One that left the gate follows as soon as it is
   SYNCED on its own stage, up to the stage that is for all, where it counts again.
3. A client that connects begins on the stage that is for all. With routes to clusters withdrawn in
   the meantime it gets a bridge first (``Retired``), which newer publications do not take away.
4. A publication's first stage puts all clients of its audience on a new course.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, ROUTE_TYPE
from xds_server.protocol.gate.verdict import Waves
from xds_server.protocol.messages import DeltaRequest, ResourceResponse, short_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from xds_server.protocol.client import Client
    from xds_server.protocol.messages import SotwRequest
    from xds_server.protocol.publication import Audience, PublicationRun, Stage
    from xds_server.protocol.snapshot import Resource, Snapshot

Sent: TypeAlias = list[tuple[int, ResourceResponse]]
"""Messages to send, in order, each with the number of its client."""

BRIDGE_S: Final = 0.25
"""How long a client keeps its bridge after its routes: its workers apply these after the ACK."""


class Course:
    """The stages of both audiences and the place of each client; see the module's rules.

    Methods that move clients return the messages to send. ``now`` is monotonic seconds.
    """

    def __init__(self) -> None:
        self.clients: dict[int, Client] = {}
        """The connected clients by number."""
        self.waves = Waves()
        self.refusal_seen = False
        """A client whose refusal may end the publication has refused since this was cleared."""
        self._stages: dict[Audience, list[Snapshot]] = {"envoy": [], "picker": []}
        self._retired = Retired()
        self._crossing: dict[int, float] = {}
        self._kept: dict[int, tuple[Kept, ...]] = {}
        """Of each client on a bridge: the withdrawn clusters."""
        self._early: dict[int, SotwRequest | DeltaRequest] = {}
        """First CDS requests of clients that came before anything was published."""
        self._run: PublicationRun | None = None

    # --- stages ---------------------------------------------------------------------------------

    def newest(self, audience: Audience) -> int:
        """Return the index of the newest stage; -1 = there is none."""
        return len(self._stages[audience]) - 1

    def for_all(self, audience: Audience) -> int:
        """Return the index of the newest stage that is for all clients; -1 = there is none."""
        return self.newest(audience) - (audience == "envoy" and self.waves.open)

    def snapshot(self, audience: Audience, index: int) -> Snapshot | None:
        """Return the snapshot of a stage; ``None`` for the index -1."""
        return self._stages[audience][index] if index >= 0 else None

    def begin(self, run: PublicationRun, stage: Stage, now: float) -> Sent:
        """Let a stage begin."""
        stages, audience = self._stages[stage.audience], stage.audience
        self._run = run
        if stage.edit is not None:
            return self._edit(audience, stage.edit, now)
        waves = run.waves and audience == "envoy" and bool(stages)
        if audience == "envoy":
            self._retired.replaced((*stage.past, *stages[-1:]), stage.snapshot)
        snapshot = self._known(audience, stage.snapshot)
        mine = [client for client in self.clients.values() if client.audience == audience]
        if audience not in run.touched:
            run.touched.add(audience)
            if not waves:
                return self.restart(audience, snapshot, now)
            stages[:] = [stages[self.for_all(audience)], snapshot]
            for client in mine:
                self._rejoins(client, now)
        else:
            stages.append(snapshot)
        going = [client for client in mine if not client.left]
        if not waves:
            return self._release(going, now)
        for client in going:
            client.left = "WAVE"
        sent = self._release(self.waves.begin(going), now)
        for client in mine:
            if client.stage_index == 0 and client.stream.snapshot is not stages[0]:
                # An earlier publication had led it further than all, or not as far.
                sent += self._assign(client, 0, now)
        return sent

    def _known(self, audience: Audience, snapshot: Snapshot) -> Snapshot:
        """Return the newest snapshot if it is equal: clients that have it need not look again."""
        stages = self._stages[audience]
        return stages[-1] if stages and stages[-1] == snapshot else snapshot

    def next_wave(self, run: PublicationRun, now: float) -> Sent:
        """Let the current stage come to the next wave of Envoys."""
        run.entered = run.late_at = now
        return self._release(self.waves.following(self.clients), now)

    def restart(self, audience: Audience, snapshot: Snapshot, now: float) -> Sent:
        """Put all clients of an audience on a new course, of one snapshot for all."""
        self._stages[audience] = [snapshot]
        if audience == "envoy":
            self.waves.close()
        sent: Sent = []
        for client in self.clients.values():
            if client.audience != audience:
                continue
            early = self._early.pop(client.number, None)
            if early is not None:
                self._needs_bridge(client, early, snapshot, now)
            if self._rejoins(client, now):
                sent += self._assign(client, 0, now)
            else:
                bridge = bridged(snapshot, self._kept[client.number])
                sent += self.sent(client, client.stream.on_snapshot(bridge, now), now)
        return sent

    def _rejoins(self, client: Client, now: float) -> bool:
        """Let a client begin a new course; one that still needs its bridge follows later."""
        on_bridge = client.number in self._kept
        client.stage_index = -1 if on_bridge else 0
        if not on_bridge:
            client.rejoin(now)
        return not on_bridge

    def finished(self) -> None:
        """Note that the publication has ended: messages are no longer its own."""
        self._run = None

    def _release(self, wave: Collection[Client], now: float) -> Sent:
        """Bring clients to the newest stage, and those in quarantine as far as they follow."""
        sent: Sent = []
        for client in wave:
            client.left = ""
            sent += self._assign(client, self.newest(client.audience), now)
        for client in self.clients.values():
            if client.left == "QUARANTINED":
                sent += self.catch_up(client, now)
        return sent

    def _edit(self, audience: Audience, edit: Callable[[Snapshot], Snapshot], now: float) -> Sent:
        stages, sent = self._stages[audience], []
        stages[:] = [edit(snapshot) for snapshot in stages]
        for client in self.clients.values():
            held = client.audience == audience and client.stage_index >= 0
            if held and client.left not in {"BEHIND", "CROSSED"}:
                sent += self._assign(client, client.stage_index, now)
        return sent

    # --- clients --------------------------------------------------------------------------------

    def join(self, client: Client, now: float) -> None:
        """Add a client; nothing is sent before its first request."""
        client.stage_index = self.for_all(client.audience)
        begin = self.snapshot(client.audience, client.stage_index)
        if begin is not None:
            client.stream.on_snapshot(begin, now)
        if client.refusals.quarantined:
            client.left = "QUARANTINED"
        elif client.stage_index < self.newest(client.audience):
            client.left = "WAVE"
        self.clients[client.number] = client

    def leave(self, number: int) -> Client | None:
        """Remove a client and return it."""
        self._crossing.pop(number, None)
        self._kept.pop(number, None)
        self._early.pop(number, None)
        return self.clients.pop(number, None)

    def asked(self, client: Client, request: SotwRequest | DeltaRequest, now: float) -> None:
        """Give a client its bridge, if it needs one, before it processes its request."""
        if client.clusters_requested or request.type_url != CLUSTER_TYPE:
            return
        client.clusters_requested = True
        target = self.snapshot(client.audience, self.for_all(client.audience))
        if target is None:
            self._early[client.number] = request
        elif self._needs_bridge(client, request, target, now):
            client.stream.on_snapshot(bridged(target, self._kept[client.number]), now)

    def _needs_bridge(
        self,
        client: Client,
        request: SotwRequest | DeltaRequest,
        target: Snapshot,
        now: float,
    ) -> bool:
        kept = self._retired.needed(request, target)
        if kept:
            self._kept[client.number] = kept
            client.left, client.left_at = "BEHIND", now
            client.stage_index = self.for_all(client.audience) - 1
        return bool(kept)

    def catch_up(self, client: Client, now: float) -> Sent:
        """Lead a client that left the gate over the stages that it has missed."""
        sent: Sent = []
        if client.left == "BEHIND":
            # Keep the bridge until the routes are updated and the client's workers apply them.
            if client.standing.state == "SYNCED" and client.stream.has_requested(ROUTE_TYPE):
                client.left, client.left_at = "CROSSED", now
                self._crossing[client.number] = now + BRIDGE_S
            return sent
        if self._crossing.get(client.number, now) > now:
            return sent
        self._crossing.pop(client.number, None)
        self._kept.pop(client.number, None)
        while client.left and client.standing.state == "SYNCED":
            if client.stage_index < self.for_all(client.audience):
                sent += self._assign(client, client.stage_index + 1, now)
                continue
            if client.refusals.quarantined:
                client.left = "QUARANTINED"
            else:
                client.left = "WAVE" if client.stage_index < self.newest(client.audience) else ""
            break
        return sent

    def crossed(self, now: float) -> Sent:
        """Take the bridges of clients that have crossed."""
        sent: Sent = []
        for number in [n for n, at in self._crossing.items() if at <= now]:
            sent += self.catch_up(self.clients[number], now)
        return sent

    @property
    def crossings(self) -> Collection[float]:
        """When clients will have crossed, monotonic seconds."""
        return self._crossing.values()

    def current(self, client: Client) -> bool:
        """Return whether a client holds the newest stage."""
        newest = client.stage_index == self.newest(client.audience)
        return newest and client.standing.state == "SYNCED"

    def sent(self, client: Client, responses: list[ResourceResponse], now: float) -> Sent:
        """Note messages to a client, and where it stands now."""
        client.standing = client.stream.standing()
        if responses:
            client.debt.sent(now)
        run = self._run
        if client.standing.state == "NACKED" and not client.left:
            # All clients are judged for a refusal: not for each of thousands that have no voice.
            voiceless = run is not None and run.on_reject == "quorum" and not client.had_state
            self.refusal_seen = self.refusal_seen or not voiceless
        if run is not None and client.connected <= run.started:
            for response in responses:
                name = short_type(response.type_url)
                if name not in run.channels:
                    run.channels.append(name)
        return [(client.number, response) for response in responses]

    def _assign(self, client: Client, index: int, now: float) -> Sent:
        client.stage_index = index
        snapshot = self._stages[client.audience][index]
        if snapshot is client.stream.given:
            return []
        return self.sent(client, client.stream.on_snapshot(snapshot, now), now)


MAX_RETIRED: Final = 256
Kept: TypeAlias = "tuple[Resource, Resource | None]"
"""A withdrawn cluster and its assignment."""


class Retired:
    """Withdrawn clusters, kept for clients that reconnect with routes to them.

    A client that was disconnected while a cluster was withdrawn still routes to it, and on
    reconnection its clusters are updated before its routes. Such a client first gets a *bridge*:
    the newest snapshot together with the withdrawn clusters that it may still use. These are
    removed once its routes have been updated. This is make-before-break for a single client.

    Rules:

    1. The last ``MAX_RETIRED`` withdrawn clusters are kept, with their assignments, for the
       lifetime of the server, and those that clients may have from an earlier one. A cluster that
       comes into force again is removed.
    2. A client gets a bridge only if its request states that it holds another state. New clients
       and clients that are up to date get none. It keeps the bridge when a newer state comes.
    """

    def __init__(self) -> None:
        self._clusters: dict[str, Kept] = {}

    def withdraw(self, before: Snapshot, after: Snapshot) -> None:
        """Record that the snapshot ``after`` replaces ``before``."""
        was, here = before.resources(CLUSTER_TYPE), after.resources(CLUSTER_TYPE)
        assignments = before.resources(ENDPOINT_TYPE)
        for name in () if was.keys() <= here.keys() else [n for n in was if n not in here]:
            self._clusters[name] = (was[name], assignments.get(before.eds_name(name)))
        for name in [name for name in self._clusters if name in here]:
            del self._clusters[name]
        while len(self._clusters) > MAX_RETIRED:
            del self._clusters[next(iter(self._clusters))]

    def replaced(self, earlier: Iterable[Snapshot], after: Snapshot) -> None:
        """Record that ``after`` replaces each of the snapshots, oldest first."""
        for before in earlier:
            self.withdraw(before, after)

    def needed(self, request: SotwRequest | DeltaRequest, target: Snapshot) -> tuple[Kept, ...]:
        """Return the withdrawn clusters that a client may hold, with their assignments.

        Args:
            request: The client's first CDS request.
            target: The newest snapshot.

        Returns:
            Empty if the client can get ``target`` at once, without a bridge.
        """
        if request.type_url != CLUSTER_TYPE:
            return ()
        names = set(self._clusters)
        if isinstance(request, DeltaRequest):
            names &= request.initial_versions.keys()
        elif request.version in {"", target.version(CLUSTER_TYPE)}:
            return ()
        return tuple(self._clusters[name] for name in names)


def bridged(target: Snapshot, kept: Iterable[Kept]) -> Snapshot:
    """Return ``target`` with withdrawn clusters that are not part of it."""
    here = target.resources(CLUSTER_TYPE)
    more = [(cluster, found) for cluster, found in kept if cluster.name not in here]
    return target.joined(
        {
            CLUSTER_TYPE: [cluster for cluster, _ in more],
            ENDPOINT_TYPE: [found for _, found in more if found is not None],
        }
    )
