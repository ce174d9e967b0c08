"""Connects one worker with its peers: replicates its events, follows theirs, elects the leader.

Peers are the other workers of its host and the members of its group on others (``group``).

Rules:

1. In-flight load is sent as sums (``account``): after a charge at once if nothing was sent for
   ``SOON_S``, else with the first event after that; everything is sent within ``LATER_S``. A lease,
   new or renewed, or a suspect that runs is sent before the decision returns, and a death at once:
   the next variant of what killed may come to another worker. Until then events are only
   collected: processing them together costs much less than one by one between other work.
2. Before a request of a sequence is decided, everything that peer workers have sent is read. The
   next request of a sequence comes after the answer to the one before, and so after its lease.
   Before any other decision the sockets are read if the last read is ``READ_AGAIN_S`` old, and
   every ``TICK_S`` without decisions. Peers' messages do not wake the process, because a wake-up
   costs many times more than the messages; the end of a peer does.
3. A peer worker's in-flight load counts as long as its connection lasts. A peer that sends nothing
   for ``SILENT_S`` is treated as gone.
4. The live worker with the lowest number leads: it alone reads pages and probes replicas, and
   publishes the results. A worker that has just started waits ``GRACE_S`` for those before it. It
   leaves pages to members of its group that read them (``group.pages``).
5. Peer workers are dialled once pools are known, because events of unknown replicas are dropped. A
   worker is ready when it has read the snapshots of the peers that it dialled.
6. A worker that starts requests the prefix index from the first peer that it reaches, so that a
   restart costs no affinity. Of another host's it requests it on each connection: what was sent
   while there was none is missing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.trials import INDEX_EVENTS
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, LeaseKey, Released
from ext_proc.routing.state.ledger import Charged
from ext_proc.routing.suspicion import SUSPICION_EVENTS, Died, SuspectRun
from ext_proc.routing.values.proposal import PlacedAs
from ext_proc.telemetry.news import PUSH, PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.account import FOLDED, Account
from ext_proc.workers.encode import Encoder
from ext_proc.workers.group.members import GroupMembers, GroupPlace
from ext_proc.workers.group.owners import AGAIN_S, OwnerLinks, Owners
from ext_proc.workers.group.untold import Untold
from ext_proc.workers.links import Inlet, Outlet, dialled, path_of
from ext_proc.workers.news import (
    HeldLease,
    Hello,
    Listed,
    Looked,
    LookWanted,
    OwnerAnswer,
    OwnerAsk,
    Probed,
    SnapshotEnd,
)
from ext_proc.workers.records import GarbledError, framed
from tidegate_api.addresses import MAX_MEMBERS, MAX_TOLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ext_proc.routing.cache.index_events import Inserted
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.routing.state.leases import Lease
    from ext_proc.routing.suspicion import SuspicionEvent
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.proposal import Proposal
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.account import LocalEvent
    from ext_proc.workers.group.members import GroupMember, GroupPlan
    from ext_proc.workers.records import Message

SOON_S: Final = 0.02
LATER_S: Final = 0.05
READ_AGAIN_S: Final = 0.005
TICK_S: Final = 0.25
SILENT_S: Final = 2.0
MISSING_S: Final = 5.0
"""A member is missing in reports once it has been away, or has known other members, for so long."""
MAX_REASON_CHARS: Final = 256
GRACE_S: Final = 1.0
MANY: Final = 1024
"""Maximum events that are collected before they are sent."""
FULL_BYTES: Final = 2**16
"""Frames are sent when they reach this size."""
PART_BYTES: Final = 2**16
"""Size of one part of a snapshot of the index."""
_OF_REQUESTS: Final = (*INDEX_EVENTS, Share)
"""The most frequent messages; they have no time that is used."""
_SHARED_EVENTS: Final = (*_OF_REQUESTS, LatencySample, *SUSPICION_EVENTS)
"""Messages that routers follow, besides leases, which are judged before."""
_AT_ONCE: Final = frozenset({HeldLease, Leased, Released, Died, SuspectRun})


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's place among its peers."""

    folder: Path | None
    """Folder of the workers' sockets, private to the workers of one picker; ``None`` = there are no
    others on this host."""
    number: int
    """Number of the worker, from 0."""
    count: int


