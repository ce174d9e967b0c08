"""Events of an exchange, independent of Envoy's messages.

Events are immutable by convention.
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
    """Not at all, unless the reply to the headers requests it."""
    BUFFERED = "buffered"
    """In one message with the whole body, or as much as fits."""
    STREAMED = "streamed"
    """In chunks that are forwarded without waiting for a reply."""
    DUPLEX = "duplex"
    """In chunks that are forwarded only as far as the replies return them."""


NONE: Final = BodySending.NONE  # see `machine`
BUFFERED: Final = BodySending.BUFFERED
STREAMED: Final = BodySending.STREAMED
DUPLEX: Final = BodySending.DUPLEX


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
        partial: A body that is sent BUFFERED may be cut.
        gated: The proxy repeats no request whose end is not known (`REPEATABLE_HEADER`).
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
        "partial",
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
        header_bytes: int | None = None,
        one_destination: bool = False,
        client: str | None = None,
        partial: bool = False,
        gated: bool = True,
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
        self.partial = partial
        self.gated = gated

    @property
    def hides_end(self) -> bool:
        """Return whether the proxy sends on a body before it and the picker know its end.

        Envoy sends such a body twice if trailers end it and the request may be retried.
        """
        return not self.end_of_stream and (
            self.partial or self.request_body is STREAMED or self.request_body is DUPLEX
        )


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
