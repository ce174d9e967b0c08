"""One of some listed members: what it holds, proposes and believes as views follow each other."""

from __future__ import annotations

import pytest

from ext_proc.routing.state.leases import Lease, LeaseKey
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.group.owners import AHEAD_S, READS, OwnerLinks, Owners
from ext_proc.workers.news import HeldLease, Hello, Listed, OwnerAnswer
from ext_proc.workers.records import GarbledError
from support.crew import POOL, key

PEERS = {64: "p2", 65: "p3", 66: "p4", 67: "p5"}


class One:
    """Member p1, and the others of its list as it hears them."""

    def __init__(self, peers: int = 2) -> None:
        self.leases: dict[LeaseKey, Lease] = {}
        self.gone: set[str] = set()
        """Replicas that are in no pool any more."""
        self.asked: list = []
        self.told: list = []
        links = OwnerLinks(self.send, self.grant, lambda call: call(), lambda: None)
        self.owners = Owners("p1", 100, links, lambda: 0.0, lambda: 0.0)
        self.peers = dict(tuple(PEERS.items())[:peers])
        self.owners.take(Listed(1, 1, ("p1", *self.peers.values())))
        self.counts = {64: 300, 65: 400, 66: 300, 67: 300}

    def meet(self, *peers: int) -> None:
        """Read the snapshots of peers."""
        for peer in peers:
            self.say(peer, "")
            self.owners.joined(peer)

    def say(self, peer: int, digest: str | None = None) -> None:
        """Let a peer say what it knows: what this member does, if nothing else is given."""
        view = self.owners._digest if digest is None else digest
        self.owners.heard(peer, Hello(PEERS[peer], 0.0, self.counts[peer], view))

    def agree(self, *but: int) -> None:
        """Let peers know what this member does; some do not know what they held yet."""
        for peer in self.peers:
            self.say(peer, (READS if peer in but else "") + self.owners._digest)

    def sequence(self, owner: int | None) -> LeaseKey:
        """Return a sequence of an owner."""
        keys = (LeaseKey(POOL, SequenceKey("m", "", each)) for each in range(200))
        return next(each for each in keys if self.owners._owner(each) == owner)

    def send(self, peer: int, ask) -> bool:
        """Keep what is asked."""
        self.asked.append((peer, ask))
        return True

    def grant(self, proposal: Proposal) -> PlacedAs:
        """Lease, as a router does."""
        which = LeaseKey(proposal.pool, proposal.sequence)
        known = self.leases.get(which)
        if known is not None and known.endpoint != proposal.instead:
            return PlacedAs.EARLIER
        if proposal.endpoint.id in self.gone:
            return PlacedAs.NOWHERE
        self.leases[which] = Lease(proposal.endpoint, proposal.variant, 60.0)
        return PlacedAs.AS_PROPOSED

    def hear(self, which: LeaseKey, replica: int, stamp: int) -> None:
        """Take what a peer holds, as the bus does."""
        lease = Lease(key(replica), "stable", 60.0)
        if self.owners.holds(HeldLease(which, lease, stamp), self.leases.get(which)):
            self.leases[which] = lease

    def on(self, which: LeaseKey) -> str:
        """Return the replica of a sequence."""
        return self.leases[which].endpoint.id


@pytest.fixture
def one() -> One:
    """Return a member on whose view all agree."""
    made = One()
    made.meet(64, 65)
    made.agree()
    assert made.owners.places_any
    return made


def proposal(which: LeaseKey, replica: int) -> Proposal:
    """Return a lease that is asked for."""
    return Proposal(*which, key(replica), "stable", 60.0)


def test_an_owner_proposes_what_was_held_last(one):
    """A lease of an earlier view may be used by those who held it, so it is the one of the next."""
    which = one.sequence(None)
    one.hear(which, 1, 310)
    one.hear(which, 2, 320)
    one.hear(which, 3, 315)
    one.owners.ask(proposal(which, 0), lambda *told: one.told.append(told[0]))
    assert one.on(which) == "r2"
    number, asked, view = one.asked[0][1]
    assert (asked.endpoint, view) == (key(2), one.owners.view[1])
    assert one.told == []
    one.owners.answered(one.asked[0][0], OwnerAnswer(number, PlacedAs.EARLIER))
    assert one.told == [PlacedAs.EARLIER]
    assert not one.owners.unsure(which)


