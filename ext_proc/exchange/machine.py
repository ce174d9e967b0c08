"""The state machine of one HTTP exchange: when to decide, on what, and what to reply.

Rules:

1. Each `Head`, `Body`, `Trailers` and `Response` is answered by exactly one action of its own kind,
   or by one `Refuse`; `Lost` and `Stopped` are answered by none. Only in duplex may a reply wait:
   the replies to the headers and to the chunks before the decision are all given with the decision,
   in order, and a chunk that is too large for one message is answered by several.
2. There is at most one decision, and its reply is the only one with a pick. The decision is made on
   the headers, unless the body can add information: the request has one, its form is a unary
   inference, and its pool reads bodies or is not known yet (or the form is a call about a model
   whose pool is not known yet). Then it is made on the first body message, which is the only one in
   the buffered modes. In streamed mode chunks are forwarded without waiting, so a decision on the
   body would be too late, and it is made on the headers. In duplex mode chunks wait for replies:
   the decision is made as soon as the first message of a gRPC call, the first `FIRST_PART_BYTES`,
   or the whole body has arrived. It is never made later, so a stream's client need not half-close.
3. The pool is that of the route's cluster. On an unnamed route, and behind a generic proxy
   (``known``), it is the pool that the request names (header, path, body), else the default pool.
4. The reply clears the route cache if, and only if, the decided pool or variant differs from that
   of the route's cluster: clearing in other cases would draw the canary again. Routes of a generic
   proxy are its operator's, and stay.
5. A reading of a body is *known*, *unreadable* or *beyond the bound*. A body that was read but has
   mistakes is known: if the pool is known too, the request is routed, and the replica's own error
   reaches the caller. An unreadable one is refused where only the body names the pool, and where
   Triton would have to read it; elsewhere it is routed by what is known. What a pool refuses
   otherwise is in `soundness`. A request whose reading is beyond the bound is sent to one replica
   once, and never repeated: what it may do there is not known.
6. Missing configuration is no reason to refuse: without any pool, or for a cluster that belongs to
   no known pool, the proxy continues by itself (a pass), unless ``require_pick`` is set.
7. If the proxy reports which replica served, the ticket moves to that replica.
8. The ticket settles exactly once, at the end of the stream: done if the reply with the pick was
   handed over, however the stream ended after that; aborted if it was not, or if the request left
   its replica; shutdown if the picker stops first.
9. An illegal event raises `IllegalEventError` and changes nothing.
10. A client may have ``uploads_per_client`` uploads under way, so that one does not fill what
   replicas take from all; a further one is refused as soon as its body would be asked for. An
   upload counts until its end was seen, one of which only a first part was read until the request
   is over; those of unknown clients do not count.
11. A generic proxy is asked for no body that it did not announce. If it sends the body first, with
    attributes in place of headers, that is decided on. If the stream ends after a pick on the
    headers and nothing more, the end of the request is unknown: the ticket settles as unseen.
12. Where no replica has room, a request may wait (``hold_s`` of its pool; not behind a generic
    proxy, whose patience is not known), and a new sequence for the picker that places it. Its
    reply is one `KeepWaiting` now, and later, once it is decided (``when_released``), what
    ``released`` returns. Only its end may come meanwhile.
13. The deadline of headers counts from their arrival, and that of a body from the decision, as a
    replica's would. A request whose deadline has passed is refused.
14. A request whose replica is found hung leaves it (``leave``), by an answer that is no reply to an
    event, unless a part of a response was seen. One that waited (rule 12) does so like any other,
    once it is decided; one that comes again after that may wait like any other.

======== ======================= ========================= ====================== ==============
state    Head                    Body, Trailers            Response               Lost, Stopped
======== ======================= ========================= ====================== ==============
NEW      decide -> DECIDED, or   a body with a head:       illegal                -> OVER
         request the body        decide -> DECIDED
         -> WAITING              else illegal
WAITING  illegal                 body: decide -> DECIDED   a pass -> DECIDED      -> OVER
                                 (duplex: or hold it)
                                 trailers: a pass
                                 (duplex: decide)
QUEUED   illegal                 illegal                   illegal                leave -> OVER
DECIDED  illegal                 an empty reply (a         an empty reply (a      settle -> OVER
                                 pass-through in duplex)   pass-through in
                                                           duplex)
OVER     illegal                 illegal                   illegal                illegal
======== ======================= ========================= ====================== ==============
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from ext_proc.exchange.known import (
    LOST_END,
    TRAILERS,
    USUAL,
    ended_by_trailers,
    has_first_part,
    is_generic,
    lacks_model,
    locate,
    loses_end,
    may_move,
    may_pass,
    names_nothing,
    needs_body,
    patience_until,
    request_of,
    too_large,
)
from ext_proc.exchange.messages import (
    DUPLEX,
    EMPTY_BODY,
    EMPTY_HEAD,
    EMPTY_TRAILERS,
    GATHERED,
    NONE,
    ONCE_HEAD,
    STRIPPED_HEAD,
    Body,
    Head,
    KeepWaiting,
    Lost,
    Refuse,
    ReplyBody,
    ReplyHead,
    Response,
    Stopped,
    Trailers,
    passed_through,
    reply_to_head,
    reply_without_decision,
    request_body,
    rest_of_time,
    write_pick,
)
from ext_proc.exchange.refusals import leave, refuse
from ext_proc.exchange.soundness import judge, judge_headers
from ext_proc.requests import BadRequest, read_body, read_head, served_by, split_adapter
from ext_proc.requests.parsing.values import sooner
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.relief import PASS
from ext_proc.routing.state.leases import PLACED_S
from ext_proc.routing.values.proposal import PlacedAs
from ext_proc.routing.values.refusal import (
    DEADLINE_PASSED,
    NO_MODEL,
    NO_PICK,
    SATURATED,
    TOO_MANY_UPLOADS,
    Refusal,
)
from ext_proc.routing.values.request import GRPC_STREAM, OTHER
from ext_proc.routing.values.ticket import ABORTED, DONE, SHUTDOWN, UNSEEN, Ticket
from tidegate_api.names import UNTIL_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.exchange.known import ExchangeOptions, KnownRequest
    from ext_proc.exchange.messages import Action, Event, Pick
    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.proposal import Proposal
    from ext_proc.routing.values.request import Form


class ExchangeState(Enum):
    """State of an exchange."""

    NEW = "new"
    WAITING = "waiting"
    """Waiting for the body, to decide on it."""
    QUEUED = "queued"
    """Waiting for a replica with room."""
    DECIDED = "decided"
    """Picked, refused or passed."""
    OVER = "over"


# Python 3.11 takes 0.2 µs to look a member up in its enum, and an exchange compares thirty: here,
# in `messages` and in `routing` members that are compared for each message are constants too.
NEW: Final = ExchangeState.NEW
WAITING: Final = ExchangeState.WAITING
QUEUED: Final = ExchangeState.QUEUED
DECIDED: Final = ExchangeState.DECIDED
OVER: Final = ExchangeState.OVER


class IllegalEventError(Exception):
    """The state does not allow the event; nothing has changed."""


def _illegal(event: object, state: ExchangeState) -> IllegalEventError:
    """Return the error of an event that the state does not allow."""
    return IllegalEventError(f"{type(event).__name__} in state {state.value}")


# Tuples: a union in `isinstance` would be built anew at each call.
_ENDS: Final = (Lost, Stopped)
_REQUEST_PARTS: Final = (Body, Trailers)

ASKED_MORE_S: Final = 1.0
"""Seconds beyond a request's longest wait that the proxy is asked for, so that the reply is in
time."""
MAX_ASKS: Final = 2
"""How often the picker that places a sequence is asked for one request."""
SPARE_S: Final = 0.2
"""Seconds before the end of the time asked for at which the last of these questions ends."""
WAITING_BYTES: Final = 8_192
"""Bytes that a request that waits holds beside its body and prompt, about."""
_WAIT: Final = "wait"
"""Of ``hung_requests``: no request leaves a hung replica."""
_MOVE: Final = "move"
"""Of it: another replica gets what may be repeated."""
_Sent = tuple["Head", "Form", "Pool", bool, "int | None", "float | None"]
"""Of a request that was sent to a replica: head, form and pool; whether another replica may read
it; the length of its body, if it was read; and when its caller will have left, if it says so."""


class Exchange:
    """The state machine of one exchange; the module states its rules.

    Args:
        router: The request router.
        options: What all exchanges share.
    """

    __slots__ = (
        "_duplex",
        "_later",
        "_options",
        "_outcome",
        "_router",
        "_sent",
        "_ticket",
        "_uploading",
        "_waiting",
        "moved",
        "passed",
        "pool",
        "state",
        "unreadable",
    )

    def __init__(self, router: Router, options: ExchangeOptions = USUAL) -> None:
        self._router = router
        self._options = options
        self._duplex = False, False
        """Whether the bodies of request and response are sent in duplex."""
        self._ticket: Ticket | None = None
        self._waiting: KnownRequest | None = None
        """Set only in state WAITING."""
        self._uploading: str | None = None
        """The client whose upload counts as under way."""
        self._later: _Later | None = None
        """Set once the request has waited for a replica."""
        self._outcome = DONE
        """What a clean end of the stream means: `UNSEEN` if it need not be the request's (rule 10),
        `ABORTED` once the request was answered because its replica is hung."""
        self._sent: _Sent | None = None
        """Tells what to do if the replica is found hung; ``None`` = nothing."""
        self.state = NEW
        self.moved = False
        """A replica other than the pick served the request."""
        self.passed: str | None = None
        """Reason why no replica was chosen without a refusal; ``None`` otherwise."""
        self.pool = ""
        """Name of the pool of a request without a pick, or that waited; empty = not known."""
        self.unreadable: str | None = None
        """Error of a body that could not be read; ``None`` otherwise."""

    def on(self, event: Event, now: float, unix_now: float) -> tuple[Action, ...]:
        """Process one event and return the replies to write, in order.

        Args:
            event: The event.
            now: Seconds on the monotonic clock.
            unix_now: Wall-clock seconds.

        Raises:
            IllegalEventError: The state does not allow the event; nothing has changed.
        """
        state = self.state
        if isinstance(event, Head):
            if state is NEW:
                return self._on_head(event, now, unix_now)
            raise _illegal(event, state)
        if isinstance(event, _ENDS):
            if state is OVER:
                raise _illegal(event, state)
            self._settle(event, now)
            return ()
        if state is OVER or state is NEW or state is QUEUED:
            if state is NEW and isinstance(event, Body) and event.head is not None:
                return self._on_body_first(event.head, event, now, unix_now)
            raise _illegal(event, state)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            awaited = self._on_awaited(waiting, event, now, unix_now)
            if awaited is not None:
                return awaited
        return self._on_rest(event, now)

    def _on_rest(self, event: Body | Trailers | Response, now: float) -> tuple[Action, ...]:
        """Answer what needs no decision, and note which replica serves if a response tells."""
        if self._outcome is UNSEEN:
            self._outcome = DONE
        if isinstance(event, Response):
            self._sent = None
            if event.served is not None and self._ticket is not None:
                ticket = self._router.served(self._ticket, event.served, now)
                self.moved = self.moved or ticket is not self._ticket
                self._ticket = ticket
        return reply_without_decision(event, *self._duplex)

    def _on_awaited(
        self, waiting: KnownRequest, event: Event, now: float, unix_now: float
    ) -> tuple[Action, ...] | None:
        """Answer what comes for the awaited body; ``None`` = as after a decision."""
        if waiting.held is not None and isinstance(event, _REQUEST_PARTS):
            return self._on_chunk(waiting, waiting.held, event, now, unix_now)
        if isinstance(event, Body):
            if waiting.head.request_body is NONE and ended_by_trailers(event):
                return (self._refuse(waiting, TRAILERS),)
            decided = self._on_body(waiting, event, now, unix_now)
            if isinstance(decided, KeepWaiting):
                return self._reply_later(decided, _reply_to_body)
            return (decided if isinstance(decided, Refuse) else ReplyBody(decided),)
        # No body message will come. A reply to trailers cannot carry a pick, and a response before
        # the decision is the proxy's own answer.
        self.pool = "" if waiting.pool is None else waiting.pool.name
        passed = self._pass("no-body", waiting.head)
        return (passed,) if isinstance(passed, Refuse) and isinstance(event, Trailers) else None

    # --- the request --------------------------------------------------------------------------

    def _on_head(self, head: Head, now: float, unix_now: float) -> tuple[Action, ...]:
        self._duplex = head.request_body is DUPLEX, head.response_body is DUPLEX
        known = locate(head, self._router.pools)
        if isinstance(known, str):
            return (self._pass(known, head),)
        if self._router.relief.level == PASS and may_pass(known):
            return (self._pass("overloaded", head),)
        known.since = now, unix_now
        if known.features.timeout_s is not None:
            known.deadline = now + known.features.timeout_s
        # An Envoy that is not gated might send twice what it is asked for.
        asks = head.gated and not known.generic
        readable = needs_body(head, known.features.form, known.pool, asks=asks)
        if known.pool is None and (not readable or not names_nothing(known.features)):
            found = self._find_pool(known)
            if isinstance(found, Refusal):
                return (self._not_found(known, found),)
            readable = needs_body(head, known.features.form, found, asks=asks)
        if readable:
            return self._ask(known)
        decided = self._decide(known, head.subset, now, unix_now)
        if isinstance(decided, KeepWaiting):
            return self._reply_later(decided, partial(self._reply_to_head, known))
        return self._reply_to_head(known, decided)

    def _reply_to_head(self, known: KnownRequest, decided: Pick | Refuse) -> tuple[Action, ...]:
        if isinstance(decided, Refuse):
            return (decided,)
        if known.generic:
            self._outcome = UNSEEN
        # An override would switch off what a generic proxy sends of responses.
        keep = known.generic and known.features.form is not GRPC_STREAM
        return (reply_to_head(known.head, decided, loads=self._wants_loads(known), keep=keep),)

    def _reply_later(
        self, wait: KeepWaiting, then: Callable[[Pick | Refuse], tuple[Action, ...]]
    ) -> tuple[Action, ...]:
        """Return the reply to what waits of a decision, and keep what makes the others."""
        if self._later is not None:
            self._later.then = then
        return (wait,)

    def _ask(self, known: KnownRequest) -> tuple[Action, ...]:
        """Ask for the body, or wait for it where it comes by itself."""
        head = known.head
        if head.client is not None and not self._uploads(head.client, known.pool):
            return (self._refuse(known, TOO_MANY_UPLOADS),)
        self.state = WAITING
        self._waiting = known
        if head.request_body is DUPLEX:
            known.held = bytearray()
            return ()
        if head.request_body is NONE:
            known.says_end = True
        return (request_body(head, loads=self._wants_loads(known)),)

    def _uploads(self, client: str, pool: Pool | None) -> bool:
        """Count an upload that begins; return whether it may."""
        if pool is not None:
            bound = pool.uploads_per_client
        else:
            bounds = [each.uploads_per_client for each in self._router.pools.values()]
            bound = 0 if 0 in bounds else max(bounds)
        if bound:
            uploads = self._router.uploads
            count = uploads.get(client, 0)
            if count >= bound:
                return False
            uploads[client], self._uploading = count + 1, client
        return True

    def _uploaded(self) -> None:
        """Count the upload no longer, if it still counts."""
        client, self._uploading = self._uploading, None
        if client is not None:
            uploads = self._router.uploads
            count = uploads.pop(client) - 1
            if count:
                uploads[client] = count

    def _not_found(self, known: KnownRequest, refusal: Refusal) -> ReplyHead | Refuse:
        # A generic proxy may have other upstreams for what is no inference.
        if known.generic and known.features.form is OTHER and names_nothing(known.features):
            return self._pass("no-pool", known.head)
        return self._refuse(known, refusal)

    def _wants_loads(self, known: KnownRequest) -> bool:
        """Return whether an override must keep the response headers enabled (ORCA)."""
        if known.pool is not None:
            return known.pool.orca
        return any(pool.orca for pool in self._router.pools.values())

    @property
    def endpoint(self) -> str | None:
        """Id of the replica that has the request, as far as it is known."""
        return None if self._ticket is None else self._ticket.endpoint.id

    def _on_body_first(
        self, head: Head, body: Body, now: float, unix_now: float
    ) -> tuple[Action, ...]:
        late = head.request_body not in GATHERED  # a replica has been chosen
        known = "too-late" if late else locate(head, self._router.pools)
        if isinstance(known, str):
            passed = self._pass(known, head)
            return (passed if isinstance(passed, Refuse) else EMPTY_BODY,)
        known.since = now, unix_now
        decided = self._on_body(known, body, now, unix_now)
        if isinstance(decided, KeepWaiting):
            return self._reply_later(decided, _reply_to_body)
        return _reply_to_body(decided)

    def _on_chunk(
        self,
        known: KnownRequest,
        held: bytearray,
        event: Body | Trailers,
        now: float,
        unix_now: float,
    ) -> tuple[Action, ...]:
        """Hold a chunk, or decide on the held ones; delayed replies follow the decision."""
        trailed = isinstance(event, Trailers)
        ended = event.end_of_stream if isinstance(event, Body) else True
        if isinstance(event, Body):
            held += event.chunk
            if event.subset is not None:
                known.head = known.head.changed(subset=event.subset)
            if not ended and not has_first_part(held, known.features.form):
                self._waiting = known
                return ()
        body = Body(bytes(held), ended)
        if known.features.form is GRPC_STREAM and not held:  # a stream without messages
            decided = self._decide(known, known.head.subset, now, unix_now)
        else:
            decided = self._on_body(known, body, now, unix_now, trailed=trailed)
        if isinstance(decided, KeepWaiting):
            then = partial(_reply_to_chunks, body, trailed=trailed)
            return self._reply_later(decided, then)
        return _reply_to_chunks(body, decided, trailed=trailed)

    def _on_body(
        self,
        known: KnownRequest,
        body: Body,
        now: float,
        unix_now: float,
        *,
        trailed: bool = False,
    ) -> Pick | Refuse | KeepWaiting:
        """Decide on a body; one that is ``trailed`` Envoy may send twice where it repeats."""
        head = known.head
        if known.pool is not None and (refusal := too_large(body, known.pool)):
            return self._refuse(known, refusal)
        if body.end_of_stream:
            self._uploaded()
            known.body = body.chunk
        elif loses_end(head, body):
            return self._refuse(known, LOST_END)
        known.repeatable = body.end_of_stream and not trailed
        mistake: BadRequest | None = None
        try:
            known.features = read_body(
                known.features, head.headers, body.chunk, complete=body.end_of_stream
            )
        except BadRequest as error:
            mistake, self.unreadable = error, str(error)
            known.features = error.features or known.features
        if known.features.cut:
            known.repeatable = False
        # Only the body could name the pool of what could not be read at all.
        if known.pool is None and (
            mistake is None or mistake.features is not None or not head.path
        ):
            found = self._find_pool(known)
            refusal = found if isinstance(found, Refusal) else too_large(body, found)
            if refusal is not None:
                return self._refuse(known, refusal)
        features, pool = known.features, known.pool
        if (
            mistake
            or pool is None
            or pool.max_tokens
            or features.tensor_bytes is not None
            or features.inflated_bytes is not None
        ):
            refusal = judge(features, pool, mistake)
            if refusal is not None:
                return self._refuse(known, refusal)
        subset = head.subset if body.subset is None else body.subset
        return self._decide(known, subset, now, unix_now)

    # --- the decision -------------------------------------------------------------------------

    def _find_pool(self, known: KnownRequest) -> Pool | Refusal:
        """Set the pool that the request names, or the default pool of its form."""
        if self._options.require_model and lacks_model(known):
            return NO_MODEL
        known.features = split_adapter(known.features, served_by(self._router.pools))
        found = self._router.registry.pool_for(known.features, known.head.path, known.ref.protocol)
        if isinstance(found, Refusal):
            return found
        known.pool = self._router.pools[found]
        return known.pool

    def _decide(
        self, known: KnownRequest, subset: frozenset[str] | None, now: float, unix_now: float
    ) -> Pick | Refuse | KeepWaiting:
        pool = known.pool or self._find_pool(known)
        if isinstance(pool, Refusal):
            return self._refuse(known, pool)
        long = known.head.header_bytes is not None
        refusal = judge_headers(known.head, pool) if long else None
        if known.deadline is not None or pool.timeout_header:
            latest = patience_until(known, pool)
            if latest is not None and latest <= now:
                refusal = DEADLINE_PASSED
        if refusal is not None:
            return self._refuse(known, refusal)
        router = self._router
        scale, cheap = router.scales.of, bool(router.relief.level)
        known.request = request_of(known, pool, subset, self._options, scale, cheap=cheap)
        if pool.hold_s and router.queue.count and not known.generic:
            return self._wait(known, pool, now, unix_now)
        decision = router.decide(known.request, now, unix_now)
        if isinstance(decision, Refusal):
            if pool.hold_s and decision.kind is SATURATED and not known.generic:
                return self._wait(known, pool, now, unix_now)
            return self._place_or_refuse(known, pool, decision, now)
        return self._picked(known, pool, decision)

    def _wait(
        self, known: KnownRequest, pool: Pool, now: float, unix_now: float
    ) -> Pick | Refuse | KeepWaiting:
        """Decide, or let the request wait for a replica with room."""

        def told(decision: Decision | Refusal) -> None:
            if isinstance(decision, Refusal) and decision.proposed is not None:
                latest = waiting.due + ASKED_MORE_S - SPARE_S
                self._place(known, pool, decision, decision.proposed, latest)
            else:
                self._end_wait(known, pool, decision)

        request, deadline = known.request, patience_until(known, pool)
        features = request.features
        if features.timeout_s is not None:
            deadline = sooner(deadline, now + features.timeout_s)
        size = (
            len(known.body or features.prompt or b"") + len(features.prompt or b"") + WAITING_BYTES
        )
        waiting = QueuedRequest(request, size, now, deadline, pool.hold_s, told)
        decision = self._router.wait(waiting, now, unix_now)
        if decision is None:
            self.state = QUEUED
            self._later = _Later(partial(self._router.queue.leave, waiting), in_line=True)
            self.pool = pool.name
            # Envoy sets no time for the replies of a duplex body.
            return KeepWaiting(None if known.held is not None else waiting.due - now + ASKED_MORE_S)
        if isinstance(decision, Refusal):
            return self._place_or_refuse(known, pool, decision, now)
        return self._picked(known, pool, decision)

    def _place_or_refuse(
        self, known: KnownRequest, pool: Pool, refusal: Refusal, now: float
    ) -> Refuse | KeepWaiting:
        if refusal.proposed is None:
            return self._refuse(known, refusal)
        latest = now + PLACED_S + ASKED_MORE_S - SPARE_S
        return self._place(known, pool, refusal, refusal.proposed, latest)

    def _place(
        self,
        known: KnownRequest,
        pool: Pool,
        refusal: Refusal,
        proposal: Proposal,
        latest: float,
        asks: int = MAX_ASKS,
    ) -> KeepWaiting:
        """Ask the picker that places the request's sequence; the request waits for the answer.

        The request has a reply by ``latest``, monotonic seconds: later the proxy would not wait.
        """

        def told(placed: PlacedAs, now: float, unix_now: float) -> None:
            if self.state is not QUEUED:
                return
            decision: Decision | Refusal = refusal
            if placed is not PlacedAs.NOWHERE:
                new = proposal if placed is PlacedAs.AS_PROPOSED else None
                decision = self._router.decide(known.request, now, unix_now, new)
                if isinstance(decision, Refusal) and decision.proposed is not None and asks > 1:
                    # The lease named a replica that the pool does not have here.
                    again = decision.proposed
                    self._place(known, pool, decision, again, latest, asks - 1)
                    return
            self._end_wait(known, pool, decision)

        leave = self._router.place(proposal, told, latest)
        if self._later is None:
            self._later = _Later(leave)
        else:
            self._later.leave = leave
        self.state, self.pool = QUEUED, pool.name
        mute = known.held is not None or known.generic
        return KeepWaiting(None if mute else PLACED_S + ASKED_MORE_S)

    def _end_wait(self, known: KnownRequest, pool: Pool, decision: Decision | Refusal) -> None:
        made: Pick | Refuse
        if isinstance(decision, Refusal):
            made = self._refuse(known, decision)
        else:
            made = self._picked(known, pool, decision)
        if self._later is not None:
            self._later.end(made)

    def when_released(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the request that waits is decided; at once if it is."""
        if self._later is not None and self.state is QUEUED:
            self._later.call = call
        else:
            call()

    def released(self) -> tuple[Action, ...]:
        """Return the replies to a request that waited, once; empty before its decision."""
        later = self._later
        if later is None or not later.replies:
            return ()
        self._later = None  # it holds the request and its body
        return later.replies

    def _picked(self, known: KnownRequest, pool: Pool, decision: Decision) -> Pick:
        head, request = known.head, known.request
        self.state = DECIDED
        self._ticket = ticket = decision.ticket
        ended = known.repeatable if known.says_end else None
        pick = write_pick(decision, known.ref, request, generic=known.generic, ended=ended)
        if known.generic and (head.one_destination or self._options.one_destination):
            pick.only_first()
        pick.unreadable = self.unreadable is not None
        pick.described = pool.describe_picks
        deadline, body = known.deadline, known.body
        if ticket is None:
            return pick
        # What follows from these is computed only where a replica is found hung. The body is not
        # kept for that.
        self._sent = (
            head,
            request.features.form,
            pool,
            known.repeatable and decision.repeatable,
            None if body is None else len(body),
            deadline,
        )
        if deadline is None:
            return pick
        if not known.generic and known.features.form is not GRPC_STREAM:
            rest_s, waited = deadline - ticket.at, self._later is not None
            pick.budget = rest_of_time(head.headers, rest_s, pool.request_s, waited=waited)
            if pool.hung_requests == _MOVE:
                began, unix_began = known.since
                until_s = unix_began + deadline - began
                pick.budget += ((UNTIL_HEADER, str(int(until_s * 1000))),)
        return pick

    def _refuse(self, known: KnownRequest, refusal: Refusal) -> Refuse:
        self.state = DECIDED
        self.pool = "" if known.pool is None else known.pool.name
        return refuse(refusal, known.features.form, known.head.headers, known.head.path)

    def _pass(self, why: str, head: Head) -> ReplyHead | Refuse:
        self.state = DECIDED
        self.passed = why
        if self._options.require_pick:
            form = read_head(head.method, head.path, head.headers).form
            return refuse(NO_PICK, form, head.headers, head.path)
        if is_generic(head):
            return STRIPPED_HEAD
        return ONCE_HEAD if head.hides_end else EMPTY_HEAD

    def fail(self) -> Refuse | None:
        """Refuse a request that could not be handled, if a pick is required."""
        if self.state is DECIDED or self.state is OVER or not self._options.require_pick:
            return None
        waiting, self._waiting = self._waiting, None
        head = Head("", "", {}, end_of_stream=False) if waiting is None else waiting.head
        passed = self._pass("failed", head)
        return passed if isinstance(passed, Refuse) else None

    def leave(self, now: float, *, read_before: bool, mute: bool) -> Refuse | None:
        """Answer the request because its replica is found hung; ``None`` = it stays.

        Args:
            now: Monotonic seconds.
            read_before: Another replica has read the request before.
            mute: The replica does not answer probes either. Without it only a request that another
                replica may get leaves, as its answer may still come.
        """
        if self._sent is None or self.state is not DECIDED:
            return None
        head, form, pool, repeatable, body_bytes, deadline = self._sent
        # Clients of gRPC streams may be silent, and a generic proxy need not know what to do.
        if pool.hung_requests == _WAIT or form is GRPC_STREAM or self._duplex[0]:
            return None
        if is_generic(head):
            return None
        move = repeatable and not read_before and may_move(head, pool, body_bytes)
        if not move and not mute:
            return None
        self._sent, self._outcome = None, ABORTED
        if deadline is not None and deadline <= now:
            return refuse(DEADLINE_PASSED, form, head.headers, head.path)
        return leave(head, form, move=move)

    @property
    def in_line(self) -> bool:
        """Whether it waits for a replica with room, or its replies were not taken yet."""
        return self._later is not None and self._later.in_line

    @property
    def ticket(self) -> Ticket | None:
        """The open ticket."""
        return self._ticket

    def _settle(self, event: Lost | Stopped, now: float) -> None:
        self.state = OVER
        self._waiting = None
        if self._later is not None:
            self._later.leave()
        self._uploaded()
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        if isinstance(event, Stopped):
            self._outcome = SHUTDOWN
        elif not event.clean:
            self._outcome = ABORTED
        self._router.settle(ticket, self._outcome, now)


