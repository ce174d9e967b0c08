"""Suspicion: connects decisions and the proxy's log with the rules of ``blame.deaths``.

Rules:

1. The whole bodies of requests without a verdict are kept, with their clients: at most
   ``MAX_BYTES``, and ``MAX_OPEN`` bodies. Those pushed out are replaced by their fingerprints while
   they run (at most ``MAX_OPEN`` more), and dropped when they ended. Otherwise no body is hashed
   while nothing is held against any request. Of a body that was not read to its end nothing but the
   client is kept.
2. From the first death until all deaths have expired, each request with a whole body has its
   fingerprint taken before the decision, and is compared with the bodies of suspects. Its standing,
   its kinds and its caller decide whether and where it runs.
3. The latest bodies that were answered are kept, at most ``ANSWERED`` and ``KEPT_BYTES``: a body
   among them is no suspect, however many replicas die while they have it, and is not confined for
   its kind or its caller.
4. Deaths, bodies of suspects, cleared fingerprints and running members are events for peer
   workers. Events of peer workers are followed and raise no events here.
5. A running member keeps its place until its ticket settles.

Bodies are references to what the proxy sent; nothing is copied.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ext_proc.blame.alike import MAX_BYTES as MOST_ALIKE
from ext_proc.blame.alike import TOTAL_BYTES, Alike
from ext_proc.blame.deaths import UNKNOWN_REQUEST, Deaths, SuspectStanding, Who
from ext_proc.blame.fingerprint import Fingerprints
from ext_proc.routing.values.refusal import MUST_WAIT, Refusal, RefusalKind
from ext_proc.routing.values.request import Care

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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

MAX_TOLD: Final = 2 * TOTAL_BYTES
"""Bytes of bodies that are sent to peer workers until nothing is held any more."""

USUAL_S: Final = 1.0
"""Time for which what was found usual is taken to be so."""
LEAST_COMMON: Final = 8
_REFUSED: Final = Refusal(
    RefusalKind.DEADLY_REQUEST,
    "replicas died each time they had this request; it is refused for a minute",
)


class Died(NamedTuple):
    """A replica broke its connection with a request that it had read, unanswered."""

    replica: str
    """Id of the endpoint."""
    who: Who
    at: float
    """Monotonic seconds."""
    answered: bool
    """The same body was answered well recently."""


class SuspectBody(NamedTuple):
    """The body of a suspect, short enough to be compared with others."""

    fingerprint: bytes
    pool: str
    body: bytes
    kinds: tuple[bytes, ...]


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


SuspicionEvent = Died | SuspectBody | SuspectCleared | SuspectRun | Gone | CallerLeft
SUSPICION_EVENTS: Final = (Died, SuspectBody, SuspectCleared, SuspectRun, Gone, CallerLeft)

_Kept = tuple[str, str, bytes | None, str | None]
"""Pool, model, body (``None`` = not read to its end) and client."""


class RecentSample(Protocol):
    """A sample of the latest decisions (``routing.explain``)."""

    def shares(self, pool: str, /) -> Mapping[str, float]:
        """Return each known client's share of a pool's decisions."""

    def bodies(self, pool: str, /) -> Sequence[tuple[str | None, bytes | None]]:
        """Return models and bodies of a pool's latest decisions; ``None`` = not known."""


class _Usual(NamedTuple):
    """What is usual in a pool."""

    at: float
    """When this was found, monotonic seconds."""
    shares: Mapping[bytes, float]
    """Shares of callers: the smaller one of that in the sample, which a flood does not raise, and
    that in the bodies answered last before the first death, which are many."""
    common: dict[bytes, bool]
    """Whether kinds are common, as far as it was asked."""


class _Named(NamedTuple):
    """A request whose fingerprint was taken, if it has one."""

    who: Who
    pool: str
    body: bytes | None
    """``None`` = not read, or not kept any more."""


_UNKNOWN: Final = _Named(UNKNOWN_REQUEST, "", None)


