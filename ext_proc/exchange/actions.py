"""What an exchange asks of its shell: the replies, in our own words.

Nobody changes an action once it is made.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ext_proc.routing.values.plain import Plain

if TYPE_CHECKING:
    from ext_proc.exchange.events import ResponsePart
    from ext_proc.routing.pipeline.decision import Decision


class Pick(Plain):
    """Where the request goes.

    Args:
        destination: ``ip:port[,ip:port...]``: the pick and its fallbacks.
        headers: Request headers to set, the destination included.
        clear_route_cache: True where pool or variant differ from the route's, and only there:
            clearing draws anew.
        ticket: Names the charge in access logs.
        decision: What it was made of.
        prompt_blocks: Full blocks of the prompt, as far as it was read.
        prompt_tokens: Estimate from the prompt's bytes; ``None`` where no prompt was read.
        matched_tokens: Estimate of how many of them the replica holds.
        unreadable: The body was no request of its form, so an error of the replica may be the
            caller's.
    """

    __slots__ = (
        "clear_route_cache",
        "decision",
        "destination",
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


class BodyModeOverride(Enum):
    """What the reply to a head asks of the body, against what was announced."""

    FIRST_PART = "first-part"
    """Send a bounded first part of it (Envoy's BUFFERED_PARTIAL)."""
    NOTHING = "nothing"
    """Do not send it."""
    FIRST_PART_AND_LOADS = "first-part-and-loads"
    """The first part, and later the answer's headers."""
    NOTHING_AND_LOADS = "nothing-and-loads"
    """Nothing of it, and later the answer's headers."""


class PassThrough(Plain):
    """A chunk handed back; in duplex only this lets it go on."""

    __slots__ = ("chunk", "end_of_stream")

    def __init__(self, chunk: bytes, end_of_stream: bool) -> None:
        self.chunk = chunk
        self.end_of_stream = end_of_stream


class ReplyHead(Plain):
    """Go on after the head."""

    __slots__ = ("ask", "pick")

    def __init__(self, pick: Pick | None = None, ask: BodyModeOverride | None = None) -> None:
        self.pick = pick
        self.ask = ask


class ReplyBody(Plain):
    """Go on after a part of the body."""

    __slots__ = ("echo", "pick")

    def __init__(self, pick: Pick | None = None, echo: PassThrough | None = None) -> None:
        self.pick = pick
        self.echo = echo


class ReplyTrailers(Plain):
    """Go on after the request's trailers."""

    __slots__ = ()


class ReplyResponse(Plain):
    """Go on after a part of the response, unchanged."""

    __slots__ = ("echo", "part")

    def __init__(self, part: ResponsePart, echo: PassThrough | None = None) -> None:
        self.part = part
        self.echo = echo


class Refuse(Plain):
    """Answer the caller ourselves; nothing goes upstream.

    Args:
        status: HTTP status.
        grpc_status: Set for gRPC callers, whose message is then the body.
        reason: Machine-readable, out of a fixed set.
        body: What the caller is told.
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


Action = ReplyHead | ReplyBody | ReplyTrailers | ReplyResponse | Refuse
