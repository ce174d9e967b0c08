"""Envoy's external-processing messages; the only module that names them.

Source: ``envoy/service/ext_proc/v3/external_processor.proto``. Header values are read from
``raw_value`` first and then from ``value``, and written to ``raw_value``. Replies are bytes:
constant replies are serialized once, and so are the recurring parts of picks.

A generic proxy may skip the request headers and send attributes, or
its ``protocol_config``, with the first body message: method, path and single headers are then read
from those (https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/advanced/attributes).

Rules for clients, who send a request as far as Envoy vouches for it:

1. A client with a certificate that the listener has verified is named by it: its URI, else its
   subject, else its DNS name.
2. Any other client is its network: one IPv4 address, or the /64 of an IPv6 address, which is what
   one subscriber is given. Behind a proxy that the listener trusts the address is the one that this
   proxy reports, otherwise all clients of a proxy are one.
3. Tokens (JWT) name no client: Envoy verifies them behind the picker.
4. A client is known by at most ``MAX_NAME`` characters. It is compared, never logged.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ext_proc.exchange import (
    Action,
    Body,
    BodyModeOverride,
    BodySending,
    Head,
    KeepWaiting,
    PassThrough,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
    Response,
    ResponsePart,
    Trailers,
)
from ext_proc.exchange.known import entries_of
from ext_proc.exchange.messages import STREAMED
from ext_proc.server.described import DescribedFrames
from tidegate_api.names import (
    CERTIFICATE_ATTRIBUTES,
    CLUSTER_ATTRIBUTE,
    DESTINATION_HEADER,
    DESTINATION_SERVED_KEY,
    DESTINATIONS_KEY,
    HEADERS_ATTRIBUTE,
    LB_NAMESPACE,
    LOAD_BIN_HEADER,
    LOAD_HEADER,
    LOG_SLOT_KEY,
    NOT_REPEATABLE,
    POOL_KEY,
    PROTOCOL_ATTRIBUTE,
    REPEATABLE_HEADER,
    ROUTE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    SPOOFABLE_HEADERS,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
    TICKET_HEADER,
    TIDEGATE_NAMESPACE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


ONE_DESTINATION: Final = "one"
"""Value of the key by which a generic proxy says that it reads a single address."""

FILTER: Final = "envoy.filters.http.ext_proc"
"""Key under which Envoy sends the attributes that were requested."""

_PATHS: Final = ("request.path", "request.url_path")
"""Attributes with the path, with and without its query."""
_METHOD: Final = "request.method"
_HEADER: Final = re.compile(r"""request\.headers\[['"]([^'"]+)['"]\]""")
"""Attribute with one request header."""
_UPSTREAM: Final = "upstream.address"
"""Attribute of a response with the address of the upstream."""

MODE: Final = processing_mode_pb2.ProcessingMode
SENDING: Final = {
    MODE.NONE: BodySending.NONE,
    MODE.STREAMED: BodySending.STREAMED,
    MODE.BUFFERED: BodySending.BUFFERED,
    MODE.BUFFERED_PARTIAL: BodySending.PARTIAL,
    MODE.FULL_DUPLEX_STREAMED: BodySending.DUPLEX,
}


def text_of(fields: Any, name: str) -> str | None:
    """Return a text out of fields of a ``Struct``; ``None`` = absent or empty."""
    if name not in fields:  # with "[]" faster than "get"
        return None
    return fields[name].string_value or None


def number_of(fields: Any, name: str) -> int | None:
    """Return a whole number out of fields of a ``Struct``; ``None`` = absent."""
    return int(fields[name].number_value) if name in fields else None


def client_of(fields: Any) -> str | None:
    """Return the client of a request: the name in its certificate, else its network."""
    for attribute in CERTIFICATE_ATTRIBUTES:
        if name := text_of(fields, attribute):
            return client_named(name)
    address = text_of(fields, SOURCE_ATTRIBUTE)
    return None if address is None else client_at(address)


def reads_one(message: Any) -> bool:
    """Return whether the proxy says that it reads a single address."""
    if not message.HasField("metadata_context"):
        return False
    namespaces = message.metadata_context.filter_metadata
    if TIDEGATE_NAMESPACE not in namespaces:
        return False
    return text_of(namespaces[TIDEGATE_NAMESPACE].fields, DESTINATIONS_KEY) == ONE_DESTINATION


def subset_of(message: Any) -> frozenset[str] | None:
    """Return the subset hint: absent = ``None`` (no limit), present and empty = no endpoint.

    Source: Gateway API Inference Extension, endpoint picker protocol 1.0. Accepted are a list, a
    comma-separated string and comma-separated strings inside a list, blanks trimmed; other values
    are skipped.
    """
    namespaces = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in namespaces:
        return None
    fields = namespaces[SUBSET_NAMESPACE].fields
    if SUBSET_KEY not in fields:
        return None
    value = fields[SUBSET_KEY]
    texts = (
        [item.string_value for item in value.list_value.values]
        if value.HasField("list_value")
        else [value.string_value]
    )
    return entries_of(texts)


def served_by(message: Any) -> str | None:
    """Return the replica that served, as Envoy's ``override_host`` records it; ``None`` = unknown.

    A response's headers and trailers carry it where the proxy forwards ``envoy.lb``, or as an
    attribute where it is asked for that.
    """
    if message.HasField("metadata_context"):
        namespaces = message.metadata_context.filter_metadata
        if LB_NAMESPACE in namespaces:
            served = text_of(namespaces[LB_NAMESPACE].fields, DESTINATION_SERVED_KEY)
            if served is not None:
                return served
    if FILTER in message.attributes:
        return text_of(message.attributes[FILTER].fields, _UPSTREAM)
    return None


def head_without_headers(message: Any) -> Head:
    """Return what the attributes of a first body message say of the request."""
    fields = message.attributes[FILTER].fields if FILTER in message.attributes else {}
    headers = {
        found[1].lower(): value
        for name in fields
        if (found := _HEADER.fullmatch(name)) is not None and (value := text_of(fields, name))
    }
    path = next((value for each in _PATHS if (value := text_of(fields, each))), "")
    config = message.protocol_config
    announced = message.HasField("protocol_config")
    mode = config.request_body_mode if announced else MODE.BUFFERED
    return Head(
        method=text_of(fields, _METHOD) or "POST",
        path=path,
        headers=headers,
        end_of_stream=False,
        cluster=text_of(fields, CLUSTER_ATTRIBUTE),
        route=text_of(fields, ROUTE_ATTRIBUTE),
        # A proxy that has chosen a replica has sent it the headers.
        request_body=SENDING.get(mode, STREAMED) if served_by(message) is None else STREAMED,
        response_body=SENDING.get(config.response_body_mode, STREAMED),
        one_destination=reads_one(message),
        client=client_of(fields),
        protocol=text_of(fields, PROTOCOL_ATTRIBUTE),
    )


MAX_NAME: Final = 128
_NETWORKS: Final = 4096
"""IPv6 addresses whose networks are cached."""
_SUBSCRIBER: Final = 64
"""Bits of an IPv6 address that name one subscriber."""


def client_named(name: str) -> str:
    """Return a client by the name in its certificate; a long name becomes a digest."""
    if len(name) <= MAX_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def client_at(address: str) -> str | None:
    """Return a client by its ``ip:port`` or ``[ip]:port``; ``None`` = no IP address."""
    host = address.rpartition(":")[0]
    first = host[:1]
    if first.isdigit():
        return host
    return _network(host) if first == "[" else None


@lru_cache(maxsize=_NETWORKS)
def _network(host: str) -> str | None:
    try:
        found = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return None
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _SUBSCRIBER), strict=False))


SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD: Final = "Process"

MAX_FRAMES: Final = 4096
"""Maximum frames of tickets that are cached; when full, the cache is cleared."""

MAX_DESTINATIONS: Final = 4096
"""Maximum serialized destinations that are cached, a few hundred bytes each."""

_USUAL: Final = 2
"""Attributes that every request has beside its source and protocol: cluster and route."""

_LOAD_HEADERS: Final = (LOAD_HEADER, LOAD_BIN_HEADER)
_HEAD: Final = "request_headers"
_BODY: Final = "request_body"
_RESPONSE_BODY: Final = "response_body"
_OVERWRITE: Final = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


_How = tuple[str, tuple[tuple[str, str], ...], bool, BodyModeOverride | None, bool]
"""Part of the request, headers to set beside the destination, whether the route cache is cleared,
body modes, and whether headers of clients are removed."""
_Key = tuple[int, int, bool, str, _How]
"""Lengths of destination and ticket, whether the body was unreadable, name of the pool, and how."""


class WireError(ValueError):
    """The message is not one that a picker accepts."""


# --- in -----------------------------------------------------------------------------------------

parse_request: Final = pb.ProcessingRequest.FromString
"""Parses the bytes of one message."""


def event_of(message: Any) -> Head | Body | Trailers | Response:
    """Translate a ``ProcessingRequest``.

    Raises:
        WireError: The message has no part that this release knows.
    """
    kind = message.WhichOneof("request")
    if kind == "request_headers":
        return _head(message)
    if kind == "request_body":
        part = message.request_body
        # Of a configured proxy a body is never the first message.
        first = message.HasField("protocol_config") or FILTER in message.attributes
        head = head_without_headers(message) if first else None
        subset = subset_of(message) if message.HasField("metadata_context") else None
        return Body(part.body, part.end_of_stream, subset, head)
    if kind == "request_trailers":
        return Trailers()
    if kind == "response_headers":
        ended = message.response_headers.end_of_stream
        headers = message.response_headers.headers.headers
        served, loads = served_by(message), _loads(headers)
        return Response(ResponsePart.HEADERS, end_of_stream=ended, served=served, loads=loads)
    if kind == "response_body":
        part = message.response_body
        return Response(ResponsePart.BODY, part.body, part.end_of_stream)
    if kind == "response_trailers":
        return Response(ResponsePart.TRAILERS, served=served_by(message))
    raise WireError(f"unexpected part of a processing request: {kind or 'none'}")


def read_headers(headers: Collection[Any]) -> dict[str, str]:
    """Return a ``HeaderMap``'s headers by lower-case name; repeated ones are joined in order.

    The separator is a comma (RFC 9110 section 5.3), for cookies a semicolon (RFC 9113 8.2.3).
    """
    # Values are only read, never forwarded, so invalid UTF-8 may be replaced.
    found = {each.key: each.raw_value.decode("utf-8", "replace") or each.value for each in headers}
    if len(found) == len(headers) and "".join(found).islower():  # as Envoy sends most
        return found
    found = {}
    for each in headers:
        name = each.key.lower()
        value = each.raw_value.decode("utf-8", "replace") or each.value
        separator = "; " if name == "cookie" else ","
        found[name] = f"{found[name]}{separator}{value}" if name in found else value
    return found


def _head(message: Any) -> Head:
    part = message.request_headers
    headers = read_headers(part.headers.headers)
    attributes = message.attributes
    fields = attributes[FILTER].fields if FILTER in attributes else {}
    config = message.protocol_config
    source = text_of(fields, SOURCE_ATTRIBUTE)
    client = None if source is None else client_at(source)
    protocol, header_bytes = text_of(fields, PROTOCOL_ATTRIBUTE), None
    if len(fields) > _USUAL + (source is not None) + (protocol is not None):
        client, header_bytes = client_of(fields), number_of(fields, HEADERS_ATTRIBUTE)
    head = Head(
        method=headers.pop(":method", ""),
        path=headers.pop(":path", ""),
        headers=headers,
        end_of_stream=part.end_of_stream,
        cluster=text_of(fields, CLUSTER_ATTRIBUTE),
        route=text_of(fields, ROUTE_ATTRIBUTE),
        # An unknown mode of a later Envoy sends chunks at most: decide on the headers.
        request_body=SENDING.get(config.request_body_mode, STREAMED),
        response_body=SENDING.get(config.response_body_mode, STREAMED),
        header_bytes=header_bytes,
        client=client,
        gated=REPEATABLE_HEADER in headers,
        protocol=protocol,
    )
    if message.HasField("metadata_context"):
        head.subset, head.one_destination = subset_of(message), reads_one(message)
    return head


def _loads(headers: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    """Return the load-report headers of a response."""
    return tuple(
        (header.key, header.raw_value.decode("latin-1") or header.value)
        for header in headers
        if header.key in _LOAD_HEADERS
    )


# --- out ----------------------------------------------------------------------------------------


class Writer:
    """Serializes actions as ``ProcessingResponse`` messages.

    Args:
        picker: This picker's id; each pick carries it for access logs.
        at: Address by which the fleet knows this picker; each pick carries it.
        life: Prefix of tickets in access logs, different after each start.
        slot: This picker's log slot, by which Envoy's access-log sink finds it; empty = none.
    """

    def __init__(self, picker: str, at: str = "", life: str = "", slot: str = "") -> None:
        self._picker, self._at, self._life, self._slot = picker, at, life, slot
        self._frames: dict[_Key, tuple[bytes, bytes, bytes, bytes, bytes]] = {}
        """Bytes before, between and after the places of destination and ticket, two of each; at
        most `MAX_FRAMES`."""
        self._described = DescribedFrames(self._sign)

    def write(self, action: Action) -> bytes:
        """Return the reply's bytes."""
        if isinstance(action, ReplyHead):
            if action.pick is None:
                if action.strip:
                    return _HEAD_STRIPPED
                return (_HEAD_ONCE if action.once else _HEAD_PLAIN)[action.override]
            return self._picked(action.pick, _HEAD, action.override)
        if isinstance(action, ReplyBody):
            if action.pass_through is None:
                return _BODY_PLAIN if action.pick is None else self._picked(action.pick, _BODY)
            reply = b"" if action.pick is None else self._picked(action.pick, _BODY)
            return _with_pass_through(reply, _BODY, action.pass_through)
        return _unpicked(action)

    def _picked(self, pick: Pick, part: str, override: BodyModeOverride | None = None) -> bytes:
        """Assemble a pick from cached bytes, the destination and the ticket.

        ``dynamic_metadata`` and the header mutation are written twice, and parsers merge the two.
        Source: the protobuf encoding guide, "last one wins" (embedded messages are merged, maps
        too, and repeated fields are joined).
        """
        if pick.budget:
            return self._budgeted(pick, part, override)
        pool = pick.decision.pool if pick.generic else ""
        how = part, pick.headers[1:], pick.clear_route_cache, override, pick.generic
        if pick.ticket is None:
            return _where(pick.destination, *how) + self._sign(part, None, pick.unreadable, pool)
        if pick.described:
            where = _where(pick.destination, *how)
            return where + self._described.write(part, pick, pick.ticket, pool)
        destination, ticket = pick.destination.encode(), pick.ticket.encode()
        key = len(destination), len(ticket), pick.unreadable, pool, how
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = self._frame(*key)
        first, second, third, fourth, last = frame
        places = first, destination, second, destination, third, ticket, fourth, ticket, last
        return b"".join(places)

    def _budgeted(self, pick: Pick, part: str, override: BodyModeOverride | None) -> bytes:
        """Assemble a pick with headers that differ from request to request: none is cached."""
        message = pb.ProcessingResponse()
        _set_headers(getattr(message, part).response.header_mutation, pick.budget)
        rest: bytes = message.SerializeToString()
        return self._picked(pick.changed(budget=()), part, override) + rest

    def _frame(
        self, destination: int, ticket: int, unreadable: bool, pool: str, how: _How
    ) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Return the bytes around the places of a destination and a ticket of these lengths."""
        # They are where two messages differ of which both differ in each byte.
        one, other = (
            _write_where(digit * destination, *how)
            + self._sign(how[0], digit * ticket, unreadable, pool)
            for digit in "01"
        )
        places = [at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        first, second = places[0], places[destination]
        third, fourth = places[2 * destination], places[2 * destination + ticket]
        if len(self._frames) >= MAX_FRAMES:
            self._frames.clear()
        return (
            one[:first],
            one[first + destination : second],
            one[second + destination : third],
            one[third + ticket : fourth],
            one[fourth + ticket :],
        )

    def _sign(
        self,
        part: str,
        ticket: str | None,
        unreadable: bool,
        pool: str,
        describe: Callable[[Any], None] | None = None,
    ) -> bytes:
        message = pb.ProcessingResponse()
        ours = message.dynamic_metadata.fields[TIDEGATE_NAMESPACE].struct_value.fields
        ours["picker"].string_value = self._picker
        if named := self._life + (ticket or ""):
            ours["ticket"].string_value = named
        if ticket is not None:
            # An id may have characters that a header must not have.
            names = f"{self._life}{ticket};{quote(self._picker, safe='')};{self._at}"
            header = f"{names};{self._slot}" if self._slot or pool else names
            if pool:
                header = f"{header};{quote(pool, safe='')}"
            mutation = getattr(message, part).response.header_mutation
            _set_headers(mutation, ((TICKET_HEADER, header),))
        if self._at:
            ours["at"].string_value = self._at
        if self._slot:
            ours[LOG_SLOT_KEY].string_value = self._slot
        if unreadable:
            ours["unreadable"].bool_value = True
        if pool:
            ours[POOL_KEY].string_value = pool
        if describe is not None:
            describe(ours)
        return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _unpicked(action: ReplyTrailers | ReplyResponse | Refuse | KeepWaiting) -> bytes:
    if isinstance(action, KeepWaiting):
        message = pb.ProcessingResponse()
        message.override_message_timeout.FromMilliseconds(int((action.ask_s or 0.0) * 1000))
        return message.SerializeToString()  # type: ignore[no-any-return]  # untyped library
    if isinstance(action, ReplyTrailers):
        return _TRAILERS_PLAIN
    if isinstance(action, Refuse):
        return _immediate(action)
    if action.pass_through is None:
        return _RESPONSE_PLAIN[action.part]
    return _with_pass_through(b"", _RESPONSE_BODY, action.pass_through)


def _write_where(
    destination: str,
    part: str,
    others: tuple[tuple[str, str], ...],
    clear: bool,
    override: BodyModeOverride | None,
    strip: bool,
) -> bytes:
    """Serialize the destination part of a pick; it is equal for all requests to one destination."""
    headers = ((DESTINATION_HEADER, destination), *others)
    message = pb.ProcessingResponse()
    common = getattr(message, part).response
    common.clear_route_cache = clear
    _set_headers(common.header_mutation, headers)
    if strip:
        ours = {name for name, _ in headers}
        spoofed = [name for name in SPOOFABLE_HEADERS if name not in ours]
        common.header_mutation.remove_headers.extend(spoofed)
    fields = message.dynamic_metadata.fields
    fields[LB_NAMESPACE].struct_value.fields[DESTINATION_HEADER].string_value = destination
    if override is not None:
        message.mode_override.CopyFrom(_OVERRIDE[override])
    return message.SerializeToString()  # type: ignore[no-any-return]  # untyped library


_where: Final = lru_cache(maxsize=MAX_DESTINATIONS)(_write_where)


def _set_headers(mutation: Any, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        header = {"key": name, "raw_value": value.encode()}
        mutation.set_headers.add(header=header, append_action=_OVERWRITE)


def _with_pass_through(reply: bytes, part: str, pass_through: PassThrough) -> bytes:
    message = pb.ProcessingResponse.FromString(reply)
    streamed = getattr(message, part).response.body_mutation.streamed_response
    streamed.body = pass_through.chunk
    streamed.end_of_stream = pass_through.end_of_stream
    return message.SerializeToString()  # type: ignore[no-any-return]  # untyped library


def _immediate(refuse: Refuse) -> bytes:
    message = pb.ProcessingResponse()
    immediate = message.immediate_response
    immediate.status.code = refuse.status
    immediate.body = refuse.body
    immediate.details = f"tidegate_{refuse.reason}".replace("-", "_")
    if refuse.grpc_status is not None:
        immediate.grpc_status.status = refuse.grpc_status
    _set_headers(immediate.headers, refuse.headers)
    return message.SerializeToString()  # type: ignore[no-any-return]  # untyped library


def _override(request_body: int, response_head: int = MODE.SKIP) -> Any:
    """Return a mode override. Unchanged modes are named too: an override replaces all of them."""
    return MODE(
        request_header_mode=MODE.SEND,
        request_body_mode=request_body,
        response_header_mode=response_head,
        response_body_mode=MODE.NONE,
        # Picker and filter know each other by it: `allowed_override_modes` of the filter.
        request_trailer_mode=MODE.SKIP,
        # The stream ends with the exchange, where the ticket settles: after a reply to a body
        # anyway, after one to the headers only because of these.
        response_trailer_mode=MODE.SEND if request_body == MODE.NONE else MODE.SKIP,
    )


_OVERRIDE: Final = {
    BodyModeOverride.FIRST_PART: _override(MODE.BUFFERED_PARTIAL),
    BodyModeOverride.NOTHING: _override(MODE.NONE),
    BodyModeOverride.FIRST_PART_AND_LOADS: _override(MODE.BUFFERED_PARTIAL, MODE.SEND),
    BodyModeOverride.NOTHING_AND_LOADS: _override(MODE.NONE, MODE.SEND),
}
_HEAD_PLAIN: Final[Mapping[BodyModeOverride | None, bytes]] = {
    None: pb.ProcessingResponse(request_headers=pb.HeadersResponse()).SerializeToString(),
    **{
        override: pb.ProcessingResponse(
            request_headers=pb.HeadersResponse(), mode_override=mode
        ).SerializeToString()
        for override, mode in _OVERRIDE.items()
    },
}
_ONCE: Final[Any] = pb.HeadersResponse()
_set_headers(_ONCE.response.header_mutation, ((REPEATABLE_HEADER, NOT_REPEATABLE),))
_HEAD_ONCE: Final[Mapping[BodyModeOverride | None, bytes]] = {
    None: pb.ProcessingResponse(request_headers=_ONCE).SerializeToString(),
    **{
        override: pb.ProcessingResponse(
            request_headers=_ONCE, mode_override=mode
        ).SerializeToString()
        for override, mode in _OVERRIDE.items()
    },
}
_NO_DESTINATION: Final[Any] = pb.HeadersResponse()
_NO_DESTINATION.response.header_mutation.remove_headers.extend(SPOOFABLE_HEADERS)
_HEAD_STRIPPED: Final[bytes] = pb.ProcessingResponse(
    request_headers=_NO_DESTINATION
).SerializeToString()
_BODY_PLAIN: Final[bytes] = pb.ProcessingResponse(
    request_body=pb.BodyResponse()
).SerializeToString()
_TRAILERS_PLAIN: Final[bytes] = pb.ProcessingResponse(
    request_trailers=pb.TrailersResponse()
).SerializeToString()
_NO_LOADS: Final[Any] = pb.HeadersResponse()  # load reports are for pickers, not for clients
_NO_LOADS.response.header_mutation.remove_headers.extend(_LOAD_HEADERS)
_RESPONSE_PLAIN: Final[Mapping[ResponsePart, bytes]] = {
    part: pb.ProcessingResponse(**{f"response_{part.value}": reply}).SerializeToString()
    for part, reply in (
        (ResponsePart.HEADERS, _NO_LOADS),
        (ResponsePart.BODY, pb.BodyResponse()),
        (ResponsePart.TRAILERS, pb.TrailersResponse()),
    )
}
