"""Which member of a group places a new sequence, and what is asked of it. Pure.

Rules:

1. The members of a group are all workers of its pickers. A sequence's owner is the one with the
   greatest hash of its id and the sequence (rendezvous), so that the loss of a member moves its
   sequences only.
2. A member knows those whose snapshot it has read and whose connection lasts. It counts the changes
   of that set, and tells its count and a digest of all counts that it knows. Where the digests of
   all that it knows equal its own they agree, and each has read all that the others granted before:
   counts never repeat, and records come in order.
3. Only an owner that finds all in agreement grants a lease. It keeps one that is in force, unless
   that is on the replica to be replaced. So no sequence has two replicas while members agree. A
   member without a list that is cut off from all others agrees with itself.
4. Where the control server lists the members (``Listed``), only those listed own sequences; the
   list is part of the digest, and members tell each other a newer one. A lease is used only once
   more than half of the list hold it in one view, which is what members know while they agree.
   Each tells all what it holds (``HeldLease``), stamped with the greatest count of the view. This
   is Paxos: the stamp is the ballot, as a later view that shares a member has a greater one, and
   the owner is its only proposer. A member that leaves a view first tells all what it has learned
   in it of others, which may not have reached all, and holds no more for it. So an owner on whose
   view all agree knows what any that are more than half held, without a question: it proposes the
   lease with the greatest stamp, or a new one where there is none, and others take it in place of
   what they held in earlier views. Successive lists differ by one member, and more than half of a
   list agree before the next is made (``xds_server.server.group_list``), so halves that are cut
   off from each other never place a sequence twice.
5. Whoever gets a new sequence that another member owns asks that member, and again after
   ``AGAIN_S``, at each change, and where another one owns it now; after ``PLACED_S``, or
   when the request must have a reply, it gives up. Answers of an earlier view do not count.
   At most ``MAX_ASKS`` are open.
6. A count or a stamp that is more than ``AHEAD_S`` ahead of this machine's time ends a connection:
   counts begin with the time and rise more slowly, and a greater one would leave others no room.
7. A member that starts has lost what it held, and says so (``READS``) until it knows that again; it
   agrees with none before. It does once all that it knows tell its own digest, and among them are
   so many of the list which do not read themselves that each half which held a lease with it has
   one of these. They know this life of it: so they hold nothing more together with the one before,
   and have told what they did. Where more have restarted than leaves so many, all of the list must
   be there: then what none of them holds is lost.
"""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.leases import PLACED_S, Leased, LeaseKey
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.workers.news import HeldLease, Listed, OwnerAsk
from ext_proc.workers.records import GarbledError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.leases import Lease, Told
    from ext_proc.workers.news import Hello, OwnerAnswer

AGAIN_S: Final = 0.05
MAX_ASKS: Final = 1024
AHEAD_S: Final = 86_400.0
READS: Final = "?"
"""Comes before the digest of a member that does not know yet what it held before its start."""
MAX_UNSURE: Final = 65_536
"""Most leases that this member holds without knowing that more than half do."""


class OwnerLinks(NamedTuple):
    """How the owners reach the rest of a picker."""

    send: Callable[[int, OwnerAsk], bool]
    """Asks a peer; returns whether it was sent."""
    grant: Callable[[Proposal], PlacedAs]
    """Leases the replica, unless the sequence has another lease, and tells all."""
    soon: Callable[[Callable[[], None]], object]
    """Calls a function after what runs now."""
    changed: Callable[[], None]
    """Called where what is told (`view`), the agreement, or what is asked has changed."""


class _Peer:
    """What a peer has said of itself."""

    __slots__ = ("count", "digest", "id", "joined", "view")

    def __init__(self) -> None:
        self.id = ""
        self.count = 0
        self.view = ""
        """The digest as it was told."""
        self.digest = ""
        self.joined = False


