"""Members of a group in virtual time: clients, and links that are slow, break and end."""

from __future__ import annotations

import heapq
from itertools import count
from random import Random

from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.state.leases import Leased, LeaseKey, Released
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.workers.group.owners import AGAIN_S, OwnerLinks, Owners
from ext_proc.workers.news import HeldLease, Hello, Listed, OwnerAnswer, OwnerAsk
from support.crew import request, router
from xds_server.server.group_list import GroupRoster, ListedPickers, PickerStanding

LASTS_S = 12.0
LONG_S = 40.0
SILENT_S = 2.0


class World:
    """Time, what is under way, and where each sequence's requests went."""

    def __init__(self, seed: int, owners: type[Owners] = Owners) -> None:
        self.rng = Random(seed)
        self.owners = owners
        self.now = 0.0
        self.sent: dict[int, set[str]] = {}
        self.forwarded = self.refused = 0
        self._due: list = []
        self._order = count()
        self.members: dict[int, Member] = {}
        self.lives = count(1)
        self.broken_until = 0.0
        """No other link breaks, and no member ends, before this."""
        self.server: Station | None = None
        """The control server that lists the members; ``None`` = they have no list."""
        self.sides: dict[int | None, int] = {}
        """Sides of a network that is cut: by member, the control server's under ``None``."""
        self.versions: dict[int, int] = {}
        """Versions of the members' records; ``None`` unless given. Those of two share nothing."""

    def at(self, delay_s: float, call) -> None:
        """Call a function later."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), call))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = until

    def start(self, number: int) -> None:
        """Start a member, which dials the others; these dial it."""
        made = self.members[number] = Member(self, number)
        for other in tuple(self.members.values()):
            if other is not made and self.reaches(number, other.number):
                Link(made, other)
                Link(other, made)
        if self.server is not None:
            made.owners.take(Listed())
            self.server.meet(made)

    def reaches(self, one: int | None, two: int | None) -> bool:
        """Return whether two are on one side, and speak one version if both are members."""
        alike = None in (one, two) or self.versions.get(one) == self.versions.get(two)
        return alike and self.sides.get(one) == self.sides.get(two)

    def split(self, sides: dict[int | None, int]) -> None:
        """Cut the network; empty = nothing is cut any more."""
        self.sides = sides
        for one in self.members.values():
            for link in tuple(one.links.values()):
                if not self.reaches(one.number, link.writer.number):
                    link.stop(in_order=False)

    def kill(self, number: int) -> None:
        """End a member: what it has sent still arrives, and then the ends of its links."""
        gone = self.members.pop(number)
        gone.alive = False
        for link in tuple(gone.readers.values()):
            link.stop(in_order=True)
        for link in tuple(gone.links.values()):
            link.stop(in_order=True)
        if self.server is not None and self.server.live:
            self.server.part(gone)

    def cut(self, one: int, two: int) -> None:
        """Break the links of two members; each notices later, and dials again after that."""
        ends = [self.members[one].links.get(two), self.members[two].links.get(one)]
        for link in filter(None, ends):
            link.stop(in_order=False)

    def client(self, sequence: int, steps: int) -> None:
        """Send a request of a sequence to any member, and the next one once it has an answer."""
        ready = [each for each in self.members.values() if each.ready]
        if steps and ready:
            self.rng.choice(ready).step(sequence, lambda: self.client(sequence, steps - 1))


class Link:
    """The records of one member on their way to another, which asks on it; in order."""

    def __init__(self, reader: Member, writer: Member) -> None:
        world = reader.world
        self.reader, self.writer, self.world = reader, writer, world
        self.delay_s = world.rng.choice((0.0005, 0.02, 0.1))
        self.open = True
        self.lost = False
        self._last = {True: 0.0, False: 0.0}
        reader.links[writer.number] = self
        writer.readers[reader.number] = self
        self.send(writer.hello())
        if writer.owners.listed is not None:
            self.send(writer.owners.listed)
        for each, lease in tuple(writer.router.peers.leases_in_force()):
            self.send(writer.owners.leased(each, lease))
        self.send(None)

    def send(self, message, *, back: bool = False) -> None:
        """Send a record to the reader, or what it asks back."""
        due = self.world.now + self.delay_s * (1 + self.world.rng.random())
        due = self._last[back] = max(self._last[back], due)

        def arrive() -> None:
            taker = self.writer if back else self.reader
            if not self.lost and taker.alive:
                taker.hear(self, message)

        self.world.at(due - self.world.now, arrive)

    def stop(self, *, in_order: bool) -> None:
        """End the link: after what is under way, or that is lost, and the reader notices later."""
        self.open, self.lost = False, not in_order
        self.writer.readers.pop(self.reader.number, None)
        late = self.world.rng.random() * SILENT_S
        due = max(0.0, self._last[False] - self.world.now) + 0.0001 if in_order else late
        self.world.at(due, self._ended)

    def _ended(self) -> None:
        reader, number = self.reader, self.writer.number
        if not reader.alive or reader.links.get(number) is not self:
            return
        del reader.links[number]
        reader.owners.lost(number)

        def again() -> None:
            known = self.world.members.get(number)
            if not reader.alive or known is None or number in reader.links:
                return
            if self.world.reaches(reader.number, number):
                Link(reader, known)
            else:
                self.world.at(0.5, again)

        self.world.at(0.1 + self.world.rng.random(), again)


class Station:
    """The control server, which tells members the list; streams are told anew every 50 ms."""

    EVERY_S = 0.05

    def __init__(self, world: World) -> None:
        self.world = world
        self.lives = count(1)
        self.kept = ListedPickers()
        self.live = False
        self.met: dict[str, Member] = {}
        self.start()

    def start(self) -> None:
        """Start, or start again, with what was stored."""
        self.roster = GroupRoster(next(self.lives), self.kept, self.world.now)
        self.live, self.met = True, {}
        for member in self.world.members.values():
            self.meet(member)

    def stop(self) -> None:
        """End; all streams end."""
        self.live = False

    def meet(self, member: Member) -> None:
        """Serve a member as long as both live and the network lets them."""
        world, roster = self.world, self.roster

        def told() -> None:
            if not member.alive or not self.live or roster is not self.roster:
                return
            if not world.reaches(member.number, None):
                self.part(member)
            else:
                self.met[member.owners.own] = member
                standing = member.standing()
                delay = world.rng.choice((0.001, 0.02))
                world.at(delay, lambda: self.take(member, standing))
            world.at(self.EVERY_S, told)

        world.at(0.0, told)

    def take(self, member: Member, standing: PickerStanding) -> None:
        """Take what a member said, and answer."""
        if not self.live or self.met.get(member.owners.own) is not member:
            return
        self.roster.told(member.owners.own, standing)
        while (made := self.roster.next(self.world.now)) is not None:
            self.kept = made
            self.roster.put(made)
        listed = Listed(*self.roster.list[:3])
        delay = self.world.rng.choice((0.001, 0.02))
        self.world.at(delay, lambda: member.alive and member.owners.take(listed))

    def part(self, member: Member) -> None:
        """Note the end of a member's stream."""
        name = member.owners.own
        if self.met.get(name) is member:
            del self.met[name]
            self.roster.left(name, self.world.now)