def test_an_owner_proposes_no_replica_that_is_gone(one):
    """Else an unused lease would keep its sequence from being placed."""
    which = one.sequence(None)
    one.hear(which, 1, 310)
    one.gone.add("r1")
    del one.leases[which]  # with its replica
    one.owners.ask(proposal(which, 0), lambda *told: one.told.append(told[0]))
    assert one.on(which) == "r0"
    assert one.asked[0][1].proposal.instead == key(1)


def test_what_an_earlier_view_left_makes_room(one):
    """Else two that hold different leases that were never used would refuse the sequence."""
    which, view = one.sequence(64), one.owners.view[1]
    one.hear(which, 1, 310)
    assert one.owners.answer(proposal(which, 2), view) is PlacedAs.EARLIER
    assert one.on(which) == "r2"
    assert one.owners.leased(which, one.leases[which]).stamp == one.owners._stamp
    assert one.owners.answer(proposal(which, 3), view) is PlacedAs.NOWHERE  # of this view
    assert one.on(which) == "r2"


def test_answers_of_an_earlier_view_do_not_count(one):
    """The peer may hold another lease by now."""
    which = one.sequence(64)
    one.owners.ask(proposal(which, 1), lambda *told: one.told.append(told[0]))
    ((_, (first, _, _)),) = one.asked
    one.counts[65] += 500
    one.say(65)
    one.owners.answered(64, OwnerAnswer(first, PlacedAs.AS_PROPOSED))
    assert one.told == []
    one.agree()
    assert one.asked[-1][1].number > first


def test_a_lease_of_an_unknown_view_makes_a_greater_one(one):
    """Else no view of those that remain could take its place."""
    before = one.owners.view
    one.hear(one.sequence(64), 1, 900)
    assert one.owners.view[0] == 901
    assert one.owners.view != before
    assert not one.owners.places_any


def test_a_member_that_starts_agrees_with_none_before_it_knows_what_it_held():
    """With two others it was half of three with either, so it reads what both hold."""
    one = One()
    one.meet(64)
    one.say(64)
    assert one.owners.view[1].startswith(READS)
    assert not one.owners.places_any
    one.meet(65)
    one.say(64)
    assert one.owners.view[1].startswith(READS)
    one.say(65)
    assert not one.owners.view[1].startswith(READS)
    assert one.owners.places_any


def test_those_that_have_just_started_do_not_tell_what_was_held():
    """Of five, two that start held a lease with one of three others; it is among any three."""
    one = One(peers=4)
    one.meet(64, 65, 66)
    one.agree(64)
    assert one.owners.view[1].startswith(READS)
    one.say(64)
    assert not one.owners.view[1].startswith(READS)


def test_members_that_have_all_just_started_begin_together():
    """What none of them knows is lost."""
    one = One(peers=4)
    one.meet(*one.peers)
    one.agree(64, 65, 66)
    assert not one.owners.view[1].startswith(READS)
    assert not one.owners.places_any
    one.agree()
    assert one.owners.places_any


def test_a_lease_that_replaces_another_is_taken_by_those_who_hold_that(one):
    """In one view too: its replica is gone, and the owner has asked no other for another."""
    which, lease = one.sequence(64), Lease(key(2), "stable", 60.0)
    one.leases[which] = Lease(key(1), "stable", 60.0)  # it is used
    assert not one.owners.holds(HeldLease(which, lease, 400), one.leases[which])
    assert one.owners.holds(HeldLease(which, lease, 400, key(1)), one.leases[which])


def test_no_peer_can_use_up_the_counts(one):
    """A greater one would be told by all from then on, and none could be greater than that."""
    before = one.owners.view
    most = int(AHEAD_S * 1e9)  # it is 1970
    with pytest.raises(GarbledError, match="ahead of the time"):
        one.owners.heard(64, Hello("p2", 0.0, most + 1, ""))
    with pytest.raises(GarbledError, match="ahead of the time"):
        one.hear(one.sequence(64), 1, most + 1)
    assert one.owners.view == before
