"""Pickers of a group over a network that fails, and what must be true of them.

The pickers are the product's: bus, links, records, members, owners and router. Only sockets, TLS
and time are simulated (``hosts``). What must be true:

* A sequence has one replica, whatever fails and wherever its next request goes. An exception:
  no living member knew it, as a host lost its power with what it had sent, or no other member had
  caught up; or its replica was removed from the pool. Another one in a group without the control
  server's list: it was placed by a member that heard at most half of those that lived, as one that
  hears no other agrees with itself (``group.owners``).
* Within ``SETTLED_S`` after the last fault all members know and agree with each other, no question
  is open, and leases and requests in flight are the same everywhere. Each sequence can go on then.
* No time of another host is taken for an own one: a lease never lasts longer than its pool says.
* No answer of another member is counted twice; no record is refused; bytes are bounded.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.proposal import PlacedAs
from ext_proc.routing.values.ticket import DONE
from ext_proc.workers import links
from ext_proc.workers.bus import Bus, WorkerPlace
from ext_proc.workers.group import members as members_module
from ext_proc.workers.group.members import GroupPlan
from ext_proc.workers.news import Listed
from support.chaos.hosts import HostLoop, Network, Select, Socket
from support.crew import POOL, pool, request, router
from tidegate_common.tls.roles import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.values.proposal import Proposal

SEQUENCES: Final = 8
BEGINS_S: Final = 0.8
"""All members are up; the first fault may come."""
FAULTS_S: Final = 2.5
"""For so long faults begin."""
SETTLED_S: Final = 12.0
LOOKS_S: Final = 0.5
IDLE_S: Final = 600.0
"""How long a lease lasts; no schedule is as long."""
PATIENCE_S: Final = 1.0
"""After so long without a decision a client goes to another member."""
MAX_BYTES: Final = 4_000_000
"""Of one schedule, of all members together."""


class Fault(NamedTuple):
    """What happens to a member, or to the way from one to another."""

    at: float
    kind: str
    one: int
    two: int
    lasts_s: float
    size: float

    def __str__(self) -> str:
        way = f" {self.one}-{self.two}" if self.two != self.one else f" {self.one}"
        return f"{self.at:.3f} s: {self.kind}{way}, {self.lasts_s:.3f} s, {self.size:.3f}"


class BrokenError(AssertionError):
    """What must be true is not."""


KINDS: Final = (
    *("kill", "kill", "stop", "cut", "cut", "cut-one-way", "cut-one-way"),
    *("slow", "lossy", "wall-clock", "end-link", "end-link"),
)
RARE: Final = ("power", "cut-off", "replica", "replica")
REPLICAS: Final = 4


def schedule(seed: int) -> tuple[int, list[Fault]]:
    """Return the number of members and the faults of a schedule."""
    rng = Random(seed)
    members = rng.choice((2, 5, 3, 3, 3, 4))
    kinds = KINDS if rng.random() < 0.8 else (*KINDS, *RARE, *RARE)
    faults = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        one, two = rng.sample(range(members), 2)
        kind = rng.choice(kinds)
        if kind not in {"cut", "cut-one-way", "slow", "lossy", "end-link"}:
            two = one
        lasts_s = rng.choice((0.05, 0.3, 1.0, 2.5, 4.0)) * (0.5 + rng.random())
        size = rng.choice((0.01, 0.05, 0.2)) * (0.5 + rng.random())
        faults.append(Fault(BEGINS_S + rng.random() * FAULTS_S, kind, one, two, lasts_s, size))
    return members, sorted(faults)


class Group:
    """One schedule; see the module's rules."""

    def __init__(self, seed: int, members: int, faults: list[Fault], *, listed: bool) -> None:
        self.rng = Random(f"clients of {seed}")
        ways = Random(f"ways of {seed}")
        self.network = Network(ways, ways.choice((0.0005, 0.002, 0.01, 0.04)))
        self.size = members
        self.listed = Listed(1, 0, tuple(map(name, range(members)))) if listed else None
        """The control server's list, which it has told each member at its start."""
        self.faults = faults
        self.members: dict[int, Member] = {}
        self.lives = count(1)
        self.sent: dict[int, set[str]] = {}
        """Replicas to which requests of a sequence were forwarded."""
        self.powerless = False
        """A host has lost its power: what it had leased may be lost."""
        self.gone: list[str] = []
        """Replicas that were removed from the pool."""
        self.exempt: set[int] = set()
        """Sequences that a part of the members placed."""
        self.decided = self.refused = 0
        self.open: dict[str, int] = {}
        """Requests in flight by replica."""
        self.judged: dict[int, int] = {}
        """Answers that each life of a member has counted."""
        self.errors: list[str] = []

    # --- members ----------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a member."""
        if number not in self.members:
            self.members[number] = Member(self, number)

    def end(self, number: int, *, power: bool) -> None:
        """Kill a member; with its power what it has sent is lost too."""
        member = self.members.pop(number, None)
        if member is not None:
            member.end(power=power)
            left = self.members.values()
            if not any(each.ready and self.reads(each, member) for each in left):
                self.exempt |= set(range(SEQUENCES))  # no living member knows them

    def reads(self, member: Member, other: Member) -> bool:
        """Return whether a member knows another, and what that sends arrives."""
        return member.knows(other.id) and self.network.whole(other.id, member.id)

    def hears(self, member: Member) -> int:
        """Return how many members one knows that live and that it can hear now, itself included."""
        owners, whole = member.bus.owners, self.network.whole
        known = {each.id for each in owners._peers.values() if each.joined}
        return 1 + sum(
            other.id in known and other.loop.stopped_until <= self.network.now
            for other in self.members.values()
            if whole(other.id, member.id) and whole(member.id, other.id)
        )

    def placed(self, member: Member, sequence: int) -> None:
        """Note who places a sequence, or forwards its request."""
        if self.listed is None and self.hears(member) * 2 <= len(self.members):
            self.exempt.add(sequence)

    # --- faults -----------------------------------------------------------------------------------

    def harm(self, fault: Fault) -> None:  # noqa: C901, PLR0912 - a branch for each kind
        """Let a fault begin."""
        network, one, two = self.network, fault.one, fault.two
        ends = network.now + fault.lasts_s
        way, back = (name(one), name(two)), (name(two), name(one))
        if fault.kind in {"kill", "power"}:
            self.powerless |= fault.kind == "power"
            self.end(one, power=fault.kind == "power")
            network.at(ends, self.start, one)
        elif fault.kind == "replica":
            if len(self.gone) < REPLICAS - 2:
                self.gone.append(f"r{self.rng.randrange(REPLICAS)}")
            for member in self.members.values():
                after_s = self.rng.random() * fault.size
                network.at(network.now + after_s, member.loop.call_soon, member.learn_pool)
        elif fault.kind == "stop":
            if one in self.members:
                self.members[one].loop.stopped_until = ends
        elif fault.kind in {"cut", "cut-one-way"}:
            for each in (way, back) if fault.kind == "cut" else (way,):
                network.cuts(*each)
                network.at(ends, network.mends, *each)
        elif fault.kind == "cut-off":
            for other in range(self.size):
                if other != one:
                    for each in ((name(one), name(other)), (name(other), name(one))):
                        network.cuts(*each)
                        network.at(ends, network.mends, *each)
        elif fault.kind == "slow":
            network.slow[way] = fault.size
            network.at(ends, network.slow.pop, way, None)
        elif fault.kind == "lossy":
            network.lossy[way] = min(0.5, fault.size * 2.0)
            network.at(ends, network.lossy.pop, way, None)
        elif fault.kind == "wall-clock":
            if one in self.members:
                self.members[one].wall_s += fault.size * 1e5 * (-1) ** int(fault.at * 1e3)
        elif one in self.members:  # the end of a connection's age
            self.members[one].end_link(two)

    # --- clients ----------------------------------------------------------------------------------

    def client(self, sequence: int, steps: int) -> None:
        """Send a request of a sequence to any member, and the next one once it has an answer."""
        ready = [each for each in self.members.values() if each.ready]
        if not steps:
            return
        if not ready:
            self.network.at(self.network.now + 0.2, self.client, sequence, steps)
            return
        member = self.rng.choice(ready)
        over = False

        def then(after_s: float) -> None:
            nonlocal over
            if not over:
                over = True
                late.cancel()
                self.network.at(self.network.now + after_s, self.client, sequence, steps - 1)

        late = self.network.at(self.network.now + PATIENCE_S, then, 0.0)
        member.waiting.append(then)
        member.loop.call_soon(member.step, sequence, then)

    def forwarded(self, member: Member, sequence: int, replica: str) -> None:
        """Note where a request went."""
        self.placed(member, sequence)
        where = self.sent.setdefault(sequence, set())
        where.add(replica)
        if (
            len(where.difference(self.gone)) > 1
            and not self.powerless
            and sequence not in self.exempt
        ):
            raise BrokenError(f"sequence {sequence} is on {sorted(where)}")

    # --- a run ------------------------------------------------------------------------------------

    def play(self) -> None:
        """Run the schedule, and check what must be true.

        Raises:
            BrokenError: It is not.
        """
        network, rng = self.network, self.rng
        for number in range(self.size):
            network.at(rng.random() * 0.2, self.start, number)
        last = BEGINS_S + FAULTS_S
        for fault in self.faults:
            network.at(fault.at, self.harm, fault)
            last = max(last, fault.at + fault.lasts_s)
        for sequence in range(SEQUENCES):
            at = 0.6 + rng.random() * (BEGINS_S + FAULTS_S)
            for _ in range(rng.choice((1, 1, 2))):  # two clients may begin it at once
                network.at(at, self.client, sequence, 3)
        network.run(last)
        while True:
            network.run(network.now + LOOKS_S)
            try:
                self.check()
                break
            except BrokenError:
                if network.now > last + SETTLED_S:
                    raise
        self.serves()

    def serves(self) -> None:
        """Check that each sequence can go on, at any member, once all is well again."""
        refused = self.refused
        for sequence in range(SEQUENCES):
            self.client(sequence, 1)
        self.network.run(self.network.now + 1.5 * PATIENCE_S)
        if self.refused > refused or any(each.waiting for each in self.members.values()):
            raise BrokenError(f"{self.refused - refused} sequences are refused, though all agree")

    def check(self) -> None:  # noqa: C901 - one condition after another
        """Check what must be true once all is well again."""
        members = list(self.members.values())
        if self.errors:
            raise BrokenError(self.errors[0])
        leases: dict[Any, set[str]] = {}
        used: set[Any] = set()
        for member in members:
            owners = member.bus.owners
            lacks = [each for each in member.bus.members() if not each.agrees or not each.caught_up]
            if owners is None or not owners.agreed or lacks:
                raise BrokenError(f"member {member.number} does not agree: {lacks}")
            if owners.open:
                raise BrokenError(f"member {member.number} has {owners.open} open questions")
            loads = {key.id: load.in_flight for key, load in member.router.ledger.loads()}
            want = {each: self.open.get(each, 0) for each in loads}
            if loads != want:
                raise BrokenError(f"member {member.number} knows {loads} in flight, not {want}")
            now = member.clock()
            for key, lease in member.router.peers.leases_in_force():
                leases.setdefault(key, set()).add(f"{lease.endpoint.id} {lease.variant}")
                used.update(() if owners.unsure(key) else (key,))
                left = lease.expires - now
                if not IDLE_S - network_time(self) <= left <= IDLE_S:
                    raise BrokenError(f"member {member.number}: a lease lasts {left:.1f} s")
            if member.counted > sum(self.judged.values()) - self.judged.get(member.life, 0):
                raise BrokenError(f"member {member.number} counted {member.counted} answers")
        for key, where in leases.items():
            if self.powerless or key.sequence.id in self.exempt or key not in used:
                continue  # one that too few hold may differ: nothing was forwarded by it
            lacks = [
                each.number
                for each in members
                if each.router.leases.find(key, each.clock()) is None
            ]
            if len(where) > 1 or lacks:
                raise BrokenError(f"{key} is leased on {sorted(where)}, unknown to {lacks}")
        if self.network.sent > MAX_BYTES:
            raise BrokenError(f"{self.network.sent} bytes were sent")

    def close(self) -> None:
        """End all members."""
        for number in tuple(self.members):
            self.end(number, power=True)


