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
3. The pool is that of the route's cluster. On an unnamed route it is the pool that the request
   names (header, model), else the default pool of the form.
4. The reply clears the route cache if, and only if, the decided pool or variant differs from that
   of the route's cluster: clearing in other cases would draw the canary again.
5. An unreadable body only degrades the decision: if the pool is known, the request is routed by
   what is known, and the replica's own error reaches the caller. If only the body names the pool,
   the request is refused as a bad request. What a pool refuses otherwise is in `soundness`.
6. Missing configuration is no reason to refuse: without any pool, or for a cluster that belongs to
   no known pool, the proxy continues by itself (a pass).
7. If the proxy reports which replica served, the ticket moves to that replica.
8. The ticket settles exactly once, at the end of the stream: done if the reply with the pick was
   handed over, however the stream ended after that; aborted if it was not; shutdown if the picker
   stops first.
9. An illegal event raises `IllegalEventError` and changes nothing.

======== ======================= ========================= ====================== ==============
state    Head                    Body, Trailers            Response               Lost, Stopped
======== ======================= ========================= ====================== ==============
NEW      decide -> DECIDED, or   illegal                   illegal                -> OVER
         request the body
         -> WAITING
WAITING  illegal                 body: decide -> DECIDED   a pass -> DECIDED      -> OVER
                                 (duplex: or hold it)
                                 trailers: a pass
                                 (duplex: decide)
DECIDED  illegal                 an empty reply (a         an empty reply (a      settle -> OVER
                                 pass-through in duplex)   pass-through in
                                                           duplex)
OVER     illegal                 illegal                   illegal                illegal
======== ======================= ========================= ====================== ==============
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ext_proc.exchange.actions import (
    Refuse,
    ReplyBody,
    ReplyHead,
)
from ext_proc.exchange.events import (
    DUPLEX,
    Body,
    Head,
    Lost,
    Response,
    Stopped,
    Trailers,
)
from ext_proc.exchange.first_part import has_first_part, needs_body
from ext_proc.exchange.known import KnownRequest
from ext_proc.exchange.refusals import refuse, too_large
from ext_proc.exchange.replies import (
    EMPTY_HEAD,
    EMPTY_TRAILERS,
    passed_through,
    reply_to_head,
    reply_without_decision,
    request_body,
    write_pick,
)
from ext_proc.exchange.soundness import judge, judge_headers
from ext_proc.exchange.state import DECIDED, NEW, OVER, WAITING, ExchangeState
from ext_proc.requests import (
    BadRequest,
    read_body,
    read_head,
    served_by,
    session_of,
    split_adapter,
    token_blocks,
)
from ext_proc.routing.values.refusal import Refusal
from ext_proc.routing.values.request import GRPC_STREAM, Request
from ext_proc.routing.values.ticket import ABORTED, DONE, SHUTDOWN, Ticket
from tidegate_api.names import UNNAMED_ROUTE_PREFIX, parse_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.exchange.actions import Action, Pick
    from ext_proc.exchange.events import Event
    from ext_proc.exchange.router import RequestRouter
    from ext_proc.requests import Chats, Tokenizer
    from ext_proc.routing.values.pool import Pool

# Tuples: a union in `isinstance` would be built anew at each call.
_ENDS: Final = (Lost, Stopped)
_REQUEST_PARTS: Final = (Body, Trailers)

_cluster_of: Final = lru_cache(maxsize=4096)(parse_cluster)
"""Every request names a cluster, and there are few of them."""

_NO_TOKENIZERS: Final[Mapping[str, Tokenizer]] = MappingProxyType({})
_NO_CHATS: Final[Mapping[str, Chats]] = MappingProxyType({})


class IllegalEventError(Exception):
    """The state does not allow the event; nothing has changed."""


def _illegal(event: Event, state: ExchangeState) -> IllegalEventError:
    return IllegalEventError(f"{type(event).__name__} in state {state.value}")


