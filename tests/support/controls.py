"""A ``Control`` with fake dependencies; the test ends publications."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from support.fleets import fleet
from xds_server.control.fleet_control import Control
from xds_server.control.operation import Change, ChangeOptions
from xds_server.fleet.change import set_draining, set_weights
from xds_server.fleet.store import RevisionStore
from xds_server.protocol.publication import ClientProblem
from xds_server.protocol.snapshot import Snapshot

TEXT = fleet().model_dump_json()
"""JSON of the default fleet."""
ANY = ChangeOptions()
WAIT = ChangeOptions("ann", "because", wait=True, timeout_s=5)


def weight(control: Control, variant: str = "canary") -> int:
    """Return the weight of a variant in force."""
    return next(v.weight for v in control.fleet.pools[0].variants if v.name == variant)


@dataclass
class FakeOutcome:
    """State of a publication."""

    state: str = "done"
    clients: int = 2
    acked: int = 2
    problems: tuple = ()
    channels: tuple[str, ...] = ("RDS",)
    elapsed_s: float | None = 0.5
    stage: str = "remove"
    in_waves: bool = False


@dataclass
class FakePublication:
    """A publication that the test ends."""

    stages: tuple
    on_reject: str
    quorum: float = 0.5
    waves: bool = False
    channels: tuple[str, ...] = ("RDS",)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    followers: set[asyncio.Task] = field(default_factory=set)
    outcome: FakeOutcome = field(
        default_factory=lambda: FakeOutcome("waiting", elapsed_s=None, stage="add")
    )

    def end(self, state: str = "done", stage: str = "remove", type_: str = "CDS") -> None:
        """End the publication and wake all waiters."""
        problems = (
            (ClientProblem("envoy-1", "NACKED", type_, "bad"),) if state == "abandoned" else ()
        )
        self.outcome = FakeOutcome(state, 2, 2, problems, self.channels, stage=stage)
        self.ended.set()

    async def wait(self, timeout_s: float) -> FakeOutcome:
        """Return the outcome when the publication ends, or its state at the timeout."""
        if timeout_s <= 0 and not self.ended.is_set():
            return self.outcome
        self.followers.add(asyncio.current_task())
        await self.ended.wait()
        return self.outcome


class FakePublisher:
    """Records publications; ends each one immediately by default."""

    def __init__(self) -> None:
        self.published: list[FakePublication] = []
        self.at_once = True
        self.next: asyncio.Future[None] | None = None

    def publish(
        self, plan, *, on_reject: str, quorum: float = 0.5, waves: bool = False
    ) -> FakePublication:
        """Start a publication; it supersedes a running one."""
        for earlier in self.published:
            if not earlier.ended.is_set():
                earlier.end("superseded")
        publication = FakePublication(tuple(plan()), on_reject, quorum, waves)
        if self.at_once:
            publication.end()
        self.published.append(publication)
        if self.next is not None:
            self.next.set_result(None)
            self.next = None
        return publication

    def in_force(self, audience: str) -> Snapshot | None:
        """Return the snapshot that the newest publication has reached in its stage."""
        if not self.published:
            return None
        newest = self.published[-1]
        labels = [stage.label for stage in newest.stages]
        stage = newest.outcome.stage
        reached = newest.stages[: labels.index(stage) + 1] if stage in labels else newest.stages
        return next((s.snapshot for s in reversed(reached) if s.audience == audience), None)

    async def begun(self) -> None:
        """Wait for the next publication."""
        self.next = asyncio.get_running_loop().create_future()
        await self.next

    def labels(self) -> list[str]:
        """Return the stages of the newest publication."""
        return [stage.label for stage in self.published[-1].stages]


class World:
    """A ``Control`` with its fake dependencies."""

    def __init__(self, store: RevisionStore) -> None:
        self.store = store
        self.publisher = FakePublisher()
        self.now = 100.0
        self.revisions: list[int] = []
        self.left_alone: dict[tuple[str, str], str] = {}
        """Replicas that pickers leave alone, and why."""
        self.control = Control(
            store,
            self.publisher,
            lambda: 1_700_000_000_000,
            lambda: self.now,
            self.revisions.append,
            lambda: self.left_alone,
        )

    async def weigh(self, options: ChangeOptions = ANY, **weights: int) -> Change:
        """Change weights of the pool ``llm``."""
        return await self.control.change(lambda fleet: set_weights(fleet, "llm", weights), options)

    async def drain(
        self, replica: str, options: ChangeOptions = ANY, *, draining: bool = True
    ) -> Change:
        """Let a replica drain, or end that."""
        return await self.control.change(
            lambda fleet: set_draining(fleet, replica, draining), options
        )

    async def quiet(self) -> None:
        """Wait until all ended publications are processed."""
        await settle()
        while watchers := self.control._watchers & {
            task for p in self.publisher.published if p.ended.is_set() for task in p.followers
        }:
            await asyncio.gather(*watchers)
            await settle()


async def settle() -> None:
    """Let background tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)
