"""What an exchange asks of its shell: the replies, in our own words.

Nobody changes an action once it is made; why they are not ``frozen``: see ``events``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ext_proc.exchange.events import ResponsePart
    from ext_proc.routing.types import Decision


@dataclass(slots=True)
class Pick:
    """Where the request goes."""

    destination: str
    """``ip:port[,ip:port...]``: the pick and its fallbacks."""
    headers: tuple[tuple[str, str], ...]
    """Request headers to set, the destination included."""
    clear_route_cache: bool
    """True where pool or variant differ from the route's, and only there: clearing draws anew."""
    ticket: str | None
    """Names the charge in access logs."""
    decision: Decision
    prompt_blocks: int
    """Full blocks of the prompt, as far as it was read."""
    prompt_tokens: int | None
    """Estimate from the prompt's bytes; ``None`` where no prompt was read."""
    matched_tokens: int
    """Estimate of how many of them the replica holds."""
    unreadable: bool = False
    """The body was no request of its form, so an error of the replica may be the caller's."""


class Ask(Enum):
    """What the reply to a head asks of the body, against what was announced."""

    FIRST_PART = "first-part"
    """Send a bounded first part of it (Envoy's BUFFERED_PARTIAL)."""
    NOTHING = "nothing"
    """Do not send it."""
    FIRST_PART_AND_LOADS = "first-part-and-loads"
    """The first part, and later the answer's headers."""
    NOTHING_AND_LOADS = "nothing-and-loads"
    """Nothing of it, and later the answer's headers."""


@dataclass(slots=True)
class Echo:
    """A chunk handed back; in duplex only this lets it go on."""

    chunk: bytes
    end_of_stream: bool


@dataclass(slots=True)
class ReplyHead:
    """Go on after the head."""

    pick: Pick | None = None
    ask: Ask | None = None


@dataclass(slots=True)
class ReplyBody:
    """Go on after a part of the body."""

    pick: Pick | None = None
    echo: Echo | None = None


@dataclass(slots=True)
class ReplyTrailers:
    """Go on after the request's trailers."""


@dataclass(slots=True)
class ReplyResponse:
    """Go on after a part of the response, unchanged."""

    part: ResponsePart
    echo: Echo | None = None


@dataclass(slots=True)
class Refuse:
    """Answer the caller ourselves; nothing goes upstream."""

    status: int
    """HTTP status."""
    grpc_status: int | None
    """Set for gRPC callers, whose message is then the body."""
    reason: str
    """Machine-readable, out of a fixed set."""
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Action = ReplyHead | ReplyBody | ReplyTrailers | ReplyResponse | Refuse
