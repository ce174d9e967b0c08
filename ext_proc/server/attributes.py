"""What attributes and metadata of Envoy's ext_proc messages say, which its settings ask for.

A generic proxy may skip the request headers and send attributes, or
its ``protocol_config``, with the first body message: method, path and single headers are then read
from those.

Rules for clients, who send a request as far as Envoy vouches for it:

1. A client with a certificate that the listener has verified is named by it: its URI, else its
   subject, else its DNS name.
2. Any other client is its network: one IPv4 address, or the /64 of an IPv6 address, which is what
   one subscriber is given. Behind a proxy that the listener trusts the address is the one that this
   proxy reports, otherwise all clients of a proxy are one.
3. Tokens (JWT) name no client: Envoy verifies them behind the picker.
4. A client is known by at most ``MAX_NAME`` characters. It is compared, never logged.

Source: Envoy's attributes, https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/advanced/attributes.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2

from ext_proc.exchange import BodySending, Head
from ext_proc.exchange.events import STREAMED
from ext_proc.exchange.known import entries_of
from tidegate_api.names import (
    CERTIFICATE_ATTRIBUTES,
    CLUSTER_ATTRIBUTE,
    DESTINATION_SERVED_KEY,
    DESTINATIONS_KEY,
    LB_NAMESPACE,
    ROUTE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
    TIDEGATE_NAMESPACE,
)

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
    MODE.BUFFERED_PARTIAL: BodySending.BUFFERED,
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
    if not message.HasField("metadata_context"):
        return None
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
