"""Rollout: publishes states of the fleet to the clients and tracks which state these have.

Rules:

1. A change is planned from the state that clients really have (``Acknowledged``). An unfinished
   change leaves them between two fleets. A rejected change leaves them with the fleet before it or,
   if they had switched already, between the two. What few Envoys have, because waves were not over,
   is no part of that state: it would come to all with the first stage of the next change.
2. Replicas that are to be left alone are so first of all, in a stage of its own (``stages``); after
   a restart with what pickers may name whatever Envoys have (``restart``).
   So are weights and limits, but in the stages of a change where these have waves.
   With waves, load is shed likewise. What differs from the good state in nothing else comes to all
   Envoys at once, and so does the way back from a rejected change.
3. The *good* state is the newest state whose publication was completed. A rejected change falls
   back to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xds_server.fleet.diff import is_relief
from xds_server.fleet.members.members import Members, bounding, leaving, placing, standing
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import Memo, upstream_contents
from xds_server.snapshots.preview import preview
from xds_server.snapshots.restart import restart_stage
from xds_server.snapshots.stages import (
    URGENT,
    Acknowledged,
    lightened,
    lighter,
    plan,
    shed_stage,
    urgent_stage,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xds_server.control.ads import PublicationHandle, SnapshotPublisher
    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.members.members import Leaving, Placed, Unpicked
    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.revision import FleetState
    from xds_server.fleet.view import CanaryMark
    from xds_server.protocol.publication import PublicationOutcome, Stage
    from xds_server.snapshots.preview import Preview

_BEFORE_SWITCH = ("", URGENT, "add", "use")


@dataclass(slots=True)
class Published:
    """A state whose publication is running or has ended."""

    state: FleetState
    before: Acknowledged | None
    """The state that clients had when the publication began; ``None`` for the first."""
    good: FleetState
    """The state to which a rejected publication falls back."""
    publication: PublicationHandle
    next: Published | None = None
    """The state published after this one."""
    answered: bool = False
    """The fallback from its rejection was published."""
    earlier: tuple[str, ...] = ()
    """Over which channels this revision was sent before: by publications that it superseded."""

    @property
    def outcome(self) -> PublicationOutcome:
        """Current outcome of the publication."""
        return self.publication.outcome

    @property
    def refused(self) -> bool:
        """Clients rejected the state, and the fallback was not published yet."""
        return not self.answered and self.outcome.state == "abandoned"

    async def wait(self, timeout_s: float, clock: Callable[[], float]) -> PublicationOutcome:
        """Wait until the publication, or a newer one that superseded it, has ended.

        A newer state contains this state's change, so its acknowledgement covers both. What was
        superseded may have been sent already, so the channels are those of all.

        Args:
            timeout_s: Longest wait, in seconds; then the outcome is that of a running publication.
            clock: Monotonic seconds.
        """
        called, published, sent = clock(), self, self.earlier
        while True:
            left = max(0.0, called + timeout_s - clock())
            outcome = sent_before(sent, await published.publication.wait(left))
            newer = published.next
            if outcome.state != "superseded" or newer is None:
                return outcome
            published, sent = newer, outcome.channels


def sent_before(channels: Sequence[str], outcome: PublicationOutcome) -> PublicationOutcome:
    """Return an outcome with channels over which an earlier publication was sent."""
    return replace(outcome, channels=tuple(dict.fromkeys((*channels, *outcome.channels))))


@dataclass(frozen=True, slots=True)
class Planned:
    """The stages from the state that clients have to a new state."""

    have: Acknowledged | None
    stages: tuple[Stage, ...]


class Rollout:
    """Plans and publishes; see the module's rules.

    Args:
        publisher: Publishes the stages to clients.
    """

    def __init__(self, publisher: SnapshotPublisher, seed: int = 0) -> None:
        self._publisher = publisher
        self._seed = seed
        self._memo = Memo()
        self.sick: PublishedSick = {}
        """Replicas to mark as sick in each publication."""
        self.placed: Placed = ()
        """Models of replicas to list in each publication."""
        self.unpicked: Unpicked = ()
        """Bounds of requests without a pick, for each publication."""
        self.leaving: Leaving = ()
        """Models that leave replicas, for each publication."""
        self.canaries: Mapping[str, CanaryMark] = {}
        """The rollout that runs in each pool, for each publication."""
        self.newest: Published | None = None
        """The state published last."""

    def acknowledged(self) -> Acknowledged | None:
        """Return the state that clients have now; ``None`` if nothing was published."""
        published = self.newest
        if published is None:
            return None
        new, before = self._view(published.state), published.before
        outcome = published.outcome
        if before is None or outcome.state == "done":
            return Acknowledged.settled(new)
        if outcome.state == "abandoned" and outcome.stage in _BEFORE_SWITCH:
            return before
        view = _both(before.view, new)
        force = self._publisher.in_force("envoy")
        untried = outcome.stage == "switch" and outcome.in_waves
        draws = lightened(before.draws, new.fleet)
        if outcome.stage in _BEFORE_SWITCH or untried:
            front = lightened(before.front, new.fleet)
            return Acknowledged(view, front, draws, before.named, force)
        if outcome.stage == "switch":
            return Acknowledged(view, new.fleet, draws, before.named, force)
        return Acknowledged(view, new.fleet, new.fleet, view.fleet, force)

    def plan(self, state: FleetState, have: Acknowledged | None) -> Planned:
        """Return the stages from ``have`` to ``state``. CPU-bound; may run in a worker thread.

        Raises:
            Exception: No resources can be built from the state; nothing has changed.
        """
        return Planned(have, plan(have, self._view(state), self._memo))

    def preview(self, planned: Planned, state: FleetState) -> Preview:
        """Return what publishing ``state`` by its plan would do."""
        in_force, newest = self._publisher.in_force, self.newest
        before = None if newest is None else newest.state.published
        return preview(
            planned.stages, in_force("envoy"), in_force("picker"), before, state.published
        )

    def first(self, state: FleetState, past: Sequence[Fleet]) -> Planned:
        """Return the stages with which a server starts. CPU-bound; may run in a worker thread.

        Args:
            state: The state.
            past: The fleets before it that clients may still have, oldest first.

        Raises:
            Exception: No resources can be built; nothing has changed.
        """
        with_members = [
            standing(Members(state.members.pools).published(fleet).fleet, state.promoted)
            for fleet in past
        ]
        held = [Snapshot.of(upstream_contents(fleet, self._memo)) for fleet in with_members]
        stages = self.plan(state, None).stages
        early = restart_stage(with_members, self._view(state), self._memo)
        return Planned(None, (early, replace(stages[0], past=tuple(held)), *stages[1:]))

    def publish(self, state: FleetState, planned: Planned | None = None) -> Published:
        """Publish ``state``; a running publication is superseded.

        Args:
            state: The state.
            planned: Its plan, used if clients still have the state from which it starts.
        """
        have = self.acknowledged()
        if planned is None or planned.have != have:
            planned = self.plan(state, have)
        before, fleet = self.newest, state.fleet
        stages, waves = planned.stages, self._in_waves(state)
        if waves and before is not None:
            shed = shed_stage(self._publisher.in_force("envoy"), before.state.fleet, fleet)
            stages = stages if shed is None else (shed, *stages)
        view = self._view(state)
        light = () if waves or have is None else _light(have, view)
        urgent = urgent_stage(self._publisher.in_force("picker"), view, light)
        stages = stages if urgent is None else (urgent, *stages)
        publication = self._publisher.publish(
            lambda: stages, on_reject=fleet.on_reject, quorum=fleet.reject_quorum, waves=waves
        )
        self.newest = Published(state, have, self._good(state), publication)
        if before is not None:
            before.next = self.newest
            again = before.state.revision.number == state.revision.number
            if again and before.outcome.state == "superseded":
                self.newest.earlier = sent_before(before.earlier, before.outcome).channels
        return self.newest

    def _view(self, state: FleetState) -> View:
        fleet = leaving(placing(state.published, self.placed), self.leaving)
        fleet = bounding(fleet, self.unpicked)
        return View(fleet, state.all_incarnations, self.sick, self._seed, self.canaries)

    def _in_waves(self, state: FleetState) -> bool:
        if not state.fleet.waves or self.newest is None:
            return False
        back = self.newest.answered and self.newest.outcome.state == "abandoned"
        return not back and not is_relief(self._good(state).fleet, state.fleet)

    def _good(self, state: FleetState) -> FleetState:
        newest = self.newest
        if newest is None:
            return state
        finished = newest.before is None or newest.outcome.state == "done"
        return newest.state if finished else newest.good


def _light(have: Acknowledged, new: View) -> tuple[PoolSpec, ...]:
    return lighter(have.draws, lightened(have.draws, new.fleet))


def _both(old: View, new: View) -> View:
    fleet = widened(old.fleet, new.fleet)
    incarnations = new.incarnations
    if incarnations is not old.incarnations:
        incarnations = {**old.incarnations, **incarnations}
    return View(fleet, incarnations, new.sick, new.seed, new.canaries)