class Member:
    """One life of a picker."""

    def __init__(self, group: Group, number: int) -> None:
        self.group, self.number, self.life = group, number, next(group.lives)
        rng = group.network.rng
        self.id = name(number)
        self.loop = HostLoop(group.network, self.id)
        self.ready = False
        self.counted = 0
        """Answers that others have counted and this one was told."""
        self.waiting: list[Callable[[float], None]] = []
        """Clients that have no decision yet."""
        self.tickets: list[str] = []
        """Replicas of its requests in flight."""
        self._base_s = rng.random() * 1e6
        self._rate = 1.0 + (rng.random() - 0.5) * 4e-4
        self.wall_s = 1.8e9
        self.router = router(
            REPLICAS,
            rng.randrange(1000),
            more={"sequence_idle_s": IDLE_S},
            on_event=self.publish,
            on_sequence=self.catch_up,
        )
        grant = self.router.peers.grant

        def granting(proposal: Proposal, now: float) -> Any:
            group.placed(self, proposal.sequence.id)
            return grant(proposal, now)

        self.router.peers.grant = granting
        self.loop.do(self._open)

    def _open(self) -> None:
        group = self.group
        plan = GroupPlan(
            name(self.number),
            0,
            name(self.number),
            tuple(map(name, range(group.size))),
            SimpleNamespace(host=self.loop, table=_ANYONE),
            SimpleNamespace(note=_nothing),
            self.life * 1_000_000,
        )
        self.bus = Bus(
            WorkerPlace(None, 0, 1),
            self.router.peers,
            group=plan,
            on_telemetry=_nothing,
            on_judged=self.judged,
            on_found=_nothing,
            on_lead=_nothing,
            clock=self.clock,
            wall_clock=lambda: self.wall_s + group.network.now,
        )
        self.router.owners = self.bus.owners
        if group.gone:
            self.learn_pool()
        self.bus.open()
        if group.listed is not None:
            self.bus.owners.take(group.listed)
        self.loop.create_task(self.bus.run())
        self.loop.create_task(self.serve())

    def learn_pool(self) -> None:
        """Take the pool as it is now."""
        whole = pool(REPLICAS, sequence_idle_s=IDLE_S)
        left = tuple(each for each in whole.endpoints if each.key.id not in self.group.gone)
        self.router.set_pools({POOL: replace(whole, endpoints=left)}, self.clock())

    async def serve(self) -> None:
        """Serve once it knows what the others know."""
        await self.bus.join()
        self.ready = True

    def knows(self, other: str) -> bool:
        """Return whether it has read the snapshot of another, and its connection lasts."""
        return any(each.joined and each.id == other for each in self.bus.owners._peers.values())

    def clock(self) -> float:
        """Return monotonic seconds of this host."""
        return self._base_s + self.group.network.now * self._rate

    def publish(self, event: Any) -> None:
        """Tell others what the router does."""
        self.bus.publish(event)

    def catch_up(self) -> None:
        """Read what others have told."""
        self.bus.catch_up()

    def judged(self, judged: Judged, _: float) -> None:
        """Count what another has counted."""
        self.counted += judged.times

    def end(self, *, power: bool) -> None:
        """End this life."""
        self.loop.end(power=power)
        for replica in self.tickets:
            self.group.open[replica] -= 1
        for then in self.waiting:
            then(0.1)

    def end_link(self, other: int) -> None:
        """End a connection that another member reads, as at its maximum age."""
        for socket in tuple(self.loop.sockets):
            if socket.peer.loop.address == name(other) and socket in self.bus._outlet.readers:
                self.loop.do(self.bus._outlet.drop, socket)
                return

    # --- requests ---------------------------------------------------------------------------------

    def step(self, sequence: int, then: Callable[[float], None]) -> None:
        """Decide a request of a sequence, as an exchange does."""
        group, asked = self.group, request(sequence_id=sequence)

        def decided(placed: PlacedAs | None, proposal: Proposal | None = None) -> None:
            found = None
            if placed is not PlacedAs.NOWHERE:
                new = proposal if placed is PlacedAs.AS_PROPOSED else None
                now = self.clock()
                found = self.router.decide(asked, now, self.wall_s + group.network.now, new)
            if isinstance(found, Decision):
                group.decided += 1
                self.forward(sequence, found, then)
            elif found is not None and placed is None:
                told = found.proposed
                self.router.place(told, lambda placed, *_: decided(placed, told))
            else:
                group.refused += 1
                self.waiting.remove(then)
                then(0.0)

        decided(None)

    def forward(self, sequence: int, found: Decision, then: Callable[[float], None]) -> None:
        """Let a replica answer."""
        group, replica = self.group, found.ticket.endpoint.id
        self.waiting.remove(then)
        group.forwarded(self, sequence, replica)
        group.open[replica] = group.open.get(replica, 0) + 1
        self.tickets.append(replica)
        service_s = group.rng.choice((0.002, 0.02, 0.2, 60.0))

        def answered() -> None:
            group.open[replica] -= 1
            self.tickets.remove(replica)
            self.router.settle(found.ticket, DONE, self.clock())
            group.judged[self.life] = group.judged.get(self.life, 0) + 1
            self.bus.publish(
                Judged(POOL, found.ticket.endpoint, Effect.GOOD, service_s, service_s, None)
            )

        self.loop.call_later(service_s, answered)
        then(min(service_s, 0.3))


