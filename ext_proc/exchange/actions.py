"""Actions of an exchange: the replies to write, independent of Envoy's messages.

Actions are immutable by convention.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ext_proc.routing.values.plain import Plain
from tidegate_api.names import DESTINATION_HEADER

if TYPE_CHECKING:
    from ext_proc.exchange.events import ResponsePart
    from ext_proc.routing.pipeline.decision import Decision


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