class Exchange:
    """The state machine of one exchange; the module states its rules.

    Args:
        router: The request router.
        tokenizers: Loaded tokenizers, by the path that pools name.
        chats: Chats of pools that name a template, by pool.
    """

    __slots__ = (
        "_chats",
        "_duplex_request",
        "_duplex_response",
        "_router",
        "_ticket",
        "_tokenizers",
        "_waiting",
        "moved",
        "passed",
        "state",
        "unreadable",
    )

    def __init__(
        self,
        router: RequestRouter,
        tokenizers: Mapping[str, Tokenizer] = _NO_TOKENIZERS,
        chats: Mapping[str, Chats] = _NO_CHATS,
    ) -> None:
        self._router = router
        self._tokenizers = tokenizers
        self._chats = chats
        self._duplex_request = False
        self._duplex_response = False
        self._ticket: Ticket | None = None
        self._waiting: KnownRequest | None = None
        """Set only in state WAITING."""
        self.state = NEW
        self.moved = False
        """A replica other than the pick served the request."""
        self.passed: str | None = None
        """Reason why no replica was chosen without a refusal; ``None`` otherwise."""
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
        if state is OVER or state is NEW:
            raise _illegal(event, state)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if waiting.held is not None and isinstance(event, _REQUEST_PARTS):
                return self._on_chunk(waiting, waiting.held, event, now, unix_now)
            if isinstance(event, Body):
                decided = self._on_body(waiting, event, now, unix_now)
                return (decided if isinstance(decided, Refuse) else ReplyBody(decided),)
            # No body message will come. A reply to trailers cannot carry a pick, and a response
            # before the decision is the proxy's own answer.
            self._pass("no-body")
        if isinstance(event, Response) and event.served is not None and self._ticket is not None:
            ticket = self._router.served(self._ticket, event.served, now)
            self.moved = self.moved or ticket is not self._ticket
            self._ticket = ticket
        return reply_without_decision(
            event, duplex_request=self._duplex_request, duplex_response=self._duplex_response
        )

    # --- the request --------------------------------------------------------------------------

    def _on_head(self, head: Head, now: float, unix_now: float) -> tuple[Action, ...]:
        sent = head.request_body
        self._duplex_request = sent is DUPLEX
        self._duplex_response = head.response_body is DUPLEX
        known = self._locate(head)
        if isinstance(known, str):
            return (self._pass(known),)
        readable = needs_body(head, known.features.form, known.pool)
        features = known.features
        if known.pool is None and (
            features.pool is not None or features.model is not None or not readable
        ):
            found = self._find_pool(known)
            if isinstance(found, Refusal):
                return (self._refuse(known, found),)
            readable = needs_body(head, known.features.form, found)
        if readable:
            self.state = WAITING
            self._waiting = known
            if sent is DUPLEX:
                known.held = bytearray()
                return ()
            return (request_body(known.head, loads=self._wants_loads(known)),)
        decided = self._decide(known, head.subset, now, unix_now)
        if isinstance(decided, Refuse):
            return (decided,)
        return (reply_to_head(head, decided, loads=self._wants_loads(known)),)

    def _wants_loads(self, known: KnownRequest) -> bool:
        """Return whether an override must keep the response headers enabled (ORCA)."""
        if known.pool is not None:
            return known.pool.orca
        return any(pool.orca for pool in self._router.pools.values())

    @property
    def endpoint(self) -> str | None:
        """Id of the replica that has the request, as far as it is known."""
        return None if self._ticket is None else self._ticket.endpoint.id

    def _locate(self, head: Head) -> KnownRequest | str:
        """Read the headers and the route; a string is the reason for a pass."""
        pools = self._router.pools
        if not pools:
            return "no-pools"
        ref = _cluster_of(head.cluster) if head.cluster else None
        if ref is None:
            return "no-cluster"
        unnamed = head.route is not None and head.route.startswith(UNNAMED_ROUTE_PREFIX)
        pool = None if unnamed else pools.get(ref.pool)
        if pool is None and not unnamed:
            return "unknown-cluster"
        return KnownRequest(head, ref, read_head(head.method, head.path, head.headers), pool)

    def _on_chunk(
        self,
        known: KnownRequest,
        held: bytearray,
        event: Body | Trailers,
        now: float,
        unix_now: float,
    ) -> tuple[Action, ...]:
        """Hold a chunk, or decide on the held ones; delayed replies follow the decision."""
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
            decided = self._on_body(known, body, now, unix_now)
        if isinstance(decided, Refuse):
            return (decided,)
        head = ReplyHead(decided)
        if isinstance(event, Trailers):
            # The trailers end the request, so no chunk ends it.
            chunks = passed_through(body.changed(end_of_stream=False)) if held else []
            return (head, *(ReplyBody(pass_through=part) for part in chunks), EMPTY_TRAILERS)
        return (head, *(ReplyBody(pass_through=part) for part in passed_through(body)))

    def _on_body(
        self, known: KnownRequest, body: Body, now: float, unix_now: float
    ) -> Pick | Refuse:
        head = known.head
        if known.pool is not None and (refusal := too_large(body, known.pool)):
            return self._refuse(known, refusal)
        if body.end_of_stream:
            known.body = body.chunk
        else:
            known.repeatable = False
        mistake: BadRequest | None = None
        try:
            known.features = read_body(
                known.features, head.headers, body.chunk, complete=body.end_of_stream
            )
        except BadRequest as error:
            mistake, self.unreadable = error, str(error)
            known.features = error.features or known.features
        # Only the body could name the pool of what could not be read at all.
        if known.pool is None and (mistake is None or mistake.features is not None):
            found = self._find_pool(known)
            refusal = found if isinstance(found, Refusal) else too_large(body, found)
            if refusal is not None:
                return self._refuse(known, refusal)
        features, pool = known.features, known.pool
        if mistake or pool is None or pool.max_tokens or features.tensor_bytes is not None:
            refusal = judge(features, pool, mistake)
            if refusal is not None:
                return self._refuse(known, refusal)
        subset = head.subset if body.subset is None else body.subset
        return self._decide(known, subset, now, unix_now)

    # --- the decision -------------------------------------------------------------------------

    def _find_pool(self, known: KnownRequest) -> Pool | Refusal:
        """Set the pool that the request names, or the default pool of its form."""
        known.features = split_adapter(known.features, served_by(self._router.pools))
        found = self._router.pool_for(known.features, known.head.path, known.ref.protocol)
        if isinstance(found, Refusal):
            return found
        known.pool = self._router.pools[found]
        return known.pool

    def _decide(
        self, known: KnownRequest, subset: frozenset[str] | None, now: float, unix_now: float
    ) -> Pick | Refuse:
        pool = known.pool or self._find_pool(known)
        if isinstance(pool, Refusal):
            return self._refuse(known, pool)
        head, ref = known.head, known.ref
        if head.header_bytes is not None and (refusal := judge_headers(head, pool)):
            return self._refuse(known, refusal)
        features = split_adapter(known.features, pool.models)
        session = session_of(features, head.headers, pool.session_header)
        if session != features.session:
            features.session = session  # safe: readers create the features for this request only
        tokenizer = self._tokenizers.get(pool.tokenizer) if pool.tokenizer else None
        chats = self._chats.get(pool.name) if features.chat is not None else None
        blocks = token_blocks(
            features, pool.block_chars, pool.block_tokens, tokenizer, pool.seed, chats
        )
        request = Request(
            pool=pool.name,
            variant=ref.variant if pool.name == ref.pool else None,
            protocol=ref.protocol,
            features=features,
            blocks=blocks.hashes,
            block_tokens=blocks.block_tokens,
            tokens=blocks.tokens,
            subset=subset,
            headers=head.headers,
            body=known.body if pool.refuse_deadly else None,
            repeatable=known.repeatable,
        )
        decision = self._router.decide(request, now, unix_now)
        if isinstance(decision, Refusal):
            return self._refuse(known, decision)
        self.state = DECIDED
        self._ticket = decision.ticket
        pick = write_pick(decision, ref, features, blocks)
        pick.unreadable = self.unreadable is not None
        return pick

    def _refuse(self, known: KnownRequest, refusal: Refusal) -> Refuse:
        self.state = DECIDED
        return refuse(refusal, known.features.form, known.head.headers, known.head.path)

    def _pass(self, why: str) -> ReplyHead:
        self.state = DECIDED
        self.passed = why
        return EMPTY_HEAD

    def _settle(self, event: Lost | Stopped, now: float) -> None:
        self.state = OVER
        self._waiting = None
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        if isinstance(event, Stopped):
            self._router.settle(ticket, SHUTDOWN, now)
        else:
            self._router.settle(ticket, DONE if event.clean else ABORTED, now)