class Suspicion:
    """Bodies of requests that may yet break, and what is held against them.

    Args:
        is_open: Returns whether a ticket's request still runs.
        on_event: Receives each change, for peer workers; ``None`` = there are none.
        catch_up: Reads what peer workers have sent; called before a request is
            decided that is a member or like a suspect.
        recent: A sample of the latest decisions, by which clients and kinds are found common.
    """

    def __init__(
        self,
        is_open: Callable[[int], object],
        on_event: Callable[[SuspicionEvent], None] | None = None,
        catch_up: Callable[[], None] | None = None,
        recent: RecentSample | None = None,
    ) -> None:
        self.deaths = Deaths()
        self.alike = Alike()
        """Bodies of suspects."""
        self.open: dict[int, _Kept | _Named] = {}
        """Bodies or fingerprints by ticket, of requests without a verdict."""
        self.confined = 0
        """Requests that were confined or had to wait."""
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
        self._recent = recent
        self._usual: dict[str, _Usual] = {}
        """What is usual in each pool."""
        self._judging: frozenset[str] = frozenset()
        """Pools that refuse deadly requests."""
        self._answered: deque[tuple[str, str, bytes, str | None]] = deque()
        self._answerers: Counter[tuple[str, str | None]] = Counter()
        """How many of the bodies answered last before the first death were each client's, by pool
        and client."""
        self._answered_left = KEPT_BYTES
        self._told_left = MAX_TOLD
        self._alibis: dict[bytes, None] = {}
        """Fingerprints of the latest answered bodies, kept while something is held."""
        self._running: dict[int, bytes] = {}
        """Members that run, by ticket."""

    def __repr__(self) -> str:
        return f"<Suspicion open={len(self.open)} {self.deaths!r}>"

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Take the fleet's seed from its pools; another seed forgets all that was kept."""
        self._judging = frozenset(name for name, pool in pools.items() if pool.refuse_deadly)
        seed = max([pool.seed for pool in pools.values()], default=self._seed)
        if seed != self._seed:
            self._seed, self._fingerprints = seed, Fingerprints(seed)
            self.deaths.clear()
            self.alike.clear()
            self.open.clear()
            self._usual.clear()
            self._left, self._answered_left = MAX_BYTES, KEPT_BYTES
            for kept in (self._bodies, self._hashed, self._answered, self._alibis, self._running):
                kept.clear()
            self._answerers.clear()

    # --- Decisions ------------------------------------------------------------------------------

    def admit(self, request: Request, now: float) -> Refusal | None:
        """Return the refusal of a request, or ``None`` with the care that it needs set.

        Call it while ``deaths.active``.

        Args:
            request: The request; one without a whole body needs no care.
            now: Monotonic seconds.
        """
        if request.pool not in self._judging or not request.features.is_inference:
            return None
        found = self._check(request, now)
        if isinstance(found, Refusal):
            return found
        request.care = found
        return None

    def _check(self, request: Request, now: float) -> Care | Refusal | None:
        deaths, body, pool, caller = self.deaths, request.body, request.pool, None
        if request.client is not None:
            caller = self._fingerprints.caller(pool, request.client)
        if body is None:
            return None if caller is None else self._confine(Who(None, (), caller), request, now)
        fingerprint = self._fingerprints.of(pool, request.features.model or "", body)
        standing = deaths.standing(fingerprint, now)
        if standing is SuspectStanding.MEMBER and self._catch_up is not None:
            self._catch_up()
            standing = deaths.standing(fingerprint, now)
        if standing is SuspectStanding.CONDEMNED:
            return _REFUSED
        if standing is SuspectStanding.WAITS:
            return MUST_WAIT
        if standing is SuspectStanding.CLEAR and fingerprint in self._alibis:
            return Care(fingerprint)
        who = Who(fingerprint, self.alike.kinds(pool, body), caller)
        care = self._confine(who, request, now)
        if care is not None:
            return care
        suspected = standing is SuspectStanding.SUSPECT
        return Care(fingerprint, suspected=suspected, kinds=who.kinds)

    def _confine(self, who: Who, request: Request, now: float) -> Care | Refusal | None:
        """Return the care of a confined request, or that it must wait; ``None`` = it is free.

        A second replica must not read a request that is free but like a suspect.
        """
        deaths, usual, name = self.deaths, self._usual_in(request.pool, now), who.name
        shares, is_common = usual.shares, self._common(usual, request.pool)
        if not shares and who.caller is not None:
            # This worker has decided on no request of the pool yet, so it knows no other caller.
            shares = {who.caller: 1.0}
        only = deaths.confined(who, now, shares, is_common)
        free = only is None and deaths.repeatable(who, now, shares, is_common)
        if not free and self._catch_up is not None:
            self._catch_up()  # another worker may know of one more death by what is like this
            only = deaths.confined(who, now, shares, is_common)
            free = only is None and deaths.repeatable(who, now, shares, is_common)
        if only is None:
            if not free:
                request.repeatable = False
            return None
        self.confined += 1
        if name is None or not deaths.may_run(name, now):
            return MUST_WAIT
        avoid = deaths.avoided(now)
        return Care(name, suspected=True, member=True, avoid=avoid, only=only, kinds=who.kinds)

    def _usual_in(self, pool: str, now: float) -> _Usual:
        known = self._usual.get(pool)
        if known is not None and now - known.at < USUAL_S:
            return known
        caller, shares = self._fingerprints.caller, dict[bytes, float]()
        before = sum(count for (where, _), count in self._answerers.items() if where == pool)
        for client, part in {} if self._recent is None else self._recent.shares(pool).items():
            share = self._answerers[pool, client] / before if before else part
            shares[caller(pool, client)] = min(share, part)
        made = self._usual[pool] = _Usual(now, shares, {})
        return made

    def _common(self, usual: _Usual, pool: str) -> Callable[[bytes], bool]:
        """Return a function that tells whether most sampled requests are of a kind.

        Those that are held against do not count: else a killer would make its kind common.
        """

        def is_common(kind: bytes) -> bool:
            known = usual.common.get(kind)
            if known is None:
                bodies = [] if self._recent is None else self._recent.bodies(pool)
                made, deaths = self._fingerprints, self.deaths
                same = sum(
                    body is not None
                    and kind in self.alike.kinds(pool, body)
                    and not deaths.holds(made.of(pool, model or "", body))
                    for model, body in bodies
                )
                known = usual.common[kind] = same >= LEAST_COMMON and 2 * same > len(bodies)
            return known

        return is_common

    def picked(self, ticket_id: int, replica: str, request: Request, now: float) -> None:
        """Keep a picked request until its verdict (rule 1).

        Args:
            ticket_id: Its ticket.
            replica: Id of the endpoint picked.
            request: The request.
            now: Monotonic seconds.
        """
        care, body, bodies = request.care, request.body, self._bodies
        if care is None and body is None and request.client is None:
            return
        if care is None:
            self.open[ticket_id] = request.pool, request.features.model or "", body, request.client
        else:
            self._name(ticket_id, request, care)
            if care.member:
                self._running[ticket_id] = care.fingerprint
                self.deaths.started(care.fingerprint, replica)
                self._tell(SuspectRun(care.fingerprint, replica, now))
        bodies.append(ticket_id)
        if body is not None:
            self._left -= len(body)
        if self._left < 0 or len(bodies) > MAX_OPEN:
            self._push_out()

    def _name(self, ticket_id: int, request: Request, care: Care) -> None:
        pool, body, client = request.pool, request.body, request.client
        caller = None if client is None else self._fingerprints.caller(pool, client)
        who = Who(None if body is None else care.fingerprint, care.kinds, caller)
        self.open[ticket_id] = _Named(who, pool, body)

    def identity(self, ticket_id: int) -> tuple[object, ...] | None:
        """Return what identifies the body of a request without a verdict; ``None`` = not kept.

        Of a long body the beginning and the length do: equal bodies are what matters here.
        """
        known = self.open.get(ticket_id)
        if known is None:
            return None
        if isinstance(known, _Named):
            return None if known.who.fingerprint is None else (known.who.fingerprint,)
        pool, model, body, _ = known
        return None if body is None else (pool, model, len(body), body[:MAX_ANSWERED_BYTES])

    def _push_out(self) -> None:
        """Drop the oldest requests, or replace their bodies by fingerprints while they run."""
        bodies = self._bodies
        while bodies and (self._left < 0 or len(bodies) > MAX_OPEN):
            ticket_id = bodies.popleft()
            known = self.open.get(ticket_id)
            if known is None:
                continue
            if self._is_open(ticket_id):
                self._shorten(ticket_id, self._named(known))
            else:
                self._left += len(known[2] or b"")
                del self.open[ticket_id]

    def _named(self, known: _Kept | _Named) -> _Named:
        """Return a request with its fingerprint and its caller."""
        if isinstance(known, _Named):
            return known
        pool, model, body, client = known
        made = self._fingerprints
        fingerprint = None if body is None else made.of(pool, model, body)
        caller = None if client is None else made.caller(pool, client)
        return _Named(Who(fingerprint, (), caller), pool, body)

    def _shorten(self, ticket_id: int, named: _Named) -> None:
        """Keep a request without its body."""
        self._left += len(named.body or b"")
        self.open[ticket_id] = named._replace(body=None)
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

    def answered(self, ticket_id: int, replica: str, now: float) -> None:
        """Note that a replica answered a request of ``open``, with a status below 500."""
        known = self.open.pop(ticket_id, None)
        if known is None:
            return
        body = known[2]
        if body is not None:
            self._left += len(body)
        if self.deaths.active:
            self.deaths.alive(replica, now)
            fingerprint = self._named(known).who.fingerprint
            if fingerprint is not None:
                self._clear(fingerprint)
        elif body is not None and len(body) <= MAX_ANSWERED_BYTES and not isinstance(known, _Named):
            answered = self._answered
            answered.append((known[0], known[1], body, known[3]))
            left = self._answered_left - len(body)
            while left < 0 or len(answered) > ANSWERED:
                left += len(answered.popleft()[2])
            self._answered_left = left

    def _clear(self, fingerprint: bytes) -> None:
        alibis = self._alibis
        alibis[fingerprint] = None
        if len(alibis) > ANSWERED:
            del alibis[next(iter(alibis))]
        if self.deaths.answered(fingerprint):
            self.alike.forget(fingerprint)
            self._tell(SuspectCleared(fingerprint))

    def died(self, ticket_id: int, replica: str, now: float) -> None:
        """Note that a replica broke its connection with a request that it had read, unanswered."""
        self._recall()
        known = self.open.get(ticket_id)
        named = _UNKNOWN if known is None else self._named(known)
        who, body = named.who, named.body
        answered = who.fingerprint in self._alibis
        if body is not None:
            self.open[ticket_id] = named
            if who.fingerprint is not None and not answered:
                who = self._remember(who, who.fingerprint, named.pool, body)
        self.deaths.died(replica, who, now, answered=answered)
        self._tell(Died(replica, who, now, answered))

    def _recall(self) -> None:
        """Take the fingerprints and the clients of the bodies that were answered lately."""
        while self._answered:
            pool, model, answered, client = self._answered.popleft()
            self._alibis[self._fingerprints.of(pool, model, answered)] = None
            self._answerers[pool, client] += 1
        self._answered_left = KEPT_BYTES

    def _remember(self, who: Who, fingerprint: bytes, pool: str, body: bytes) -> Who:
        """Keep the body of a suspect for comparisons; return it with its kinds."""
        kinds = self.alike.keep(fingerprint, pool, body, who.kinds)
        if len(body) <= min(MOST_ALIKE, self._told_left):
            self._told_left -= len(body)
            self._tell(SuspectBody(fingerprint, pool, body, kinds))
        return who._replace(kinds=kinds)

    def gone(self, replica: str, now: float) -> None:
        """Note that a replica restarted, or could not be reached."""
        if now - self.deaths.gone_at(replica) >= AGAIN_S:
            self.deaths.gone(replica, now)
            self._tell(Gone(replica, now))

    def probe_failed(self, replica: str, now: float) -> None:
        """Note that a replica is not ready, or that its page cannot be read or shows a restart.

        Peer workers know it.
        """
        self.deaths.gone(replica, now, probe=True)

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
            self.alike.clear()
            self._usual.clear()
            self._answerers.clear()
            self._told_left = MAX_TOLD
        return found

    # --- Peer workers ---------------------------------------------------------------------------

    def follow(self, peer_worker: int, event: SuspicionEvent) -> None:
        """Apply an event of a peer worker."""
        deaths = self.deaths
        if isinstance(event, Died):
            self._recall()
            replica, who, at, answered = event
            deaths.died(replica, who, at, answered=answered)
        elif isinstance(event, SuspectBody):
            self.alike.keep(*event)
        elif isinstance(event, SuspectCleared):
            deaths.answered(event.fingerprint)
            self.alike.forget(event.fingerprint)
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
        yield from (SuspectBody(*each) for each in self.alike.kept())
        for replica, at, unknown, confirmed, suspects in self.deaths.kept():
            if unknown:
                yield Died(replica, UNKNOWN_REQUEST, at, False)
            for who, held in suspects:
                yield Died(replica, who, at, not held)
            if confirmed:
                yield Gone(replica, at)
        yield from (SuspectRun(*each, 0.0) for each in self.deaths.running())

    def _tell(self, event: SuspicionEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)
