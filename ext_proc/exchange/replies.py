"""Replies that carry something: a decision as a pick, chunks as echoes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.exchange.actions import Echo, Pick
from ext_proc.requests.tokens import CHARS_PER_TOKEN
from protos.names import (
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    DESTINATION_HEADER,
    MAX_RETRIES_HEADER,
)

if TYPE_CHECKING:
    from ext_proc.exchange.events import Body, Response
    from ext_proc.requests import Blocks
    from ext_proc.routing.types import Decision, Features
    from protos.names import ClusterRef

MAX_ECHO_BYTES: Final = 62_000
"""Most bytes of one echoed chunk; Envoy advises to stay below 64 KiB."""


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


def echoes(event: Body | Response) -> list[Echo]:
    """Cut a chunk into echoes; an empty one still gets one, and only the last ends the stream."""
    chunk = event.chunk
    if len(chunk) <= MAX_ECHO_BYTES:
        return [Echo(chunk, event.end_of_stream)]
    starts = range(0, len(chunk), MAX_ECHO_BYTES)
    return [
        Echo(
            chunk[at : at + MAX_ECHO_BYTES],
            event.end_of_stream and at + MAX_ECHO_BYTES >= len(chunk),
        )
        for at in starts
    ]