class Member:
    """A picker of the group: router, owners, and links to others."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.alive = world, number, True
        self._ready, self._began = False, world.now
        self.leaving = False
        """It is about to end."""
        self.links: dict[int, Link] = {}
        """What it reads, by writer."""
        self.readers: dict[int, Link] = {}
        self.router = router(
            4, world.rng.randrange(1000), on_event=self.tell, on_sequence=lambda: None
        )
        self.owners = world.owners(
            f"p{number}",
            next(world.lives) * 1_000_000,
            OwnerLinks(self.ask, self.grant, lambda call: world.at(0.0, call), self.changed),
            lambda: world.now,
            lambda: world.now,
        )
        self.router.owners = self.owners

    @property
    def ready(self) -> bool:
        """Whether it has agreed with all that lived, since when it serves."""
        others = set(self.world.members) - {self.number}
        if self.world.server is not None:
            self._ready = self._ready or self.world.now >= self._began + 1.0
        elif not self._ready and all(self.owners.agrees(each) for each in others):
            self._ready = self.owners.agreed
        return self._ready

    def standing(self) -> PickerStanding:
        """Return how it stands in the group."""
        owners = self.owners
        listed = owners.listed or Listed()
        follows = not listed.number or owners.places_any or owners.own in listed.members
        places = self.ready and not self.leaving and follows
        return PickerStanding(
            f"at-{self.number}", places, owners.places_any, ListedPickers(*listed)
        )

    def hello(self) -> Hello:
        """Return what it says of itself."""
        return Hello(f"p{self.number}", 0.0, *self.owners.view)

    def tell(self, event) -> None:
        """Send what it leases."""
        if isinstance(event, (HeldLease, Leased)):
            for link in self.readers.values():
                link.send(event)

    def changed(self) -> None:
        """Tell others what it knows, and look again while a question is open."""
        for link in self.readers.values():
            if self.owners.listed is not None:
                link.send(self.owners.listed)
            link.send(self.hello())
        if self.owners.open:
            self.world.at(AGAIN_S, self.owners.look)

    def ask(self, peer: int, ask: OwnerAsk) -> bool:
        """Ask on the link that it reads."""
        link = self.links.get(peer)
        if link is None:
            return False
        link.send(ask, back=True)
        return True

    def grant(self, proposal: Proposal) -> PlacedAs:
        """Lease, and tell all."""
        granted = self.router.peers.grant(proposal, self.world.now)
        if granted is None:
            return PlacedAs.NOWHERE
        if granted[1]:
            self.tell(self.owners.leased(LeaseKey(proposal.pool, proposal.sequence), granted[0]))
        return PlacedAs.AS_PROPOSED if granted[1] else PlacedAs.EARLIER

    def hear(self, link: Link, message) -> None:
        """Take a record, or answer a question."""
        number, now = link.writer.number, self.world.now
        if isinstance(message, OwnerAsk):
            placed = self.owners.answer(message.proposal, message.view)
            if placed is not PlacedAs.NOWHERE:
                lease, _ = self.router.peers.grant(message.proposal, now)
                leased = LeaseKey(message.proposal.pool, message.proposal.sequence)
                link.send(self.owners.leased(leased, lease))
            link.send(OwnerAnswer(message.number, placed))
        elif isinstance(message, Hello):
            self.owners.heard(number, message)
        elif isinstance(message, OwnerAnswer):
            self.owners.answered(number, message)
        elif message is None:
            self.owners.joined(number)
        elif isinstance(message, Listed):
            self.owners.take(message)
        else:
            peers, key = self.router.peers, message.key
            if isinstance(message, HeldLease):
                if not self.owners.holds(message, peers.lease(key, now)):
                    return
                peers.follow(number, Released(key), now)
                message = Leased(key, message.lease)
            elif self.owners.sure(key):
                peers.follow(number, Released(key), now)
            peers.follow(number, message, now)

    def step(self, sequence: int, then) -> None:
        """Decide a request of a sequence, as an exchange does."""
        world, asked = self.world, request(sequence_id=sequence)

        def decided(placed: PlacedAs | None, proposal: Proposal | None = None) -> None:
            if not self.alive:
                return
            found = None
            if placed is not PlacedAs.NOWHERE:
                new = proposal if placed is PlacedAs.AS_PROPOSED else None
                found = self.router.decide(asked, world.now, world.now, new)
            if isinstance(found, Decision):
                world.forwarded += 1
                world.sent.setdefault(sequence, set()).add(found.ticket.endpoint.id)
            elif found is not None and placed is None:
                told = found.proposed
                self.router.place(told, lambda placed, *_: decided(placed, told))
                return
            else:
                world.refused += 1
            then()

        decided(None)


def play_listed(seed: int, owners: type[Owners] = Owners, pickers: int = 0) -> World:
    """Run one schedule of a group with a list: halves cut, restarts of pickers and their server."""
    world = World(seed, owners)
    rng = world.rng
    world.server = Station(world)
    pickers = pickers or rng.choice((2, 3))
    for number in range(pickers):
        world.start(number)
    for sequence in range(80):
        for _ in range(rng.choice((1, 1, 2))):  # two clients may begin it at once
            at = 2.5 + sequence / 80 * (LONG_S - 4.0)
            world.at(at, lambda sequence=sequence: world.client(sequence, 4))

    def harm() -> None:
        """Let a fault begin, and end before the next one begins."""
        server, live = world.server, sorted(world.members)
        kind = rng.choice(("halves", "member", "leave", "server", "both"))
        lasts = 1.0 + 5.0 * rng.random()
        picked = rng.choice(live)
        if kind == "halves":
            sides: dict[int | None, int] = {each: rng.randrange(2) for each in live}
            world.split({**sides, None: rng.randrange(2)})
            world.at(lasts, lambda: world.split({}))
        elif kind == "server":
            server.stop()
            world.at(lasts, server.start)
        else:
            if kind == "leave":
                world.members[picked].leaving = True
            if kind == "both":
                server.stop()
                world.at(lasts, server.start)
            world.at(0.5, lambda: world.kill(picked))
            world.at(lasts, lambda: world.start(picked))
        world.at(lasts + 3.0, harm)

    world.at(3.0, harm)
    world.run(LONG_S)
    return world


def play(seed: int, owners: type[Owners] = Owners) -> World:
    """Run one schedule of clients, ends of members, and broken links."""
    world = World(seed, owners)
    rng = world.rng
    pickers = rng.choice((2, 3, 4))
    for number in range(pickers):
        world.start(number)
    for sequence in range(60):
        for _ in range(rng.choice((1, 1, 2))):  # two clients may begin it at once
            at = 0.5 + sequence / 60 * (LASTS_S - 1.0)
            world.at(at, lambda sequence=sequence: world.client(sequence, 3))

    def harm() -> None:
        live = sorted(world.members)
        world.at(0.3 + rng.random(), harm)
        if world.now < world.broken_until:
            return
        if len(live) < pickers:
            world.start(next(each for each in range(pickers) if each not in live))
            world.broken_until = world.now + 1.0
        elif len(live) > 2 and rng.random() < 0.5:
            world.cut(*rng.sample(live, 2))
            world.broken_until = world.now + SILENT_S + 2.0
        else:
            world.kill(rng.choice(live))
            world.broken_until = world.now + 0.5

    world.at(1.0, harm)
    world.run(LASTS_S)
    return world
