"""One worker among its peer workers: tells them what it does, follows what they do, and may lead.

Laws:

1. What is in flight goes out as sums (``account``): after a charge at once where nothing has for
   ``SOON_S``, else with the first event after that; everything goes out within ``LATER_S``. A
   lease, new or renewed, goes out before the decision returns. Until then events are only kept:
   folded together they cost much less than one by one, between other work.
2. Before a request of a sequence is decided, all that peer workers have sent is read. The next
   request of a sequence comes after the answer to the one before, and so after its lease. Before
   any other decision it is read where the last look is ``LOOK_S`` old, and each ``TICK_S`` without
   one: what peer workers send wakes nobody, as waking up costs many times what is read. Their end
   does.
3. What a peer worker has in flight counts as long as its connection lasts. One that says nothing
   for ``SILENT_S`` is as good as gone.
4. The live worker with the lowest number leads: it alone reads pages and probes replicas, and all
   hear what it found. A worker that has just begun waits ``GRACE_S`` for those before it.
5. Peer workers are dialled once pools are known: what is said of replicas that are not known is
   lost. A worker is ready when it has heard all that stood when it dialled.
6. A worker that begins asks the first peer worker it meets for the prefix index, so that a restart
   costs no affinity.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.prefix_index import Inserted
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, Released
from ext_proc.routing.state.ledger import Charged
from ext_proc.telemetry.hub import PUSH
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.account import FOLDED, Account
from ext_proc.workers.encode import Encoder
from ext_proc.workers.links import Inlet, Outlet, heartbeat, path_of
from ext_proc.workers.news import Begun, Indexed, Probed
from ext_proc.workers.records import framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.routing.state.leases import Lease, LeaseKey
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.account import Deed
    from ext_proc.workers.records import Word

SOON_S: Final = 0.01
LATER_S: Final = 0.05
LOOK_S: Final = 0.005
TICK_S: Final = 0.25
SILENT_S: Final = 2.0
GRACE_S: Final = 1.0
MANY: Final = 1024
"""So many events go out at once."""
FULL_BYTES: Final = 2**16
"""A frame of this size is full."""
PART_BYTES: Final = 2**16
"""Size of one part of a snapshot of the index."""


_DEEDS: Final = (Share, Inserted, LatencySample, Leased, Released)
"""What routers follow."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker stands among its peer workers."""

    folder: Path
    """Private to the workers of one picker."""
    number: int
    """From 0."""
    count: int


class Replicated(Protocol):
    """The part of a router's state that workers share; ``PeerWorkers`` implements it."""

    @property
    def has_members(self) -> bool:
        """Whether there is a replica of which peer workers' state can be kept."""
        ...

    @property
    def conditions(self) -> Conditions:
        """Which replicas must not get new work."""
        ...

    def follow(self, peer_worker: int, event: ReplicationEvent, now: float) -> None:
        """Apply what a peer worker did."""

    def lost(self, peer_worker: int) -> int:
        """Drop what a peer worker had in flight; return the number of requests."""
        ...

    def open_by(self) -> dict[int, int]:
        """Return the requests in flight of each peer worker that has any."""
        ...

    def leases_in_force(self) -> Iterable[tuple[LeaseKey, Lease]]:
        """Return the leases of sequences."""
        ...

    def index_uses(self) -> Iterable[Inserted]:
        """Return the prefix index as inserts that make an empty one the same."""
        ...


