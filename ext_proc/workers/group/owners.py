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
   member that is cut off from all others agrees with itself.
4. Whoever gets a new sequence that another member owns asks that member, and again after
   ``AGAIN_S``, at each change, and where another one owns it now; after ``PLACED_S``, or
   when the request must have a reply, it gives up.
   At most ``MAX_ASKS`` are open.
"""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.state.leases import LeaseKey
from ext_proc.routing.state.owners import PLACED_S
from ext_proc.routing.values.proposal import PlacedAs
from ext_proc.workers.news import OwnerAsk

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.owners import Told
    from ext_proc.routing.values.proposal import Proposal
    from ext_proc.workers.news import Hello, OwnerAnswer

AGAIN_S: Final = 0.05
MAX_ASKS: Final = 1024


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

    __slots__ = ("count", "digest", "id", "joined")

    def __init__(self) -> None:
        self.id = ""
        self.count = 0
        self.digest = ""
        self.joined = False


class _Open:
    """A question without an answer."""

    __slots__ = ("due", "key", "proposal", "to", "told")

    def __init__(self, proposal: Proposal, told: Told, due: float) -> None:
        self.key = LeaseKey(proposal.pool, proposal.sequence)
        self.proposal = proposal
        self.told = told
        self.due = due
        self.to: int | None = None
        """The peer that was asked and has not answered; ``None`` = no peer."""


class Owners:
    """Places new sequences; see the module's rules.

    Args:
        own: Id of this member.
        count: Number from which it counts: one that no earlier life of it has reached.
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
        self._own = own
        self._count = count
        self._links = links
        self._clock = clock
        self._wall_clock = wall_clock
        self._peers: dict[int, _Peer] = {}
        self._open: dict[int, _Open] = {}
        self._last = 0
        self._digest = self._digest_of()
        self.agreed = True
        """All members that this one knows know the same ones."""
        self.placed: dict[PlacedAs, int] = dict.fromkeys(PlacedAs, 0)
        """Questions that ended, by what became of them."""

    # --- who there is -----------------------------------------------------------------------------

    @property
    def view(self) -> tuple[int, str]:
        """What is told to peers: count and digest."""
        return self._count, self._digest

    @property
    def asked(self) -> set[int]:
        """The peers that have a question."""
        return {each.to for each in self._open.values() if each.to is not None}

    @property
    def open(self) -> int:
        """Number of questions without an answer."""
        return len(self._open)

    def agrees(self, peer: int) -> bool:
        """Return whether a peer is known, and knows the same members."""
        known = self._peers.get(peer)
        return known is not None and known.joined and known.digest == self._digest

    def describe(self) -> dict[str, object]:
        """Return what became of questions, ready for JSON."""
        counts = {str(placed): number for placed, number in self.placed.items()}
        return {"agreed": self.agreed, "open": self.open, **counts}

    def heard(self, peer: int, hello: Hello) -> None:
        """Take what a peer says of itself."""
        known = self._peers.setdefault(peer, _Peer())
        told = hello.member, hello.changes, hello.view
        if (known.id, known.count, known.digest) != told:
            known.id, known.count, known.digest = told
            self._changed()

    def joined(self, peer: int) -> None:
        """Note that a peer's snapshot has been read."""
        known = self._peers.setdefault(peer, _Peer())
        if not known.joined:
            known.joined = True
            self._count += 1
            self._changed()

    def lost(self, peer: int) -> None:
        """Note that a peer's connection has ended."""
        for each in self._open.values():
            if each.to == peer:
                each.to = None
        known = self._peers.pop(peer, None)
        if known is not None and known.joined:
            self._count += 1
            self._changed()

    def _changed(self) -> None:
        self._digest = self._digest_of()
        joined = [each for each in self._peers.values() if each.joined]
        self.agreed = all(each.digest == self._digest for each in joined)
        self.look()
        self._links.changed()

    def _digest_of(self) -> str:
        known = [(each.id, each.count) for each in self._peers.values() if each.joined]
        text = repr(sorted([*known, (self._own, self._count)]))
        return blake2b(text.encode(), digest_size=12).hexdigest()

    def _owner(self, key: LeaseKey) -> int | None:
        """Return the peer that owns a sequence; ``None`` = this member does."""
        text = repr(key).encode()
        best, owner = _weight(self._own, text), None
        for peer, each in self._peers.items():
            if each.joined and (weight := _weight(each.id, text)) > best:
                best, owner = weight, peer
        return owner

    # --- questions --------------------------------------------------------------------------------

    def places(self, key: LeaseKey) -> bool:
        """Return whether this member may place a new sequence."""
        return self.agreed and self._owner(key) is None

    def ask(self, proposal: Proposal, told: Told, latest: float = inf) -> Callable[[], None]:
        """Ask the owner for a lease; return what takes the question back.

        ``told`` is called later, once, unless the question is taken back before it has an answer.
        """
        self._last += 1
        number = self._last
        asked = _Open(proposal, told, min(self._clock() + PLACED_S, latest))
        if len(self._open) >= MAX_ASKS:
            self._tell(asked, PlacedAs.NOWHERE)
            return _nothing
        self._open[number] = asked
        self._try(number, asked)
        self._links.changed()

        def take_back() -> None:
            if self._open.pop(number, None) is not None:
                self._links.changed()

        return take_back

    def answered(self, peer: int, answer: OwnerAnswer) -> None:
        """Take a peer's answer. Where it grants nothing it is asked again later (rule 4)."""
        asked = self._open.get(answer.number)
        if asked is None or asked.to != peer:
            return
        asked.to = None
        if answer.placed is not PlacedAs.NOWHERE:
            self._end(answer.number, asked, answer.placed)
        self._links.changed()

    def answer(self, proposal: Proposal) -> PlacedAs:
        """Return what becomes of a peer's proposal."""
        if not self.places(LeaseKey(proposal.pool, proposal.sequence)):
            return PlacedAs.NOWHERE
        return self._links.grant(proposal)

    def look(self) -> None:
        """Ask the owners of questions that no peer has, and end those that are overdue."""
        now = self._clock()
        for number, asked in tuple(self._open.items()):
            if asked.due <= now:
                self._end(number, asked, PlacedAs.NOWHERE)
            else:
                self._try(number, asked)

    def _try(self, number: int, asked: _Open) -> None:
        if asked.to is not None or not self.agreed:
            return
        owner = self._owner(asked.key)
        if owner is not None:
            if self._links.send(owner, OwnerAsk(number, asked.proposal)):
                asked.to = owner
            return
        placed = self._links.grant(asked.proposal)
        if placed is not PlacedAs.NOWHERE:
            self._end(number, asked, placed)

    def _end(self, number: int, asked: _Open, placed: PlacedAs) -> None:
        del self._open[number]
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