class _Open:
    """A question without an answer."""

    __slots__ = ("asked", "due", "granted", "holders", "key", "number", "proposal", "to", "told")

    def __init__(self, proposal: Proposal, told: Told, due: float) -> None:
        self.key = LeaseKey(proposal.pool, proposal.sequence)
        self.proposal = proposal
        self.told = told
        self.due = due
        self.begin(0)

    def begin(self, number: int) -> None:
        """Ask anew, under a number that no earlier answer has."""
        self.number = number
        self.to: int | None = None
        """The owner that was asked and has not answered; ``None`` = no peer."""
        self.asked: set[int] = set()
        """Other peers that were asked to hold the lease and have not answered."""
        self.holders: set[int] = set()
        """Peers that hold the lease."""
        self.granted: PlacedAs | None = None
        """What its owner made of it; ``None`` = not known yet."""


class _Unsure(NamedTuple):
    """A lease that too few may hold."""

    proposal: Proposal
    expires: float
    """Monotonic seconds."""
    stamp: int
    """Stamp of what the member knew for which it was held last."""


class Owners:
    """Places new sequences; see the module's rules.

    Args:
        own: Id of this member.
        count: Number from which it counts: one that no earlier life of it has reached, Unix
            nanoseconds at most.
        links: Ways to peers and router.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        own: str,
        count: int,
        links: OwnerLinks,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.own = own
        self._count = count
        self._links = links
        self._clock = clock
        self._wall_clock = wall_clock
        self._peers: dict[int, _Peer] = {}
        self._open: dict[int, _Open] = {}
        self._last = 0
        self._stamp = count
        """Greatest count that this member knows of those that it knows."""
        self._list: Listed | None = None
        self._recovered = False
        """It has read what it may have held in an earlier life (rule 7)."""
        self._unsure: dict[LeaseKey, _Unsure] = {}
        """Leases of which it is not known that more than half hold them."""
        self._digest = self._digest_of()
        self.agreed = True
        """All members that this one knows know the same ones."""
        self.placed: dict[PlacedAs, int] = dict.fromkeys(PlacedAs, 0)
        """Questions that ended, by what became of them."""

    # --- who there is -----------------------------------------------------------------------------

    @property
    def view(self) -> tuple[int, str]:
        """What is told to peers: count and digest."""
        return self._count, self._digest if self._knows else READS + self._digest

    @property
    def asked(self) -> set[int]:
        """The peers that have a question."""
        asked = {each.to for each in self._open.values() if each.to is not None}
        return asked.union(*[each.asked for each in self._open.values()])

    @property
    def open(self) -> int:
        """Number of questions without an answer."""
        return len(self._open)

    def agrees(self, peer: int) -> bool:
        """Return whether a peer is known, and knows the same members."""
        known = self._peers.get(peer)
        return known is not None and known.joined and known.view == self._digest

    @property
    def listed(self) -> Listed | None:
        """The list of members; ``None`` = the control server does not list them."""
        return self._list

    @property
    def places_any(self) -> bool:
        """All that this member knows agree, and they are more than half of the list if any."""
        return self.agreed and (self._list is None or len(self._seen()) >= self._needed)

    @property
    def why_refused(self) -> str:
        """What keeps new sequences from being placed, as a clause."""
        if self._list is None or not self._list.number:
            return "the control server has listed no members: new sequences are refused"
        lost = ", ".join(sorted(set(self._list.members) - self._seen())) or "they disagree"
        return (
            f"{self._needed} of {len(self._list.members)} listed members must agree on a new"
            f" sequence, which is refused; missing: {lost}"
        )

    @property
    def _needed(self) -> int:
        return 1 if self._list is None else len(self._list.members) // 2 + 1

    def _seen(self) -> set[str]:
        """Return the members of the list that this member knows, itself included."""
        known = {each.id for each in self._peers.values() if each.joined}
        return (known | {self.own}).intersection(() if self._list is None else self._list.members)

    def describe(self) -> dict[str, object]:
        """Return who places sequences, and what became of questions, ready for JSON."""
        counts = {str(placed): number for placed, number in self.placed.items()}
        listed = None if self._list is None else self._list._asdict()
        told = {"agreed": self.agreed, "places": self.places_any, "listed": listed}
        return {**told, "open": self.open, "unsure": len(self._unsure), **counts}

    def take(self, listed: Listed, most: float = inf) -> None:
        """Take a list of members, unless it is older than the one known, or its number too great.

        Args:
            listed: The list.
            most: The number is below this.
        """
        known = self._list
        if listed.number >= most:
            return
        if known is None or (listed.number, listed.life) > (known.number, known.life):
            self._list = listed
            self._count = self._stamp + 1
            self._changed()

    def heard(self, peer: int, hello: Hello) -> None:
        """Take what a peer says of itself.

        Raises:
            GarbledError: Its count is ahead of the time (rule 6).
        """
        self._judge(hello.changes)
        known = self._peers.setdefault(peer, _Peer())
        told = hello.member, hello.changes, hello.view
        if (known.id, known.count, known.view) != told:
            known.id, known.count, known.view = told
            known.digest = known.view.removeprefix(READS)
            self._changed()

    def _judge(self, count: int) -> None:
        if count > (self._wall_clock() + AHEAD_S) * 1e9:
            raise GarbledError(f"a count of {count} is more than {AHEAD_S:.0f} s ahead of the time")

    def joined(self, peer: int) -> None:
        """Note that a peer's snapshot has been read."""
        known = self._peers.setdefault(peer, _Peer())
        if not known.joined:
            known.joined = True
            self._count = max(self._stamp, known.count) + 1
            self._changed()

    def lost(self, peer: int) -> None:
        """Note that a peer's connection has ended."""
        known = self._peers.pop(peer, None)
        if known is not None and known.joined:
            self._count = max(self._stamp, known.count) + 1
            self._changed()

    def _changed(self) -> None:
        joined = [each for each in self._peers.values() if each.joined]
        self._stamp = max([self._count, *[each.count for each in joined]])
        digest = self._digest_of()
        if digest != self._digest:
            self._digest = digest
            for asked in tuple(self._open.values()):
                self._begin(asked)
        if all(each.digest == digest for each in joined):
            self._recovered = self._recovered or self._recovers
        self.agreed = self._knows and all(each.view == digest for each in joined)
        self.look()
        self._links.changed()

    @property
    def _knows(self) -> bool:
        """Whether it knows what it may have held in an earlier life (rule 7)."""
        return self._recovered or self._list is None

    @property
    def _recovers(self) -> bool:
        """Whether those that tell its digest know that, or are all that there are (rule 7)."""
        if self._list is None or not self._list.number:
            return False
        others = set(self._list.members) - {self.own}
        here = [each for each in self._peers.values() if each.joined and each.id in others]
        know = sum(each.view == each.digest for each in here)
        return len(here) == len(others) or know > len(self._list.members) - self._needed

    def _digest_of(self) -> str:
        known = [(each.id, each.count) for each in self._peers.values() if each.joined]
        text = repr((sorted([*known, (self.own, self._count)]), self._list))
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def _owner(self, key: LeaseKey) -> int | None:
        """Return the peer that owns a sequence; ``None`` = this member does."""
        text = repr(key).encode()
        listed = None if self._list is None else self._list.members
        best, owner = b"", None
        if listed is None or self.own in listed:
            best = _weight(self.own, text)
        for peer, each in self._peers.items():
            if (
                each.joined
                and (listed is None or each.id in listed)
                and (weight := _weight(each.id, text)) > best
            ):
                best, owner = weight, peer
        return owner

    # --- questions --------------------------------------------------------------------------------

    def _owns(self, key: LeaseKey) -> bool:
        return self._owner(key) is None

    def places(self, key: LeaseKey) -> bool:
        """Return whether this member may place a new sequence without a question."""
        return self._needed == 1 and self.places_any and self._owner(key) is None

    def unsure(self, key: LeaseKey) -> bool:
        """Return whether it is not known that more than half hold the lease of a sequence."""
        return key in self._unsure

    def leased(self, key: LeaseKey, lease: Lease) -> Leased | HeldLease:
        """Return what is told of a lease."""
        found = self._unsure.get(key)
        if found is None:
            return Leased(key, lease)
        return HeldLease(key, lease, found.stamp, found.proposal.instead)

    def sure(self, key: LeaseKey) -> bool:
        """Note that the lease of a sequence is used by a peer; return whether it was unsure."""
        return self._unsure.pop(key, None) is not None

    def holds(self, held: HeldLease, known: Lease | None) -> bool:
        """Return whether this member is to hold a lease that a peer holds.

        Args:
            held: The lease.
            known: This member's own lease of the sequence.

        Raises:
            GarbledError: Its stamp is ahead of the time (rule 6).
        """
        self._judge(held.stamp)
        key, lease, stamp, instead = held
        mine = self._unsure.get(key)
        earlier = mine is not None and mine.stamp < stamp
        if known is not None and known.endpoint != instead and not earlier:
            return False
        if mine is None and len(self._unsure) >= MAX_UNSURE and not self._forget():
            return False
        left_s = max(0.0, lease.expires - self._clock())
        proposal = Proposal(*key, lease.endpoint, lease.variant, left_s, instead)
        self._unsure[key] = _Unsure(proposal, lease.expires, stamp)
        if known is not None and known.endpoint != lease.endpoint:
            for asked in [each for each in self._open.values() if each.key == key]:
                self._begin(asked)
        if stamp > self._stamp:  # of a view that this member was not part of
            self._count = stamp + 1
            self._changed()
        return True

    def ask(self, proposal: Proposal, told: Told, latest: float = inf) -> Callable[[], None]:
        """Ask the owner for a lease; return what takes the question back.

        ``told`` is called later, once, unless the question is taken back before it has an answer.
        """
        asked = _Open(proposal, told, min(self._clock() + PLACED_S, latest))
        if len(self._open) >= MAX_ASKS:
            self._tell(asked, PlacedAs.NOWHERE)
            return _nothing
        self._begin(asked)
        self._try(asked)
        self._links.changed()

        def take_back() -> None:
            if self._open.pop(asked.number, None) is not None:
                self._links.changed()

        return take_back

    def _begin(self, asked: _Open) -> None:
        """Ask anew, so that no answer counts that is under way."""
        self._open.pop(asked.number, None)
        self._last += 1
        asked.begin(self._last)
        self._open[self._last] = asked

    def answered(self, peer: int, answer: OwnerAnswer) -> None:
        """Take a peer's answer. Where it grants nothing it is asked again later (rule 5)."""
        asked = self._open.get(answer.number)
        if asked is None or (asked.to != peer and peer not in asked.asked):
            return
        placed = answer.placed
        if asked.to == peer:
            asked.to = None
            asked.granted = None if placed is PlacedAs.NOWHERE else placed
        asked.asked.discard(peer)
        if placed is not PlacedAs.NOWHERE:
            asked.holders.add(peer)
            self._gather(asked)
        self._links.changed()

    def answer(self, proposal: Proposal, view: str = "") -> PlacedAs:
        """Return what becomes of a peer's proposal; ``view`` is the digest that it knows."""
        key = LeaseKey(proposal.pool, proposal.sequence)
        if self._list is None:
            return self._links.grant(proposal) if self.places(key) else PlacedAs.NOWHERE
        if view != self._digest or (self._owns(key) and not self.places_any):
            return PlacedAs.NOWHERE
        return self._hold(key, proposal)

    def look(self) -> None:
        """Ask the owners of questions that no peer has, and end those that are overdue."""
        now = self._clock()
        for asked in tuple(self._open.values()):
            if asked.due <= now:
                self._end(asked, PlacedAs.NOWHERE)
            else:
                self._try(asked)

    def _try(self, asked: _Open) -> None:
        if asked.to is not None or not self.places_any:
            return
        if asked.granted is None:
            owner = self._owner(asked.key)
            if owner is not None:
                asked.to = owner if self._links.send(owner, self._question(asked)) else None
                return
            placed = self._hold(asked.key, asked.proposal)
            asked.granted = None if placed is PlacedAs.NOWHERE else placed
        if asked.granted is not None:
            self._gather(asked)

    def _hold(self, key: LeaseKey, proposal: Proposal) -> PlacedAs:
        """Hold a lease in this view: what its owner proposes.

        As the owner this member proposes what it holds already, else what is asked for.
        """
        held = self._unsure.get(key)
        if held is None and self._needed == 1:
            return self._links.grant(proposal)
        if held is None and len(self._unsure) >= MAX_UNSURE and not self._forget():
            return PlacedAs.NOWHERE
        before = None if held is None else held.proposal.endpoint
        if held is not None and self._owns(key) and before != proposal.instead:
            if self._keep(key, held.proposal, held) is not PlacedAs.NOWHERE:
                return PlacedAs.EARLIER
            proposal = proposal._replace(instead=before)  # its replica is gone
        placed = self._keep(key, proposal, held)
        if held is None:
            return placed
        same = before == proposal.endpoint or placed is PlacedAs.AS_PROPOSED
        return PlacedAs.EARLIER if same else PlacedAs.NOWHERE

    def _keep(self, key: LeaseKey, proposal: Proposal, held: _Unsure | None) -> PlacedAs:
        """Hold a lease in place of one of an earlier view, and tell all; else that stays."""
        granted = proposal
        if held is not None and held.stamp < self._stamp:
            granted = proposal._replace(instead=held.proposal.endpoint)
        self._unsure[key] = _Unsure(proposal, self._clock() + proposal.idle_s, self._stamp)
        placed = self._links.grant(granted)
        if placed is not PlacedAs.AS_PROPOSED:
            if held is None:
                del self._unsure[key]
            else:
                self._unsure[key] = held
        return placed

    def _forget(self) -> bool:
        """Forget leases that have expired; return whether there were any."""
        now, count = self._clock(), len(self._unsure)
        self._unsure = {key: each for key, each in self._unsure.items() if each.expires > now}
        return len(self._unsure) < count

    def _gather(self, asked: _Open) -> None:
        """Ask members to hold what the owner of a sequence does, until more than half do."""
        if asked.granted is None:
            return
        found = self._unsure.get(asked.key)
        if self._list is None or found is None:
            self._end(asked, asked.granted)
            return
        listed = self._list.members
        others = {peer for peer, each in self._peers.items() if each.joined and each.id in listed}
        if found.stamp != self._stamp:
            self._begin(asked)
            return
        if len(asked.holders & others) + (self.own in listed) >= self._needed:
            del self._unsure[asked.key]
            self._links.grant(found.proposal)
            self._end(asked, asked.granted)
            return
        for peer in others - asked.holders - asked.asked:
            if self._links.send(peer, self._question(asked)):
                asked.asked.add(peer)

    def _question(self, asked: _Open) -> OwnerAsk:
        found = None if asked.granted is None else self._unsure.get(asked.key)
        proposal = asked.proposal if found is None else found.proposal
        return OwnerAsk(asked.number, proposal, "" if self._list is None else self._digest)

    def _end(self, asked: _Open, placed: PlacedAs) -> None:
        del self._open[asked.number]
        self._tell(asked, placed)

    def _tell(self, asked: _Open, placed: PlacedAs) -> None:
        self.placed[placed] += 1
        # The answer may come while another request is decided.
        self._links.soon(lambda: asked.told(placed, self._clock(), self._wall_clock()))


def _weight(member: str, text: bytes) -> bytes:
    return blake2b(
        text, digest_size=8, key=blake2b(member.encode(), digest_size=16).digest()
    ).digest()


def _nothing() -> None:
    pass
