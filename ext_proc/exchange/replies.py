"""Replies: what asks for the body, a decision as a pick, chunks as echoes, and the empty ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.exchange.actions import (
    BodyModeOverride,
    PassThrough,
    Pick,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
)
from ext_proc.exchange.events import Body, BodySending, ResponsePart, Trailers
from ext_proc.requests.tokens import CHARS_PER_TOKEN
from tidegate_api.names import (
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    DESTINATION_HEADER,
    MAX_RETRIES_HEADER,
)

if TYPE_CHECKING:
    from ext_proc.exchange.actions import Action
    from ext_proc.exchange.events import Head, Response
    from ext_proc.requests import Blocks
    from ext_proc.routing.pipeline.decision import Decision
    from ext_proc.routing.values.request import Features
    from tidegate_api.names import ClusterRef

MAX_ECHO_BYTES: Final = 62_000
"""Most bytes of one echoed chunk; Envoy advises to stay below 64 KiB."""

_NONE: Final = BodySending.NONE  # see `state`
_BUFFERED: Final = BodySending.BUFFERED
_BODY: Final = ResponsePart.BODY
EMPTY_HEAD: Final = ReplyHead()
EMPTY_TRAILERS: Final = ReplyTrailers()
_ASK_FIRST_PART: Final = ReplyHead(ask=BodyModeOverride.FIRST_PART)
_ASK_FIRST_PART_AND_LOADS: Final = ReplyHead(ask=BodyModeOverride.FIRST_PART_AND_LOADS)
_EMPTY_BODY: Final = ReplyBody()
_EMPTY_RESPONSE: Final = {part: ReplyResponse(part) for part in ResponsePart}


def write_pick(decision: Decision, ref: ClusterRef, features: Features, blocks: Blocks) -> Pick:
    """Write a decision for a request whose route leads to ``ref``.

    Args:
        decision: What the router chose.
        ref: The cluster of the proxy's route.
        features: What is known of the request.
        blocks: Its prompt in blocks.
    """
    destination = ",".join(decision.addresses if decision.retriable else decision.addresses[:1])
    headers = [(DESTINATION_HEADER, destination)]
    if not decision.retriable:
        headers.append((MAX_RETRIES_HEADER, "0"))
    moved = decision.pool != ref.pool or decision.variant != ref.variant
    if moved:
        headers.append((CONTROL_POOL_HEADER, decision.pool))
        headers.append((CONTROL_VARIANT_HEADER, decision.variant))
    prompt, tokens = features.prompt, blocks.tokens
    if tokens is None and prompt is not None:
        tokens = len(prompt) // CHARS_PER_TOKEN
    return Pick(
        destination=destination,
        headers=tuple(headers),
        clear_route_cache=moved,
        ticket=None if decision.ticket is None else str(decision.ticket.id),
        decision=decision,
        prompt_blocks=len(blocks.hashes),
        prompt_tokens=tokens,
        matched_tokens=int(decision.matched_blocks * blocks.block_tokens),
    )


def echoes(event: Body | Response) -> list[PassThrough]:
    """Cut a chunk into echoes; an empty one still gets one, and only the last ends the stream."""
    chunk = event.chunk
    if len(chunk) <= MAX_ECHO_BYTES:
        return [PassThrough(chunk, event.end_of_stream)]
    starts = range(0, len(chunk), MAX_ECHO_BYTES)
    return [
        PassThrough(
            chunk[at : at + MAX_ECHO_BYTES],
            event.end_of_stream and at + MAX_ECHO_BYTES >= len(chunk),
        )
        for at in starts
    ]


def ask_for_body(head: Head, *, loads: bool) -> ReplyHead:
    """Return the reply to a head whose body is waited for.

    Args:
        head: The head.
        loads: An override must keep the answer's headers coming (ORCA).
    """
    if head.request_body is not _NONE:
        return EMPTY_HEAD
    return _ASK_FIRST_PART_AND_LOADS if loads else _ASK_FIRST_PART


def answer_head(head: Head, pick: Pick, *, loads: bool) -> ReplyHead:
    """Return the reply to a head that is decided on; the arguments are ``ask_for_body``'s."""
    if head.request_body is not _BUFFERED or head.end_of_stream:
        return ReplyHead(pick)
    # A buffered body that nobody reads would only delay the request; a stream's never ends.
    return ReplyHead(
        pick, BodyModeOverride.NOTHING_AND_LOADS if loads else BodyModeOverride.NOTHING
    )


def go_on(
    event: Body | Trailers | Response, *, duplex_request: bool, duplex_response: bool
) -> tuple[Action, ...]:
    """Answer what needs no decision: with nothing, or an echo where the proxy waits for one."""
    if isinstance(event, Body):
        if duplex_request:
            return tuple(ReplyBody(echo=echo) for echo in echoes(event))
        return (_EMPTY_BODY,)
    if isinstance(event, Trailers):
        return (EMPTY_TRAILERS,)
    if duplex_response and event.part is _BODY:
        return tuple(ReplyResponse(event.part, echo) for echo in echoes(event))
    return (_EMPTY_RESPONSE[event.part],)
