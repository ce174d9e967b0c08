"""Suspicion: connects decisions and the proxy's log with the rules of ``blame.deaths``.

Rules:

1. The whole bodies of requests without a verdict are kept: at most ``MAX_BYTES``, and ``MAX_OPEN``
   bodies. Those pushed out are replaced by their fingerprints while they run (at most ``MAX_OPEN``
   more), and dropped when they ended. Otherwise no body is hashed while nothing is held against any
   request.
2. From the first death until all deaths have expired, each request with a whole body has its
   fingerprint taken before the decision, and its standing decides whether and where it runs.
3. The latest bodies that were answered are kept, at most ``ANSWERED`` and ``KEPT_BYTES``: a body
   among them is no suspect, however many replicas die while they have it.
4. Deaths, cleared fingerprints and running members are events for peer workers. Events of peer
   workers are followed and raise no events here.
5. A running member keeps its place until its ticket settles.

Bodies are references to what the proxy sent; nothing is copied.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.deaths import Deaths, SuspectStanding
from ext_proc.blame.fingerprint import Fingerprints
from ext_proc.routing.values.refusal import MUST_WAIT, Refusal, RefusalKind
from ext_proc.routing.values.request import Care

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ext_proc.blame.deaths import Condemned
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Request

MAX_OPEN: Final = 65_536
MAX_BYTES: Final = 32 * 2**20
ANSWERED: Final = 256
MAX_ANSWERED_BYTES: Final = 32_768
"""Longest body that is kept when it was answered."""
KEPT_BYTES: Final = 2 * MAX_ANSWERED_BYTES
AGAIN_S: Final = 0.25
"""Callers that leave a replica, and failures to reach it, are noted once in this time."""

_REFUSED: Final = Refusal(
    RefusalKind.DEADLY_REQUEST,
    "replicas died each time they had this request; it is refused for a minute",
)


class Died(NamedTuple):
    """A replica broke its connection with a request that it had read, unanswered."""

    replica: str
    """Id of the endpoint."""
    fingerprint: bytes | None
    at: float
    """Monotonic seconds."""
    answered: bool
    """The same body was answered well recently."""


class SuspectCleared(NamedTuple):
    """A suspect was answered."""

    fingerprint: bytes


class SuspectRun(NamedTuple):
    """A copy of a member of several deaths runs, or has ended."""

    fingerprint: bytes
    replica: str | None
    """Id of the endpoint that it was sent to; ``None`` = it has ended."""
    at: float
    """Monotonic seconds."""


class Gone(NamedTuple):
    """A replica restarted, or could not be reached."""

    replica: str
    """Id of the endpoint."""
    at: float
    """Monotonic seconds."""


class CallerLeft(NamedTuple):
    """A caller left a request that a replica had read and not answered."""

    replica: str
    """Id of the endpoint."""
    at: float
    """Monotonic seconds."""


SuspicionEvent = Died | SuspectCleared | SuspectRun | Gone | CallerLeft
SUSPICION_EVENTS: Final = (Died, SuspectCleared, SuspectRun, Gone, CallerLeft)

_Kept = tuple[str, str, bytes]
"""Pool, model and body."""


class Suspicion:
    """Bodies of requests that may yet break, and what is held against them.

    Args:
        is_open: Returns whether a ticket's request still runs.
        on_event: Receives each change, for peer workers; ``None`` = there are none.
        catch_up: Reads what peer workers have sent; called before a member is decided.
    """

    def __init__(
        self,
        is_open: Callable[[int], object],
        on_event: Callable[[SuspicionEvent], None] | None = None,
        catch_up: Callable[[], None] | None = None,
    ) -> None:
        self.deaths = Deaths()
        self.open: dict[int, _Kept | bytes] = {}
        """Bodies or fingerprints by ticket, of requests without a verdict."""
        self._seed = 0
        self._fingerprints = Fingerprints(0)
        self._is_open = is_open
        self._on_event = on_event
        self._catch_up = catch_up
        self._bodies: deque[int] = deque()
        """Tickets in the order in which their bodies came; some have their verdict already."""
        self._hashed: deque[int] = deque()
        """The same of those whose fingerprints are kept."""
        self._left = MAX_BYTES
        self._answered: deque[_Kept] = deque()
        self._answered_left = KEPT_BYTES
        self._alibis: dict[bytes, None] = {}
        """Fingerprints of the latest answered bodies, kept while something is held."""
        self._running: dict[int, bytes] = {}
        """Members that run, by ticket."""

    def __repr__(self) -> str:
        return f"<Suspicion open={len(self.open)} {self.deaths!r}>"

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Take the fleet's seed from its pools; another seed forgets all that was kept."""
        seed = max([pool.seed for pool in pools.values()], default=self._seed)
        if seed != self._seed:
            self._seed, self._fingerprints = seed, Fingerprints(seed)
            self.deaths.clear()
            self.open.clear()
            self._left, self._answered_left = MAX_BYTES, KEPT_BYTES
            for kept in (self._bodies, self._hashed, self._answered, self._alibis, self._running):
                kept.clear()

    # --- Decisions ------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> Refusal | None:
        """Return the refusal of a request, or ``None`` with the care that it needs set.

        Call it while ``deaths.active``.

        Args:
            request: The request; one without a whole body needs no care.
            now: Monotonic seconds.
        """
        if request.body is None:
            return None
        found = self._check(request, request.body, now)
        if isinstance(found, Refusal):
            return found
        request.care = found
        return None

    def _check(self, request: Request, body: bytes, now: float) -> Care | Refusal:
        fingerprint = self._fingerprints.of(request.pool, request.features.model or "", body)
        deaths = self.deaths
        standing = deaths.standing(fingerprint, now)
        if standing is SuspectStanding.MEMBER and self._catch_up is not None:
            self._catch_up()
            standing = deaths.standing(fingerprint, now)
        if standing is SuspectStanding.CONDEMNED:
            return _REFUSED
        if standing is SuspectStanding.WAITS:
            return MUST_WAIT
        if standing is SuspectStanding.MEMBER:
            return Care(fingerprint, suspected=True, member=True, avoid=deaths.avoided(now))
        return Care(fingerprint, suspected=standing is SuspectStanding.SUSPECT)

    def picked(
        self, ticket_id: int, replica: str, request: Request, body: bytes, now: float
    ) -> None:
        """Keep a picked request until its verdict (rule 1).

        Args:
            ticket_id: Its ticket.
            replica: Id of the endpoint picked.
            request: The request.
            body: Its whole body.
            now: Monotonic seconds.
        """
        care = request.care
        if care is None:
            bodies = self._bodies
            self.open[ticket_id] = request.pool, request.features.model or "", body
            bodies.append(ticket_id)
            left = self._left = self._left - len(body)
            if left < 0 or len(bodies) > MAX_OPEN:
                self._push_out()
            return
        self._keep(ticket_id, care.fingerprint)
        if care.member:
            self._running[ticket_id] = care.fingerprint
            self.deaths.started(care.fingerprint, replica)
            self._tell(SuspectRun(care.fingerprint, replica, now))

    def identity(self, ticket_id: int) -> tuple[object, ...] | None:
        """Return what identifies the body of a request without a verdict; ``None`` = not kept.

        Of a long body the beginning and the length do: equal bodies are what matters here.
        """
        known = self.open.get(ticket_id)
        if known is None or isinstance(known, bytes):
            return None if known is None else (known,)
        pool, model, body = known
        return pool, model, len(body), body[:MAX_ANSWERED_BYTES]

    def _push_out(self) -> None:
        """Drop the oldest requests, or replace their bodies by fingerprints while they run."""
        bodies = self._bodies
        while self._left < 0 or len(bodies) > MAX_OPEN:
            ticket_id = bodies.popleft()
            known = self.open.get(ticket_id)
            if known is None or isinstance(known, bytes):
                continue
            self._left += len(known[2])
            if self._is_open(ticket_id):
                self._keep(ticket_id, self._fingerprints.of(*known))
            else:
                del self.open[ticket_id]

    def _keep(self, ticket_id: int, fingerprint: bytes) -> None:
        self.open[ticket_id] = fingerprint
        self._hashed.append(ticket_id)
        while len(self._hashed) > MAX_OPEN:
            self.open.pop(self._hashed.popleft(), None)

    def settled(self, ticket_id: int, now: float) -> None:
        """Note that a request ended; call it while ``deaths.active``."""
        fingerprint = self._running.pop(ticket_id, None)
        if fingerprint is not None:
            self.deaths.ended(fingerprint, now)
            self._tell(SuspectRun(fingerprint, None, now))

    # --- The proxy's log ------------------------------------------------------------------------

    def answered(self, ticket_id: int) -> None:
        """Note that a request of ``open`` was answered, with a status below 500."""
        known = self.open.pop(ticket_id, None)
        if known is None:
            return
        if isinstance(known, bytes):
            self._clear(known)
            return
        self._left += len(known[2])
        if self.deaths.active:
            self._clear(self._fingerprints.of(*known))
        elif len(known[2]) <= MAX_ANSWERED_BYTES:
            answered = self._answered
            answered.append(known)
            left = self._answered_left - len(known[2])
            while left < 0 or len(answered) > ANSWERED:
                left += len(answered.popleft()[2])
            self._answered_left = left

    def _clear(self, fingerprint: bytes) -> None:
        alibis = self._alibis
        alibis[fingerprint] = None
        if len(alibis) > ANSWERED:
            del alibis[next(iter(alibis))]
        if self.deaths.answered(fingerprint):
            self._tell(SuspectCleared(fingerprint))

    def died(self, ticket_id: int, replica: str, now: float) -> None:
        """Note that a replica broke its connection with a request that it had read, unanswered."""
        known = self.open.get(ticket_id)
        fingerprint = known if isinstance(known, bytes) else None
        if known is not None and not isinstance(known, bytes):
            fingerprint = self._fingerprints.of(*known)
            self._left += len(known[2])
            self._keep(ticket_id, fingerprint)
        while self._answered:
            self._alibis[self._fingerprints.of(*self._answered.popleft())] = None
        self._answered_left = KEPT_BYTES
        answered = fingerprint in self._alibis
        self.deaths.died(replica, fingerprint, now, answered=answered)
        self._tell(Died(replica, fingerprint, now, answered))

    def gone(self, replica: str, now: float) -> None:
        """Note that a replica restarted, or could not be reached."""
        if now - self.deaths.gone_at(replica) >= AGAIN_S:
            self.deaths.gone(replica, now)
            self._tell(Gone(replica, now))

    def left(self, replica: str, now: float) -> None:
        """Note that a caller left a request that a replica had read and not answered."""
        if now - self.deaths.left_at(replica) >= AGAIN_S:
            self.deaths.left(replica, now)
            self._tell(CallerLeft(replica, now))

    def sweep(self, now: float) -> list[Condemned]:
        """Drop what has expired, about once a second; return what was condemned since."""
        deaths = self.deaths
        if not deaths.active:
            return []
        found = deaths.sweep(now)
        if not self.deaths.active:
            self._alibis.clear()
        return found

    # --- Peer workers ---------------------------------------------------------------------------

    def follow(self, peer_worker: int, event: SuspicionEvent) -> None:
        """Apply an event of a peer worker."""
        deaths = self.deaths
        if isinstance(event, Died):
            replica, fingerprint, at, answered = event
            deaths.died(replica, fingerprint, at, answered=answered)
        elif isinstance(event, SuspectCleared):
            deaths.answered(event.fingerprint)
        elif isinstance(event, Gone):
            deaths.gone(event.replica, event.at)
        elif isinstance(event, CallerLeft):
            deaths.left(event.replica, event.at)
        elif event.replica is None:
            deaths.ended(event.fingerprint, event.at)
        else:
            deaths.started(event.fingerprint, event.replica, peer_worker)

    def events(self) -> Iterator[SuspicionEvent]:
        """Yield events that reproduce what is held, for a worker that starts."""
        for replica, at, unknown, confirmed, suspects in self.deaths.kept():
            if unknown:
                yield Died(replica, None, at, False)
            for fingerprint, held in suspects:
                yield Died(replica, fingerprint, at, not held)
            if confirmed:
                yield Gone(replica, at)
        yield from (SuspectRun(*each, 0.0) for each in self.deaths.running())

    def _tell(self, event: SuspicionEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
