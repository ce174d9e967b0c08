"""Members of a group place sequences over links that are slow, break and end, in virtual time."""

from __future__ import annotations

import heapq
import os
from itertools import count
from random import Random

import pytest

from ext_proc.routing.pipeline.decision import Decision
from ext_proc.routing.state.leases import Leased, LeaseKey
from ext_proc.routing.state.owners import PLACED_S
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.group.owners import AGAIN_S, MAX_ASKS, OwnerLinks, Owners
from ext_proc.workers.news import Hello, OwnerAnswer, OwnerAsk
from support.crew import POOL, key, request, router

SCHEDULES = 12 * int(os.environ.get("TIDEGATE_TRIES", "1"))
LASTS_S = 12.0
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
            if other is not made:
                Link(made, other)
                Link(other, made)

    def kill(self, number: int) -> None:
        """End a member: what it has sent still arrives, and then the ends of its links."""
        gone = self.members.pop(number)
        gone.alive = False
        for link in tuple(gone.readers.values()):
            link.stop(in_order=True)
        for link in tuple(gone.links.values()):
            link.stop(in_order=True)

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
        for each, lease in tuple(writer.router.peers.leases_in_force()):
            self.send(Leased(each, lease))
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
            if reader.alive and known is not None and number not in reader.links:
                Link(reader, known)

        self.world.at(0.1 + self.world.rng.random(), again)


class Member:
    """A picker of the group: router, owners, and links to others."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.alive = world, number, True
        self._ready = False
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
        if not self._ready and all(self.owners.agrees(each) for each in others):
            self._ready = self.owners.agreed
        return self._ready

    def hello(self) -> Hello:
        """Return what it says of itself."""
        return Hello(f"p{self.number}", 0.0, *self.owners.view)

    def tell(self, event) -> None:
        """Send what it leases."""
        if isinstance(event, Leased):
            for link in self.readers.values():
                link.send(event)

    def changed(self) -> None:
        """Tell others what it knows, and look again while a question is open."""
        for link in self.readers.values():
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
            self.tell(Leased(LeaseKey(proposal.pool, proposal.sequence), granted[0]))
        return PlacedAs.AS_PROPOSED if granted[1] else PlacedAs.EARLIER

    def hear(self, link: Link, message) -> None:
        """Take a record, or answer a question."""
        number, now = link.writer.number, self.world.now
        if isinstance(message, OwnerAsk):
            placed = self.owners.answer(message.proposal)
            if placed is not PlacedAs.NOWHERE:
                lease, _ = self.router.peers.grant(message.proposal, now)
                leased = LeaseKey(message.proposal.pool, message.proposal.sequence)
                link.send(Leased(leased, lease))
            link.send(OwnerAnswer(message.number, placed))
        elif isinstance(message, Hello):
            self.owners.heard(number, message)
        elif isinstance(message, OwnerAnswer):
            self.owners.answered(number, message)
        elif message is None:
            self.owners.joined(number)
        else:
            self.router.peers.follow(number, message, now)

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


def test_no_sequence_has_two_replicas():
    """Whatever ends between a question and its answer, and wherever the next request goes."""
    forwarded = refused = 0
    for seed in range(SCHEDULES):
        world = play(seed)
        split = {each: where for each, where in world.sent.items() if len(where) > 1}
        assert not split, f"seed {seed}: {split}"
        forwarded, refused = forwarded + world.forwarded, refused + world.refused
    assert forwarded > 20 * refused


class Rash(Owners):
    """A member that does not wait until all agree."""

    @property
    def agreed(self) -> bool:
        """Say that all agree."""
        return True

    @agreed.setter
    def agreed(self, _: bool) -> None:
        pass


def test_without_agreement_sequences_have_two_replicas():
    """The schedules find the defect that agreement prevents."""
    assert any(len(where) > 1 for seed in range(2) for where in play(seed, Rash).sent.values())


@pytest.fixture
def alone():
    """Return owners that know one peer, which owns the sequence returned, and what they do."""
    now, asked, told = [0.0], [], []
    links = OwnerLinks(
        lambda peer, ask: asked.append((peer, ask)) or True,
        lambda _: PlacedAs.AS_PROPOSED,
        lambda call: call(),
        lambda: None,
    )
    made = Owners("p1", 1, links, lambda: now[0], lambda: 0.0)
    made.heard(64, Hello("p2", 0.0, 7, ""))
    made.joined(64)
    number = next(
        each
        for each in range(100)
        if made._owner(LeaseKey(POOL, SequenceKey("m", "", each))) is not None
    )
    proposal = Proposal(POOL, SequenceKey("m", "", number), key(1), "stable", 60.0)
    return made, proposal, now, asked, told


def agree(made: Owners) -> None:
    """Let the peer know the same members."""
    made.heard(64, Hello("p2", 0.0, 7, made.view[1]))


def test_nobody_is_asked_before_all_agree(alone):
    """A question waits for agreement, and then goes to the owner."""
    made, proposal, _, asked, told = alone
    made.ask(proposal, lambda placed, *_: told.append(placed))
    assert (asked, made.agreed, made.agrees(64)) == ([], False, False)
    agree(made)
    assert made.agreed
    assert asked == [(64, OwnerAsk(1, proposal))]
    made.answered(64, OwnerAnswer(1, PlacedAs.EARLIER))
    assert (told, made.open) == ([PlacedAs.EARLIER], 0)


def test_an_owner_that_is_gone_is_succeeded(alone):
    """What it was asked and has not answered is placed by who owns it then."""
    made, proposal, _, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))
    made.lost(64)
    assert told == [PlacedAs.AS_PROPOSED]


def test_a_mute_owner_costs_a_refusal(alone):
    """After ``PLACED_S`` the request is placed nowhere; a later answer changes nothing."""
    made, proposal, now, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))
    now[0] = PLACED_S
    made.look()
    made.answered(64, OwnerAnswer(1, PlacedAs.AS_PROPOSED))
    assert told == [PlacedAs.NOWHERE]
    assert made.placed[PlacedAs.NOWHERE] == 1


def test_a_question_ends_when_its_request_must_have_a_reply(alone):
    """Later the proxy would go on without a pick, to any replica."""
    made, proposal, now, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed), now[0] + 0.5 * PLACED_S)
    now[0] += 0.5 * PLACED_S
    made.look()
    assert told == [PlacedAs.NOWHERE]


def test_what_is_taken_back_is_not_told(alone):
    """A caller that leaves hears nothing."""
    made, proposal, _, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))()
    made.answered(64, OwnerAnswer(1, PlacedAs.AS_PROPOSED))
    assert (told, made.open) == ([], 0)


def test_open_questions_are_bounded(alone):
    """Beyond ``MAX_ASKS`` a request is placed nowhere at once."""
    made, proposal, _, _, told = alone
    for _ in range(MAX_ASKS + 1):
        made.ask(proposal, lambda placed, *_: told.append(placed))
    assert (told, made.open) == ([PlacedAs.NOWHERE], MAX_ASKS)
