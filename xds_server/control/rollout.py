"""Brings states of the fleet to the clients, and knows what these have at every moment.

Laws:

1. A change is planned from what clients really have (``Reached``): an unfinished change leaves
   them between two fleets, a refused one with the fleet before it, or, where they had switched
   already, between the two.
2. *Good* is the newest state that ran to its end. It is where a refusal leads back to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xds_server.fleet.view import View
from xds_server.snapshots.memo import Memo
from xds_server.snapshots.reached import Reached
from xds_server.snapshots.stages import plan, widened

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.control.publisher import PublicationHandle, SnapshotPublisher
    from xds_server.fleet.findings import Told
    from xds_server.fleet.revision import FleetState
    from xds_server.protocol.publication import PublicationOutcome, Stage

_BEFORE_SWITCH = ("", "add", "use")


@dataclass(slots=True)
class Published:
    """A state on its way to the clients, or there."""

    state: FleetState
    before: Reached | None
    """What clients had when it began."""
    good: FleetState
    """Where a refusal leads back to."""
    publication: PublicationHandle
    next: Published | None = None
    """What came after it."""
    answered: bool = False
    """Its refusal was dealt with."""

    @property
    def outcome(self) -> PublicationOutcome:
        """How far it has come."""
        return self.publication.outcome

    @property
    def refused(self) -> bool:
        """Clients refused it, and nothing was done about that yet."""
        return not self.answered and self.outcome.state == "abandoned"

    async def wait(self, timeout_s: float, clock: Callable[[], float]) -> PublicationOutcome:
        """Wait for its end, or for that of the newer state which took its place.

        A newer state contains this one's change: its acknowledgement is this one's too.

        Args:
            timeout_s: After so long the outcome is how it stands then.
            clock: Monotonic seconds.
        """
        called, published = clock(), self
        while True:
            left = max(0.0, called + timeout_s - clock())
            outcome = await published.publication.wait(left)
            newer = published.next
            if outcome.state != "superseded" or newer is None:
                return outcome
            published = newer


@dataclass(frozen=True, slots=True)
class Planned:
    """The stages from what clients had to a state."""

    have: Reached | None
    stages: tuple[Stage, ...]


class Rollout:
    """Plans and publishes; see the module's laws.

    Args:
        publisher: Who brings stages to clients.
    """

    def __init__(self, publisher: SnapshotPublisher) -> None:
        self._publisher = publisher
        self._memo = Memo()
        self.told: Told = {}
        """Replicas that pickers find sick; each publication carries them."""
        self.newest: Published | None = None
        """The state published last."""

    def reached(self) -> Reached | None:
        """Return what clients have now; ``None`` where nothing was published."""
        published = self.newest
        if published is None:
            return None
        new, before = self._view(published.state), published.before
        outcome = published.outcome
        if before is None or outcome.state == "done":
            return Reached.settled(new)
        if outcome.state == "abandoned" and outcome.stage in _BEFORE_SWITCH:
            return before
        view = _both(before.view, new)
        force = self._publisher.in_force("envoy")
        if outcome.stage in _BEFORE_SWITCH:
            return Reached(view, before.front, before.draws, before.named, force)
        if outcome.stage == "switch":
            return Reached(view, new.fleet, before.draws, before.named, force)
        return Reached(view, new.fleet, new.fleet, view.fleet, force)

    def plan(self, state: FleetState, have: Reached | None) -> Planned:
        """Return the stages from ``have`` to ``state``; takes CPU time, and may run in a thread.

        Raises:
            Exception: The state cannot be built into resources; nothing has changed.
        """
        return Planned(have, plan(have, self._view(state), self._memo))

    def publish(self, state: FleetState, planned: Planned | None = None) -> Published:
        """Bring ``state`` to the clients; what is under way is superseded.

        Args:
            state: The state.
            planned: Its plan, used if clients still have what it starts from.
        """
        have = self.reached()
        if planned is None or planned.have != have:
            planned = self.plan(state, have)
        stages, before = planned.stages, self.newest
        publication = self._publisher.publish(lambda: stages, on_reject=state.fleet.on_reject)
        self.newest = Published(state, have, self._good(state), publication)
        if before is not None:
            before.next = self.newest
        return self.newest

    def _view(self, state: FleetState) -> View:
        return View(state.fleet, state.incarnations, self.told)

    def _good(self, state: FleetState) -> FleetState:
        newest = self.newest
        if newest is None:
            return state
        finished = newest.before is None or newest.outcome.state == "done"
        return newest.state if finished else newest.good


def _both(old: View, new: View) -> View:
    fleet = widened(old.fleet, new.fleet)
    return View(fleet, {**old.incarnations, **new.incarnations}, new.told)
