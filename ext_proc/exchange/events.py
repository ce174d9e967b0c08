"""What can happen to an exchange, in our own words.

Nobody changes an event once it is made. They are not ``frozen``, as that makes them three times
as expensive, and each request makes several.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class BodySending(Enum):
    """How the proxy announced that it sends bodies (Envoy's ``BodySendMode``)."""

    NONE = "none"
    """Not at all, unless the reply to the head asks for it."""
    BUFFERED = "buffered"
    """In one message that holds all of it, or as much as fits."""
    STREAMED = "streamed"
    """In chunks that wait for nobody's decision."""
    DUPLEX = "duplex"
    """In chunks that go on only as far as the replies hand them back."""


@dataclass(slots=True)
class Head:
    """The request's head: always the first event."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Lower-case names; pseudo-headers are left out; repeated ones are joined by commas."""
    end_of_stream: bool
    """The request has no body."""
    cluster: str | None = None
    """Name of the cluster to which the proxy's route leads."""
    route: str | None = None
    """Name of the route that matched."""
    request_body: BodySending = BodySending.NONE
    response_body: BodySending = BodySending.NONE
    subset: frozenset[str] | None = None
    """``ip:port`` or ``ip`` entries that limit the choice; ``None`` = no limit."""


@dataclass(slots=True)
class Body:
    """A part of the request's body, or all of it."""

    chunk: bytes
    end_of_stream: bool
    subset: frozenset[str] | None = None
    """As in `Head`; ``None`` keeps what the head said."""


@dataclass(slots=True)
class Trailers:
    """The request's trailers, which end it."""


class ResponsePart(Enum):
    """The parts of a response that a proxy may show."""

    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


@dataclass(slots=True)
class Response:
    """A part of the response; nothing is read from its content."""

    part: ResponsePart
    chunk: bytes = b""
    end_of_stream: bool = False
    served: str | None = None
    """``ip:port`` of the replica that served, where the proxy tells."""
    loads: tuple[tuple[str, str], ...] = ()
    """Headers in which the replica tells its load, unread."""


@dataclass(slots=True)
class Lost:
    """The stream is over: the last event."""

    clean: bool
    """False where it broke before the reply that carries the pick was handed over."""


@dataclass(slots=True)
class Stopped:
    """The picker stops while the exchange runs: the last event."""


Event = Head | Body | Trailers | Response | Lost | Stopped
