"""What an exchange is told and what it replies, independent of Envoy's messages.

*Events* come in: the parts of a request and of its response, and the end of the stream. *Actions*
go out: the replies to write. Both are immutable by convention.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.plain import Plain
from tidegate_api.names import (
    CONTROL_CLUSTER_HEADER,
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    DESTINATION_HEADER,
    MAX_RETRIES_HEADER,
    MISSING_HEADER,
    NOT_REPEATABLE,
    READS_HEADER,
    REPEAT_MISSING,
    REPEATABLE,
    REPEATABLE_HEADER,
    REQUEST_TIMEOUT_HEADER,
    RETRY_ON_HEADER,
    TIMEOUT_HEADER,
    TRY_TIMEOUT_HEADER,
    ClusterRef,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.pipeline.scheduler import Decision
    from ext_proc.routing.values.request import Request


class BodySending(Enum):
    """How the proxy announced that it sends bodies (Envoy's ``BodySendMode``)."""

    NONE = "none"
    """Not at all, unless the reply to the headers requests it."""
    BUFFERED = "buffered"
    """In one message with the whole body."""
    PARTIAL = "partial"
    """In one message with the whole body, or as much as fits."""
    STREAMED = "streamed"
    """In chunks that are forwarded without waiting for a reply."""
    DUPLEX = "duplex"
    """In chunks that are forwarded only as far as the replies return them."""


NONE: Final = BodySending.NONE  # see `machine`
BUFFERED: Final = BodySending.BUFFERED
PARTIAL: Final = BodySending.PARTIAL
STREAMED: Final = BodySending.STREAMED
DUPLEX: Final = BodySending.DUPLEX
_SENT_ON: Final = (PARTIAL, STREAMED, DUPLEX)
GATHERED: Final = (BUFFERED, PARTIAL)


class Head(Plain):
    """The request headers: always the first event.

    Args:
        method: HTTP method.
        path: Path with its query.
        headers: Headers by lower-case name, without pseudo-headers; repeated ones are joined by
            commas.
        end_of_stream: The request has no body.
        cluster: Name of the cluster to which the proxy's route leads.
        route: Name of the matched route.
        request_body: How the request body is sent.
        response_body: How the response body is sent.
        subset: ``ip:port`` or ``ip`` entries that limit the choice; ``None`` = no limit.
        header_bytes: Length of all headers as HTTP/1.1 writes them, about; ``None`` = short.
        one_destination: The proxy says that it reads one address, not a list.
        client: Who sent it (``ext_proc.server.wire``); ``None`` = unknown.
        gated: The proxy repeats no request whose end is not known (`REPEATABLE_HEADER`).
        protocol: What the client speaks, such as ``HTTP/2``; ``None`` = unknown.
    """

    __slots__ = (
        "client",
        "cluster",
        "end_of_stream",
        "gated",
        "header_bytes",
        "headers",
        "method",
        "one_destination",
        "path",
        "protocol",
        "request_body",
        "response_body",
        "route",
        "subset",
    )

    def __init__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        end_of_stream: bool,
        cluster: str | None = None,
        route: str | None = None,
        request_body: BodySending = BodySending.NONE,
        response_body: BodySending = BodySending.NONE,
        subset: frozenset[str] | None = None,
        header_bytes: int | None = None,
        one_destination: bool = False,
        client: str | None = None,
        gated: bool = True,
        protocol: str | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.end_of_stream = end_of_stream
        self.cluster = cluster
        self.route = route
        self.request_body = request_body
        self.response_body = response_body
        self.subset = subset
        self.header_bytes = header_bytes
        self.one_destination = one_destination
        self.client = client
        self.gated = gated
        self.protocol = protocol

    @property
    def hides_end(self) -> bool:
        """Return whether the proxy sends on a body before it and the picker know its end.

        Envoy sends such a body twice if trailers end it and the request may be retried.
        """
        return not self.end_of_stream and self.request_body in _SENT_ON


class Body(Plain):
    """A part of the request body, or all of it.

    Args:
        chunk: Bytes of the part.
        end_of_stream: This is the last part.
        subset: As in `Head`; ``None`` keeps the value of the headers.
        head: What attributes tell of the request where no headers were sent before the body.
    """

    __slots__ = ("chunk", "end_of_stream", "head", "subset")

    def __init__(
        self,
        chunk: bytes,
        end_of_stream: bool,
        subset: frozenset[str] | None = None,
        head: Head | None = None,
    ) -> None:
        self.chunk = chunk
        self.end_of_stream = end_of_stream
        self.subset = subset
        self.head = head


class Trailers(Plain):
    """The request trailers, which end the request."""

    __slots__ = ()


class ResponsePart(Enum):
    """The parts of a response that a proxy may send."""

    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


class Response(Plain):
    """A part of the response; its content is not interpreted.

    Args:
        part: Kind of the part.
        chunk: Bytes of the response body.
        end_of_stream: This is the last part.
        served: ``ip:port`` of the replica that served, if the proxy reports it.
        loads: Unparsed headers in which the replica reports its load.
    """

    __slots__ = ("chunk", "end_of_stream", "loads", "part", "served")

    def __init__(
        self,
        part: ResponsePart,
        chunk: bytes = b"",
        end_of_stream: bool = False,
        served: str | None = None,
        loads: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.part = part
        self.chunk = chunk
        self.end_of_stream = end_of_stream
        self.served = served
        self.loads = loads


class Lost(Plain):
    """The stream has ended: the last event.

    Args:
        clean: False if it broke before the reply with the pick was handed over.
    """

    __slots__ = ("clean",)

    def __init__(self, clean: bool) -> None:
        self.clean = clean


class Stopped(Plain):
    """The picker stops during the exchange: the last event."""

    __slots__ = ()


Event = Head | Body | Trailers | Response | Lost | Stopped


class Pick(Plain):
    """Destination of a request.

    Args:
        destination: ``ip:port[,ip:port...]``: the pick and its fallbacks.
        headers: Request headers to set, the destination included.
        clear_route_cache: True if, and only if, pool or variant differ from the route's: clearing
            draws the variant again.
        ticket: Identifies the charge in access logs.
        decision: The router's decision.
        prompt_blocks: Number of full blocks of the prompt, as far as it was read.
        prompt_tokens: Tokens of the prompt, estimated from its bytes where they are not known;
            ``None`` where no prompt was read.
        matched_tokens: Estimate of how many of them the replica has cached.
        unreadable: The body is not a valid request of its form, so an error of the replica may be
            the caller's fault.
        generic: For a proxy that the control server did not configure: the reply also removes what
            clients may not set, and says the pool to access logs.
        described: The reply says to access logs what was decided, and why.
        budget: Further headers to set, which tell the rest of the caller's time.
    """

    __slots__ = (
        "budget",
        "clear_route_cache",
        "decision",
        "described",
        "destination",
        "generic",
        "headers",
        "matched_tokens",
        "prompt_blocks",
        "prompt_tokens",
        "ticket",
        "unreadable",
    )

    def __init__(
        self,
        destination: str,
        headers: tuple[tuple[str, str], ...],
        clear_route_cache: bool,
        ticket: str | None,
        decision: Decision,
        prompt_blocks: int,
        prompt_tokens: int | None,
        matched_tokens: int,
        unreadable: bool = False,
        generic: bool = False,
        described: bool = False,
        budget: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.destination = destination
        self.headers = headers
        self.clear_route_cache = clear_route_cache
        self.ticket = ticket
        self.decision = decision
        self.prompt_blocks = prompt_blocks
        self.prompt_tokens = prompt_tokens
        self.matched_tokens = matched_tokens
        self.unreadable = unreadable
        self.generic = generic
        self.described = described
        self.budget = budget

    def only_first(self) -> None:
        """Keep the first address only, for a proxy that cannot read a list."""
        self.destination = self.decision.addresses[0]
        self.headers = ((DESTINATION_HEADER, self.destination), *self.headers[1:])


class BodyModeOverride(StrEnum):
    """Replaces the announced body mode in the reply to the request headers."""

    FIRST_PART = "first-part"
    """Send a bounded first part of the body (Envoy's BUFFERED_PARTIAL)."""
    NOTHING = "nothing"
    """Send no body."""
    FIRST_PART_AND_LOADS = "first-part-and-loads"
    """Send the first part, and later the response headers."""
    NOTHING_AND_LOADS = "nothing-and-loads"
    """Send no body, and later the response headers."""


class PassThrough(Plain):
    """A chunk to forward unchanged; in duplex mode a chunk is forwarded only by this."""

    __slots__ = ("chunk", "end_of_stream")

    def __init__(self, chunk: bytes, end_of_stream: bool) -> None:
        self.chunk = chunk
        self.end_of_stream = end_of_stream


class ReplyHead(Plain):
    """Continue after the request headers.

    Args:
        pick: The pick, if the decision is made.
        override: Replaces the announced body mode.
        strip: Without a pick: remove the headers by which a client could name a destination.
        once: Without a pick: the request must not be repeated, as its end is not known.
    """

    __slots__ = ("once", "override", "pick", "strip")

    def __init__(
        self,
        pick: Pick | None = None,
        override: BodyModeOverride | None = None,
        strip: bool = False,
        once: bool = False,
    ) -> None:
        self.pick = pick
        self.override = override
        self.strip = strip
        self.once = once


class ReplyBody(Plain):
    """Continue after a part of the body."""

    __slots__ = ("pass_through", "pick")

    def __init__(self, pick: Pick | None = None, pass_through: PassThrough | None = None) -> None:
        self.pick = pick
        self.pass_through = pass_through


class ReplyTrailers(Plain):
    """Continue after the request trailers."""

    __slots__ = ()


class ReplyResponse(Plain):
    """Continue after a part of the response, unchanged."""

    __slots__ = ("part", "pass_through")

    def __init__(self, part: ResponsePart, pass_through: PassThrough | None = None) -> None:
        self.part = part
        self.pass_through = pass_through


class Refuse(Plain):
    """Answer the caller directly; the request does not reach a replica.

    Args:
        status: HTTP status.
        grpc_status: gRPC status for gRPC callers; ``body`` is then its message. Else ``None``.
        reason: Machine-readable reason out of a fixed set.
        body: Body of the answer.
        headers: Further headers of the answer.
    """

    __slots__ = ("body", "grpc_status", "headers", "reason", "status")

    def __init__(
        self,
        status: int,
        grpc_status: int | None,
        reason: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.status = status
        self.grpc_status = grpc_status
        self.reason = reason
        self.body = body
        self.headers = headers


class KeepWaiting(Plain):
    """Let the request wait: its reply comes later.

    Args:
        ask_s: Seconds that the proxy is asked to wait for the reply; ``None`` = it waits anyway.
    """

    __slots__ = ("ask_s",)

    def __init__(self, ask_s: float | None) -> None:
        self.ask_s = ask_s


Action = ReplyHead | ReplyBody | ReplyTrailers | ReplyResponse | Refuse | KeepWaiting


MAX_PASS_THROUGH_BYTES: Final = 62_000
"""Maximum bytes of one passed-through chunk; Envoy advises to stay below 64 KiB."""

_MOST_GRPC_TIMEOUT: Final = 99_999_999

_BODY: Final = ResponsePart.BODY
EMPTY_HEAD: Final = ReplyHead()
ONCE_HEAD: Final = ReplyHead(once=True)
STRIPPED_HEAD: Final = ReplyHead(strip=True)
EMPTY_TRAILERS: Final = ReplyTrailers()
_REQUEST_FIRST_PART: Final = ReplyHead(override=BodyModeOverride.FIRST_PART, once=True)
_REQUEST_FIRST_PART_AND_LOADS: Final = ReplyHead(
    override=BodyModeOverride.FIRST_PART_AND_LOADS, once=True
)
EMPTY_BODY: Final = ReplyBody()
_EMPTY_RESPONSE: Final = {part: ReplyResponse(part) for part in ResponsePart}


def write_pick(
    decision: Decision,
    ref: ClusterRef,
    request: Request,
    *,
    generic: bool = False,
    ended: bool | None = None,
) -> Pick:
    """Convert a decision for a request whose route leads to ``ref``.

    Args:
        decision: The router's decision.
        ref: The cluster of the proxy's route.
        request: What was decided; one that the picker read beyond a bound may get one replica,
            once.
        generic: The control server did not configure the proxy.
        ended: Whether the request's end is known; ``None`` = the proxy knows it.
    """
    retriable = decision.retriable and not request.features.cut
    destination = ",".join(decision.addresses if retriable else decision.addresses[:1])
    headers = [(DESTINATION_HEADER, destination)]
    if not retriable:
        headers.append((MAX_RETRIES_HEADER, "0"))
    elif not decision.repeatable:
        headers.append((READS_HEADER, "0"))
    if decision.first_answer_s is not None:
        headers.append((TRY_TIMEOUT_HEADER, f"{decision.first_answer_s * 1e3:.0f}"))
    if decision.repeat_missing and retriable and not generic:
        headers.append((RETRY_ON_HEADER, REPEAT_MISSING))
        headers.append((MISSING_HEADER, "1"))
    if ended is not None:
        headers.append((REPEATABLE_HEADER, REPEATABLE if ended else NOT_REPEATABLE))
    moved = decision.pool != ref.pool or decision.variant != ref.variant
    if moved:
        headers.append((CONTROL_POOL_HEADER, decision.pool))
        headers.append((CONTROL_VARIANT_HEADER, decision.variant))
    if generic:
        cluster = ClusterRef(decision.pool, decision.variant, ref.protocol)
        headers.append((CONTROL_CLUSTER_HEADER, str(cluster)))
    prompt, tokens = request.features.prompt, request.tokens
    if tokens is None and prompt is not None:
        tokens = int(len(prompt) / request.bytes_per_token)
    return Pick(
        destination=destination,
        headers=tuple(headers),
        clear_route_cache=moved and not generic,
        ticket=None if decision.ticket is None else str(decision.ticket.id),
        decision=decision,
        prompt_blocks=len(request.blocks),
        prompt_tokens=tokens,
        matched_tokens=int(decision.matched_blocks * (request.block_tokens or 0.0)),
        generic=generic,
    )


def rest_of_time(
    headers: Mapping[str, str], rest_s: float, request_s: float, *, waited: bool
) -> tuple[tuple[str, str], ...]:
    """Return the headers by which Envoy and the replica get the rest of a caller's time.

    `grpc-timeout` goes on as it came unless the request has waited; Envoy and replicas keep it.

    Args:
        headers: The request's headers.
        rest_s: Seconds until its deadline.
        request_s: Bound of Envoy's route on a whole request; 0 = none.
        waited: The request has waited for a replica.
    """
    rest_ms = max(1, int(rest_s * 1000))
    found = []
    if TIMEOUT_HEADER in headers:
        bound_ms = min(rest_ms, int(request_s * 1000)) if request_s else rest_ms
        found.append((TIMEOUT_HEADER, str(rest_ms)))
        found.append((REQUEST_TIMEOUT_HEADER, str(max(1, bound_ms))))
    if waited and "grpc-timeout" in headers:
        found.append(("grpc-timeout", f"{min(rest_ms, _MOST_GRPC_TIMEOUT)}m"))
    return tuple(found)


def passed_through(event: Body | Response) -> list[PassThrough]:
    """Split a chunk for passing through; an empty one yields one part. The last ends the stream."""
    chunk = event.chunk
    if len(chunk) <= MAX_PASS_THROUGH_BYTES:
        return [PassThrough(chunk, event.end_of_stream)]
    starts = range(0, len(chunk), MAX_PASS_THROUGH_BYTES)
    return [
        PassThrough(
            chunk[at : at + MAX_PASS_THROUGH_BYTES],
            event.end_of_stream and at + MAX_PASS_THROUGH_BYTES >= len(chunk),
        )
        for at in starts
    ]


def request_body(head: Head, *, loads: bool) -> ReplyHead:
    """Return the reply to request headers whose body the decision waits for.

    Args:
        head: The request headers.
        loads: An override must keep the response headers enabled (ORCA).
    """
    if head.request_body is not NONE:
        return ONCE_HEAD if head.request_body is PARTIAL else EMPTY_HEAD
    return _REQUEST_FIRST_PART_AND_LOADS if loads else _REQUEST_FIRST_PART


def reply_to_head(head: Head, pick: Pick, *, loads: bool, keep: bool = False) -> ReplyHead:
    """Return the reply with a pick to request headers.

    Args:
        head: The request headers.
        pick: The pick.
        loads: An override must keep the response headers enabled (ORCA).
        keep: The announced modes must stay.
    """
    if head.request_body not in GATHERED or head.end_of_stream or keep:
        return ReplyHead(pick)
    # A buffered body that is not read would only delay the request; a stream's body never ends.
    return ReplyHead(
        pick, BodyModeOverride.NOTHING_AND_LOADS if loads else BodyModeOverride.NOTHING
    )


def reply_without_decision(
    event: Body | Trailers | Response, duplex_request: bool, duplex_response: bool
) -> tuple[Action, ...]:
    """Reply to an event that needs no decision: empty, or a pass-through where the proxy waits."""
    if isinstance(event, Body):
        if duplex_request:
            return tuple(ReplyBody(pass_through=part) for part in passed_through(event))
        return (EMPTY_BODY,)
    if isinstance(event, Trailers):
        return (EMPTY_TRAILERS,)
    if duplex_response and event.part is _BODY:
        return tuple(ReplyResponse(event.part, part) for part in passed_through(event))
    return (_EMPTY_RESPONSE[event.part],)