class Bus:
    """Connects one worker with its peer workers; make it within the loop that runs it.

    Args:
        place: Which of them it is.
        shared: What this worker shares with the others.
        on_news: Takes what another one's collectors found.
        on_judged: Takes what another one's log entries said.
        on_lead: Called with whether this worker leads, at the start and at each change.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        place: WorkerPlace,
        shared: Replicated,
        *,
        on_news: Callable[[TelemetryUpdate], None],
        on_judged: Callable[[Judged, float], None],
        on_lead: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._shared = shared
        self._on_news = on_news
        self._on_judged = on_judged
        self._on_lead = on_lead
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._deeds: list[tuple[Deed, float]] = []
        """Not told yet, each with its time."""
        self._account = Account()
        self._encoder = Encoder()
        self._outlet = Outlet(path_of(place.folder, place.number), self._begin, self._index)
        self._inlets = {
            number: Inlet(
                path_of(place.folder, number),
                partial(self._follow, number),
                partial(self._lost, number),
            )
            for number in range(place.count)
            if number != place.number
        }
        self._pushes: dict[int, set[str]] = {number: set() for number in self._inlets}
        """Endpoints that push to a peer worker."""
        self._met: set[int] = set()
        """Peer workers that have said all that stood when they were dialled."""
        self._changed = asyncio.Event()
        """Somebody was met or lost."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        """The batch goes out in this turn of the loop."""
        self._charged = False
        """The batch has a charge."""
        self._looked_at = float("-inf")
        self._sent_at = float("-inf")
        self._began = clock()
        self._fresh = True
        """The index was asked of nobody yet."""
        self._open = False
        self.leading = False
        self.told = 0
        """Events told."""
        self.followed = 0
        """Events followed."""

    # --- Life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen, dial and find out who leads.

        Raises:
            OSError: The folder cannot be used.
        """
        self._outlet.open()
        self._open = True
        self._on_lead(False)
        self.tick()

    def close(self) -> None:
        """Leave the others; it does not lead any more, but nobody here is told."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        for inlet in self._inlets.values():
            inlet.close()
        self._outlet.close()

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()
            if self._loop.time() - self._looked_at >= TICK_S:
                self.catch_up()

    async def meet(self) -> None:
        """Dial all peer workers and wait for what they say first, at most ``GRACE_S``."""
        self.tick()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while any(up.up and number not in self._met for number, up in self._inlets.items()):
                    self._changed.clear()
                    await self._changed.wait()

    def tick(self) -> None:
        """Dial who is gone, give up who is silent, and say that we live."""
        now = self._loop.time()
        for inlet in self._inlets.values():
            if inlet.up and now - inlet.heard_at > SILENT_S:
                inlet.read()  # it may be we who were busy
                if now - inlet.heard_at > SILENT_S:
                    inlet.close()
            elif not inlet.up and self._shared.has_members and inlet.dial(everything=self._fresh):
                self._fresh = False
        if self._encoder.full:
            self._outlet.renew()
            self._encoder = Encoder()
        if now - self._sent_at >= 2 * TICK_S:
            self._sent_at = now
            self._outlet.send(heartbeat())
        self._elect()

    def _elect(self) -> None:
        before = [inlet.up for number, inlet in self._inlets.items() if number < self._place.number]
        waited = not before or self._clock() - self._began >= GRACE_S
        leading = waited and not any(before)
        if self._open and leading != self.leading:
            self.leading = leading
            self._on_lead(leading)

    # --- Telling --------------------------------------------------------------------------------

    def tell(self, event: Deed) -> None:
        """Tell all peer workers of an event here."""
        kind = type(event)
        if kind not in FOLDED:
            return
        self._deeds.append((event, self._clock()))
        if kind is Charged:
            self._charged = True
        elif kind is Leased or kind is Released:
            # Renewals, too: one that is told after another worker's release brings the lease back.
            self.flush()
            return
        if len(self._deeds) >= MANY:
            self.flush()
        elif self._charged and not self._soon and self._loop.time() - self._sent_at >= SOON_S:
            self._soon = True
            self._loop.call_soon(self.flush)  # with what else this decision tells
        elif self._timer is None:
            self._timer = self._loop.call_later(LATER_S, self._late)

    def _late(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send what is due now."""
        self._soon = self._charged = False
        account, encoder = self._account, self._encoder
        deeds, self._deeds = self._deeds, []
        self.told += len(deeds)
        for event, when in deeds:
            for word in account.take(event, when):
                encoder.put(word)
                if len(encoder.batch) >= FULL_BYTES:
                    self._send()
        for word in account.sums():
            encoder.put(word)
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
        """Return what a new reader must know: names, open tickets, leases."""
        self.flush()  # to those who read already; the new one gets it all from the snapshot
        encoder, out = self._encoder, bytearray()
        for event in (*self._snapshot(), Begun()):
            part = bytearray()
            encoder.put(event, part)
            out += framed(part)
        self.flush()  # the names that are new; the new one gets them first of all
        return encoder.names() + bytes(out)

    def _snapshot(self) -> Iterator[ReplicationEvent]:
        yield from self._account.standing()
        for key, lease in self._shared.leases_in_force():
            yield Leased(key, lease)

    def _index(self) -> Iterator[bytes]:
        """Yield the prefix index in parts."""
        part = bytearray()
        for use in self._shared.index_uses():
            self._encoder.put(use, part)
            if len(part) >= PART_BYTES:
                self.flush()  # names first
                yield framed(part)
                part.clear()
        self.flush()
        yield framed(part)

    # --- Following ------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what peer workers have sent, where that was not done just now."""
        if self._loop.time() - self._looked_at >= LOOK_S:
            self.catch_up()

    def catch_up(self) -> None:
        """Read all that peer workers have sent."""
        self._looked_at = self._loop.time()
        for inlet in self._inlets.values():
            inlet.read()

    def _follow(self, peer_worker: int, word: Word) -> None:
        self.followed += 1
        if isinstance(word, _DEEDS):
            self._shared.follow(peer_worker, word, self._clock())
        elif isinstance(word, Judged):
            self._on_judged(word, self._clock())
        elif isinstance(word, Begun):
            self._met.add(peer_worker)
            self._changed.set()
            self._inlets[peer_worker].rest()
        elif isinstance(word, (Probed, Indexed)):
            word.take(self._shared.conditions)
        elif isinstance(word, (ReadingsUpdate, ScrapeFailed, Restarted, PushEnded)):
            self._on_news(word)
            if isinstance(word, ReadingsUpdate) and word.source == PUSH:
                self._pushes[peer_worker].add(word.endpoint)

    def _lost(self, peer_worker: int) -> None:
        """Forget what a peer worker had under way."""
        self._met.discard(peer_worker)
        self._changed.set()
        self._shared.lost(peer_worker)
        for endpoint in self._pushes[peer_worker]:
            self._on_news(PushEnded(endpoint))
        self._pushes[peer_worker].clear()
        self._elect()

    # --- Showing --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return who is there, ready for JSON."""
        open_by = self._shared.open_by()
        return {
            "worker": self._place.number,
            "workers": self._place.count,
            "leading": self.leading,
            "readers": len(self._outlet.readers),
            "readers_dropped": self._outlet.dropped,
            "events_told": self.told,
            "events_followed": self.followed,
            "siblings": {
                str(number): {
                    "connected": inlet.up,
                    "open_tickets": open_by.get(number, 0),
                    "connections_failed": inlet.failed,
                }
                for number, inlet in self._inlets.items()
            },
        }