class MemberState(NamedTuple):
    """A member of the group as this one sees it."""

    id: str | None
    address: str
    caught_up: bool
    """It is connected, and its snapshot has been read."""
    agrees: bool
    """It knows the same members, so that sequences can be placed."""
    why: str
    """What is wrong with it; empty = nothing."""
    wrong_s: float
    """For how long that has been so, seconds."""
    open_tickets: int
    silent_s: float | None
    """Seconds since its last bytes were read; ``None`` = it is not connected."""
    received_bytes: int
    connections_lost: int
    connections_failed: int
    """Connections that were closed because of what it sent."""


class Replicated(Protocol):
    """The part of a router's state that workers share; ``PeerWorkers`` implements it."""

    @property
    def has_members(self) -> bool:
        """Whether there is a replica for which peers' state can be kept."""

    def follow(self, peer_worker: int, event: ReplicationEvent, now: float) -> None:
        """Apply an event of a peer worker."""

    def lost(self, peer_worker: int) -> int:
        """Drop a peer worker's in-flight load; return the number of requests."""

    def open_by(self) -> dict[int, int]:
        """Return the requests in flight of each peer worker that has any."""

    def grant(self, proposal: Proposal, now: float) -> tuple[Lease, bool] | None:
        """Return the lease of a sequence and whether it is the one proposed; ``None`` = neither."""

    def knows(self, endpoint: EndpointKey) -> bool:
        """Return whether a replica is registered."""

    def leases_in_force(self) -> Iterable[tuple[LeaseKey, Lease]]:
        """Return the leases of sequences."""

    def lease(self, key: LeaseKey, now: float) -> Lease | None:
        """Return the lease of a sequence; ``None`` = it has none."""

    def suspicions(self) -> Iterable[SuspicionEvent]:
        """Return events that reproduce what is held against requests."""

    def index_uses(self) -> Iterable[Inserted]:
        """Return the prefix index as inserts that reproduce it from an empty one."""