class _Later:
    """What follows once a request that waits is decided.

    Args:
        leave: Called where its caller is gone before that.
        in_line: It waits for a replica with room.
    """

    __slots__ = ("call", "in_line", "leave", "replies", "then")

    def __init__(self, leave: Callable[[], object], *, in_line: bool = False) -> None:
        self.leave = leave
        self.in_line = in_line
        self.then: Callable[[Pick | Refuse], tuple[Action, ...]] = _reply_to_body
        """Makes the replies."""
        self.call: Callable[[], None] | None = None
        self.replies: tuple[Action, ...] = ()

    def end(self, decided: Pick | Refuse) -> None:
        """Make the replies, and say so."""
        self.replies = self.then(decided)
        if self.call is not None:
            self.call()


def _reply_to_body(decided: Pick | Refuse) -> tuple[Action, ...]:
    return (decided if isinstance(decided, Refuse) else ReplyBody(decided),)


def _reply_to_chunks(body: Body, decided: Pick | Refuse, *, trailed: bool) -> tuple[Action, ...]:
    """Return the replies to the headers and to the chunks of a duplex body that waited."""
    if isinstance(decided, Refuse):
        return (decided,)
    head = ReplyHead(decided)
    if trailed:
        # The trailers end the request, so no chunk ends it.
        chunks = passed_through(body.changed(end_of_stream=False)) if body.chunk else []
        return (head, *(ReplyBody(pass_through=part) for part in chunks), EMPTY_TRAILERS)
    return (head, *(ReplyBody(pass_through=part) for part in passed_through(body)))
