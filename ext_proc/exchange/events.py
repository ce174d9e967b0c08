"""What can happen to an exchange, in our own words.

Nobody changes an event once it is made.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.plain import Plain

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


STREAMED: Final = BodySending.STREAMED  # see `state`
DUPLEX: Final = BodySending.DUPLEX


class Head(Plain):
    """The request's head: always the first event.

    Args:
        method: Of HTTP.
        path: With its query.
        headers: Lower-case names; pseudo-headers are left out; repeated ones are joined by commas.
        end_of_stream: The request has no body.
        cluster: Name of the cluster to which the proxy's route leads.
        route: Name of the route that matched.
        request_body: How its body is sent.
        response_body: The same of the response's.
        subset: ``ip:port`` or ``ip`` entries that limit the choice; ``None`` = no limit.
    """

    __slots__ = (
        "cluster",
        "end_of_stream",
        "headers",
        "method",
        "path",
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


class Body(Plain):
    """A part of the request's body, or all of it.

    Args:
        chunk: Its bytes.
        end_of_stream: It is the last.
        subset: As in `Head`; ``None`` keeps what the head said.
    """

    __slots__ = ("chunk", "end_of_stream", "subset")

    def __init__(
        self, chunk: bytes, end_of_stream: bool, subset: frozenset[str] | None = None
    ) -> None:
        self.chunk = chunk
        self.end_of_stream = end_of_stream
        self.subset = subset


class Trailers(Plain):
    """The request's trailers, which end it."""

    __slots__ = ()


class ResponsePart(Enum):
    """The parts of a response that a proxy may show."""

    HEADERS = "headers"
    BODY = "body"
    TRAILERS = "trailers"


class Response(Plain):
    """A part of the response; nothing is read from its content.

    Args:
        part: Which.
        chunk: Bytes of its body.
        end_of_stream: It is the last.
        served: ``ip:port`` of the replica that served, where the proxy tells.
        loads: Headers in which the replica tells its load, unread.
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
    """The stream is over: the last event.

    Args:
        clean: False where it broke before the reply that carries the pick was handed over.
    """

    __slots__ = ("clean",)

    def __init__(self, clean: bool) -> None:
        self.clean = clean


class Stopped(Plain):
    """The picker stops while the exchange runs: the last event."""

    __slots__ = ()


Event = Head | Body | Trailers | Response | Lost | Stopped