class Bus:
    """Connects one worker with its peers; create it within the loop that runs it.

    Args:
        place: The worker's place among its peers.
        shared: State that this worker shares with its peers.
        on_telemetry: Receives telemetry that a peer has collected.
        on_judged: Receives verdicts of a peer's log entries.
        on_found: Receives what a peer found at replicas, or wants to be found.
        on_lead: Called with whether this worker leads, at the start and at each change.
        on_left: Called with the pages that members of the group read, each as endpoint and source,
            at each change.
        listings: Returns the latest listings of replicas, for a worker that joins.
        group: Members on other hosts; ``None`` = there are none.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        place: WorkerPlace,
        shared: Replicated,
        *,
        group: GroupPlan | None = None,
        on_telemetry: Callable[[TelemetryUpdate], None],
        on_judged: Callable[[Judged, float], None],
        on_found: Callable[[Probed | Looked | LookWanted], None],
        on_lead: Callable[[bool], None],
        on_left: Callable[[frozenset[tuple[str, str]]], None] = lambda _: None,
        listings: Callable[[], Iterable[Looked]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._shared = shared
        self._on_telemetry = on_telemetry
        self._on_judged = on_judged
        self._on_found = on_found
        self._on_lead = on_lead
        self._listings = listings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._events: list[tuple[LocalEvent, float]] = []
        """Events not sent yet, each with its time."""
        self._account = Account()
        self._encoder = Encoder()
        self._name = f"worker {place.number}" if group is None else group.own
        self._outlet = Outlet(self._begin, self._index, self._answer)
        self._paths: dict[int, Path] = (
            {}
            if place.folder is None
            else {number: path_of(place.folder, number) for number in range(place.count)}
        )
        self._inlets = {
            number: Inlet(str(path), partial(self._take, number), partial(self._lost, number))
            for number, path in self._paths.items()
            if number != place.number
        }
        self._pushes: dict[int, set[str]] = {number: set() for number in self._inlets}
        """Endpoints that push to each peer worker."""
        self._group = None if group is None else GroupMembers(group, self._outlet, on_left, clock)
        for number in () if self._group is None else self._group.members:
            self._add(number)
        self.owners = None if group is None else self._owners(group, wall_clock)
        """Places new sequences in a group; ``None`` = there is none."""
        self._looking: asyncio.TimerHandle | None = None
        self._joined: set[int] = set()
        """Peer workers whose snapshot has been read completely."""
        self._changed = asyncio.Event()
        """Set when a peer's snapshot is complete or a peer is lost."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = self._charged = False
        """The batch is sent in this iteration of the loop; it contains a charge."""
        self._read_at = float("-inf")
        self._sent_at = float("-inf")
        self._greeted_at = float("-inf")
        self._began = clock()
        self.group_changed = asyncio.Event()
        """Set when ``standing`` may differ."""
        self._told = None if self.owners is None else self.owners.view
        """What the owners told last."""
        self._untold = Untold()
        self._needs_index = True
        """The index has not been requested from a peer yet."""
        self._open = False
        self._refuses_since: float | None = None
        """Since when no new sequence can be placed, loop time; ``None`` = one can."""
        self._disagrees: dict[int, float] = {}
        """Since when members that are connected know others than this one, loop time."""
        self.leading = False
        self.published = self.followed = 0
        """Number of events sent, and of messages followed."""

    def _owners(self, group: GroupPlan, wall_clock: Callable[[], float]) -> Owners:
        links = OwnerLinks(self._ask, self._grant, self._loop.call_soon, self._owners_changed)
        return Owners(group.own, group.life, links, self._clock, wall_clock)

    def _add(self, number: int) -> None:
        """Receive from a member of the group, once it is dialled."""
        if self._group is not None:
            name = self._group.members[number].address
            hear, lost = partial(self._hear, number), partial(self._lost, number)
            self._inlets[number], self._pushes[number] = Inlet(name, hear, lost), set()

    # --- The control server's list ---------------------------------------------------------------

    def standing(self, *, places: bool) -> GroupPlace | None:
        """Return how this picker stands in its group; ``None`` = the control server lists none.

        Args:
            places: It would place new sequences if others could follow it.
        """
        owners = self.owners
        if self._group is None or owners is None or owners.listed is None:
            return None
        listed = owners.listed
        follows = not listed.number or owners.places_any or owners.own in listed.members
        return GroupPlace(self._group.address, places and follows, owners.places_any, listed)

    def take_list(self, listed: Listed, addresses: Iterable[str]) -> None:
        """Take the list and the addresses of the group from the control server."""
        if self._group is None or self.owners is None or self.owners.listed is None:
            return
        new, gone = self._group.known(addresses, lambda number: self._inlets[number].up)
        for number in gone:
            del self._inlets[number], self._pushes[number]
        for number in new:
            self._add(number)
        self.owners.take(listed)
        self.tick()

    # --- Life cycle -----------------------------------------------------------------------------

    def open(self) -> None:
        """Listen, dial the peers and elect the leader.

        Raises:
            OSError: The folder or the group's address cannot be used.
        """
        own = self._paths.get(self._place.number)
        if own is not None:
            self._outlet.listen(own)
        if self._group is not None:
            self._group.open()
            if self.owners is not None and self._group.learns:
                self.owners.take(Listed())  # there is no list yet
        self._open = True
        self._on_lead(False)
        self.tick()

    def close(self) -> None:
        """Disconnect; the worker stops leading, but ``on_lead`` is not called."""
        self._open, self.owners = False, None  # alone it would place what others place
        for timer in (self._timer, self._looking):
            if timer is not None:
                timer.cancel()
        for inlet in self._inlets.values():
            inlet.close()
        if self._group is not None:
            self._group.close()
        self._outlet.close()

    async def run(self) -> None:
        """Maintain the connections until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()
            if self._loop.time() - self._read_at >= TICK_S:
                self.catch_up()

    async def join(self) -> None:
        """Dial all peer workers, wait for their snapshots and, in a group, until all agree.

        It takes at most ``GRACE_S``.
        """
        self.tick()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while not self._all_know():
                    self._changed.clear()
                    await self._changed.wait()

    def _all_know(self) -> bool:
        if any(self._awaited(number) for number in self._inlets):
            return False
        owners = self.owners
        listed = None if owners is None else owners.listed
        return owners is None or (owners.agreed and (listed is None or listed.number > 0))

    def _awaited(self, number: int) -> bool:
        """Return whether a peer's snapshot is under way."""
        group = self._group
        if group is not None and number in group.members and group.members[number].dialling:
            return True
        return self._inlets[number].up and number not in self._joined

    def tick(self) -> None:
        """Dial disconnected peers, disconnect silent ones, and send a heartbeat."""
        now = self._loop.time()
        for number, inlet in self._inlets.items():
            if inlet.up and now - inlet.received_at > SILENT_S:
                inlet.read()  # this worker may have been busy
                if now - inlet.received_at > SILENT_S:
                    inlet.close()
            elif not inlet.up and self._shared.has_members:
                self._dial(number, inlet)
        if self._encoder.full:
            self._outlet.renew()
            self._encoder = Encoder()
        if now - self._greeted_at >= 2 * TICK_S:
            self._greeted_at = now
            self._outlet.send(self._hello())
        self._elect()
        if self._group is not None:
            self._group.pages.leave(self._clock())

    def _dial(self, number: int, inlet: Inlet) -> None:
        path = self._paths.get(number)
        if path is None:
            if self._group is not None:
                self._group.dial(number, inlet, lambda _: self._changed.set())
            return
        sock = dialled(path)
        if sock is not None and inlet.adopt(sock, with_index=self._needs_index):
            self._needs_index = False

    def _hello(self) -> bytes:
        """Return a frame that says who sends and when; it also shows that this worker is alive."""
        part = bytearray()
        count, view = (0, "") if self.owners is None else self.owners.view
        self._encoder.put(Hello(self._name, self._clock(), count, view), part)
        return framed(part)

    def _list(self) -> bytes:
        """Return a frame with the list of members; empty = there is none."""
        listed = None if self.owners is None else self.owners.listed
        if listed is None or not listed.number:
            return b""
        part = bytearray()
        self._encoder.put(listed, part)
        return framed(part)

    def _elect(self) -> None:
        before = [inlet.up for number, inlet in self._inlets.items() if number < self._place.number]
        waited = not before or self._clock() - self._began >= GRACE_S
        leading = waited and not any(before)
        if self._open and leading != self.leading:
            self.leading = leading
            self._on_lead(leading)

    # --- Sending --------------------------------------------------------------------------------

    def publish(self, event: LocalEvent) -> None:
        """Replicate an event of this worker to all peers."""
        kind = type(event)
        if kind not in FOLDED:
            return
        self._events.append((event, self._clock()))
        if kind is Charged:
            self._charged = True
        elif kind in _AT_ONCE:
            # Renewals too: one sent after another worker's release would restore the lease.
            self.flush()
            return
        if len(self._events) >= MANY:
            self.flush()
        elif self._charged and not self._soon and self._loop.time() - self._sent_at >= SOON_S:
            self._soon = True
            self._loop.call_soon(self.flush)  # together with the decision's other events
        elif self._timer is None:
            self._timer = self._loop.call_later(LATER_S, self._late)

    def _late(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send everything that is due."""
        self._soon = self._charged = False
        account, encoder = self._account, self._encoder
        events, self._events = self._events, []
        self.published += len(events)
        for event, when in events:
            for message in account.take(event, when):
                encoder.put(message)
                if len(encoder.batch) >= FULL_BYTES:
                    self._send()
        for message in account.sums():
            encoder.put(message)
            if len(encoder.batch) >= FULL_BYTES:
                self._send()
        if encoder.batch:
            self._send()

    def _send(self) -> None:
        batch = self._encoder.batch
        frame = framed(batch)
        batch.clear()
        self._sent_at = self._loop.time()
        self._outlet.send(frame)

    def _begin(self) -> bytes:
        """Return the beginning of a connection: names, listings, in-flight load and leases."""
        self.flush()  # to existing readers; the new one gets this from the snapshot
        encoder, out = self._encoder, bytearray(self._hello() + self._list())
        for event in (*self._snapshot(), SnapshotEnd()):
            part = bytearray()
            encoder.put(event, part)
            out += framed(part)
        self.flush()  # new names, to existing readers; the new one gets all names first
        return encoder.names() + bytes(out)

    def _leased(self, key: LeaseKey, lease: Lease) -> Leased | HeldLease:
        return Leased(key, lease) if self.owners is None else self.owners.leased(key, lease)

    def _snapshot(self) -> Iterator[ReplicationEvent | Looked | HeldLease]:
        yield from self._listings()
        yield from self._account.standing()
        for key, lease in self._shared.leases_in_force():
            yield self._leased(key, lease)
        yield from self._shared.suspicions()

    def _index(self) -> Iterator[bytes]:
        """Yield the prefix index in parts."""
        part = bytearray()
        for use in self._shared.index_uses():
            self._encoder.put(use, part)
            if len(part) >= PART_BYTES:
                self.flush()  # names must precede their use
                yield framed(part)
                part.clear()
        self.flush()
        yield framed(part)

    # --- Following ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what peer workers have sent, unless that was done within ``READ_AGAIN_S``."""
        if self._loop.time() - self._read_at >= READ_AGAIN_S:
            self.catch_up()

    def catch_up(self) -> None:
        """Read everything that peer workers have sent."""
        self._read_at = self._loop.time()
        for inlet in self._inlets.values():
            inlet.read()

    def _take(self, number: int, messages: Iterator[Message]) -> None:
        """Follow messages of a peer worker of this host."""
        for message in messages:
            self._follow(number, message)

    def _hear(self, number: int, messages: Iterator[Message]) -> None:
        """Follow messages of a member of the group."""
        group, now = self._group, self._clock()
        if group is None:
            return
        member = group.members[number]
        for message in messages:
            if isinstance(message, _OF_REQUESTS) and member.id is not None:
                self.followed += 1
                self._shared.follow(number, message, now)
                continue
            news = group.heard(number, message)
            if news is not None:
                self._follow(number, news)
            elif isinstance(message, Hello):
                self._greeted(number, message)

    def _follow(self, peer_worker: int, message: Message) -> None:
        self.followed += 1
        if isinstance(message, _SHARED_EVENTS):
            self._shared.follow(peer_worker, message, self._clock())
        elif isinstance(message, (Leased, Released)):
            self._leased_by(peer_worker, message)
        elif isinstance(message, Judged):
            self._on_judged(message, self._clock())
        elif isinstance(message, SnapshotEnd):
            self._caught_up(peer_worker)
        elif isinstance(message, (HeldLease, Hello, Listed, OwnerAnswer)):
            self._told_of_group(peer_worker, message)
        elif isinstance(message, (Probed, Looked, LookWanted)):
            self._on_found(message)
        elif isinstance(message, (ReadingsUpdate, ScrapeFailed, Restarted, PushEnded)):
            self._read(peer_worker, message)

    def _leased_by(self, peer_worker: int, leased: Leased | Released) -> None:
        """Take a lease that is used, or its end, in place of one that this worker only holds."""
        now = self._clock()
        if isinstance(leased, Leased) and not self._shared.knows(leased.lease.endpoint):
            return  # the lease that took its place stays
        if self.owners is not None and self.owners.sure(leased.key):
            self._shared.follow(peer_worker, Released(leased.key), now)
        self._shared.follow(peer_worker, leased, now)
        if self.owners is not None:
            self._untold.add(leased.key, self._lasts)

    def _held(self, peer_worker: int, held: HeldLease) -> None:
        now = self._clock()
        if self.owners is None or self.owners.holds(held, self._shared.lease(held.key, now)):
            self._shared.follow(peer_worker, Released(held.key), now)
            self._shared.follow(peer_worker, Leased(held.key, held.lease), now)
            self._untold.add(held.key, self._lasts)

    def _lasts(self, key: LeaseKey) -> bool:
        return self._shared.lease(key, self._clock()) is not None

    def _tell_learned(self) -> None:
        """Tell all what this worker has learned of leases since it did so last."""
        for key in self._untold.take():
            lease = self._shared.lease(key, self._clock())
            if lease is not None:
                self._events.append((self._leased(key, lease), self._clock()))
        self.flush()

    def _read(self, peer_worker: int, message: TelemetryUpdate) -> None:
        """Take what a peer read of a replica."""
        self._on_telemetry(message)
        if isinstance(message, ReadingsUpdate) and message.source == PUSH:
            self._pushes[peer_worker].add(message.endpoint)

    def _caught_up(self, peer_worker: int) -> None:
        """Note that a peer's snapshot has been read."""
        self._joined.add(peer_worker)
        self._changed.set()
        self._inlets[peer_worker].rest()
        if self.owners is not None:
            self.owners.joined(peer_worker)

    def _lost(self, peer_worker: int) -> None:
        """Drop the state of a disconnected peer worker."""
        self._joined.discard(peer_worker)
        self._changed.set()
        self._shared.lost(peer_worker)
        for endpoint in self._pushes[peer_worker]:
            self._on_telemetry(PushEnded(endpoint))
        self._pushes[peer_worker].clear()
        if self._group is not None and peer_worker in self._group.members:
            self._group.lost(peer_worker)
        if self.owners is not None:
            self.owners.lost(peer_worker)
        self._elect()

    # --- New sequences of a group ----------------------------------------------------------------

    def _greeted(self, peer_worker: int, hello: Hello) -> None:
        if self.owners is not None:
            self.owners.heard(peer_worker, hello)

    def _told_of_group(
        self, peer_worker: int, message: HeldLease | Hello | Listed | OwnerAnswer
    ) -> None:
        owners = self.owners
        if isinstance(message, HeldLease):
            self._held(peer_worker, message)
        elif isinstance(message, Hello):
            self._greeted(peer_worker, message)
        elif isinstance(message, OwnerAnswer) and owners is not None:
            owners.answered(peer_worker, message)
        elif isinstance(message, Listed) and owners is not None and owners.listed is not None:
            owners.take(message, MAX_TOLD)

    def _ask(self, peer_worker: int, ask: OwnerAsk) -> bool:
        part = bytearray()
        self._encoder.put(ask, part)
        return self._inlets[peer_worker].ask(framed(part))

    def _answer(self, message: Message) -> bytes:
        """Return the answer to a member's question."""
        if self.owners is None or not isinstance(message, OwnerAsk):
            raise GarbledError(f"only members of a group ask; this is a {type(message).__name__}")
        self.catch_up()
        number, proposal, view = message
        placed, part = self.owners.answer(proposal, view), bytearray()
        if placed is not PlacedAs.NOWHERE:
            found = self._shared.grant(proposal, self._clock())
            if found is not None:  # it is: the lease was granted, or found, just now
                key = LeaseKey(proposal.pool, proposal.sequence)
                self._encoder.put(self._leased(key, found[0]), part)
        self._encoder.put(OwnerAnswer(number, placed), part)
        return framed(part)

    def _grant(self, proposal: Proposal) -> PlacedAs:
        granted = self._shared.grant(proposal, self._clock())
        if granted is None:
            return PlacedAs.NOWHERE
        lease, new = granted
        if not new:
            return PlacedAs.EARLIER
        self.publish(self._leased(LeaseKey(proposal.pool, proposal.sequence), lease))
        return PlacedAs.AS_PROPOSED

    def _owners_changed(self) -> None:
        """Tell what has changed, and read at once what the owners wait for."""
        owners = self.owners
        if owners is None or not self._open:
            return
        if owners.view != self._told:
            self._told = owners.view
            self._changed.set()
            self._tell_learned()
            self._outlet.send(self._list() + self._hello())
        self.group_changed.set()
        asked, now = owners.asked, self._loop.time()
        if owners.places_any or owners.listed is None:
            self._refuses_since = None
        elif self._refuses_since is None:
            self._refuses_since = now
        self._disagrees = {
            number: self._disagrees.get(number, now)
            for number in self._joined
            if not owners.agrees(number)
        }
        for number in self._joined:
            if number in asked or not owners.agreed:
                self._inlets[number].wake()
            else:
                self._inlets[number].rest()
        if owners.open and self._looking is None:
            self._looking = self._loop.call_later(AGAIN_S, self._look)

    def _look(self) -> None:
        self._looking = None
        self.catch_up()
        if self.owners is not None:
            self.owners.look()
            self._owners_changed()

    # --- State ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the connections, ready for JSON."""
        by = self._shared.open_by()
        return {
            "worker": self._place.number,
            "workers": self._place.count,
            "leading": self.leading,
            "readers": len(self._outlet.readers),
            "readers_dropped": self._outlet.dropped,
            "events_told": self.published,
            "events_followed": self.followed,
            "siblings": {
                str(number): {
                    "connected": inlet.up,
                    "open_tickets": by.get(number, 0),
                    "connections_failed": inlet.failed,
                }
                for number, inlet in self._inlets.items()
                if number in self._paths
            },
            "group": None if self._group is None else [each._asdict() for each in self.members()],
            "sequences": None if self.owners is None else self.owners.describe(),
        }

    def _wrong(self, number: int, member: GroupMember, now: float) -> tuple[str, float]:
        """Return what is wrong with a member, and for how long."""
        if number not in self._joined:
            return member.why, now - member.gone_at
        since = self._disagrees.get(number)
        return ("", 0.0) if since is None else ("it sees other members", now - since)

    def missing(self) -> list[str]:
        """Return which members have been missing for ``MISSING_S``, each with the reason."""
        told = [
            f"{each.address}: {each.why}"
            for each in self.members()
            if each.why and each.wrong_s >= MISSING_S
        ]
        owners, since = self.owners, self._refuses_since
        if owners is not None and since is not None and self._loop.time() - since >= MISSING_S:
            told.insert(0, owners.why_refused)
        return [each[:MAX_REASON_CHARS] for each in told[:MAX_MEMBERS]]

    def members(self) -> list[MemberState]:
        """Return what is known of the members of the group, but of this picker itself."""
        if self._group is None:
            return []
        by, now = self._shared.open_by(), self._loop.time()
        return [
            MemberState(
                member.id,
                member.address,
                member.id is not None and number in self._joined,
                self.owners is not None and self.owners.agrees(number),
                *self._wrong(number, member, now),
                by.get(number, 0),
                now - self._inlets[number].received_at if self._inlets[number].up else None,
                self._inlets[number].received,
                member.lost,
                self._inlets[number].failed,
            )
            for number, member in self._group.others()
        ]