class Port:
    """As ``GroupPort``, over the simulated network."""

    def __init__(self, secured: Any, _: object, admit: Callable[[Any], None], drop: Any) -> None:
        self._host: HostLoop = secured.host
        self._admit, self._drop = admit, drop

    def open(self, address: str) -> str:
        """Listen."""
        self._host.admit = self._admit
        return address

    def close(self) -> None:
        """Do not."""
        self._host.admit = None

    async def connect(self, address: str) -> tuple[Socket, Peer]:
        """Return a connection."""
        return await self._host.network.connect(self._host, address), Peer()


class Log:
    """Notes what must not be logged."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def info(self, *_: object, **__: object) -> None:
        """Drop it."""

    def warning(self, event: str, **more: object) -> None:
        """Note records that were not understood."""
        if event == "sibling_not_understood":
            self.errors.append(f"{event}: {more}")

    exception = warning


def name(number: int) -> str:
    """Return the id of a member, which is its address too."""
    return f"p{number}:1"


def network_time(group: Group) -> float:
    """Return for how long a schedule runs, with what clocks may differ."""
    return group.network.now + 1.0


def play(seed: int, faults: list[Fault] | None = None, *, listed: bool = True) -> Group:
    """Run a schedule, with these faults in place of its own.

    Args:
        seed: The schedule.
        faults: In place of its own.
        listed: Whether the members have the control server's list; else ``--group-members``.

    Raises:
        BrokenError: What must be true is not.
    """
    members, drawn = schedule(seed)
    group = Group(seed, members, drawn if faults is None else faults, listed=listed)
    log, state = Log(), random.getstate()
    log.errors = group.errors
    random.seed(seed)
    try:
        with (
            patch.object(links, "select", Select),
            patch.object(links, "_log", log),
            patch.object(members_module, "_log", log),
            patch.object(members_module, "GroupPort", Port),
        ):
            try:
                group.play()
            finally:
                group.close()
    finally:
        random.setstate(state)
    return group


def smallest(seed: int, *, listed: bool = True) -> tuple[list[Fault], str]:
    """Return the fewest faults with which a schedule fails alike, and how it does."""
    faults = schedule(seed)[1]
    why, before = _why(seed, faults, listed), len(faults) + 1
    while len(faults) < before:
        before = len(faults)
        for each in tuple(faults):
            fewer = [one for one in faults if one is not each]
            if (found := _why(seed, fewer, listed)) is not None:
                faults, why = fewer, found
    return faults, why or "it does not fail"


def _why(seed: int, faults: list[Fault], listed: bool) -> str | None:
    try:
        play(seed, faults, listed=listed)
    except Exception as error:  # noqa: BLE001 - any error is a failure to be told
        return f"{type(error).__name__}: {error}"
    return None


def _nothing(*_: object) -> None:
    pass


_ANYONE: Final = SimpleNamespace(not_named=lambda *_: None)
