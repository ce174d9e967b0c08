"""Conversion between Envoy's discovery messages and ``messages``.

This is the only module of the package that uses Envoy's discovery messages.

Responses are encoded by concatenation: the serialized forms of two protobuf messages, one after the
other, are the serialized form of the merged message (Protocol Buffers encoding, "Last One Wins").
So a message is serialized once for all clients that need the same, and the nonce is appended for
each. The last ``_SHARED`` messages are kept.

On the wire every version ends in the mark of its history (``xds_server.server.history``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from envoy.service.discovery.v3 import discovery_pb2

from tidegate_api.names import (
    GATEWAY_NODE_CLUSTER,
    NODE_AUDIENCE_KEY,
    NODE_GROUP,
    NODE_PICKERS,
    PICKER_NODE_CLUSTER,
)
from xds_server.protocol.messages import DeltaRequest, ProtocolError, SotwRequest

if TYPE_CHECKING:
    from xds_server.protocol.messages import ClientKind, ResourceResponse
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.snapshot import Resource

ADS_SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
MAX_NODE_CHARS: Final = 256
"""Most characters in a node's id or cluster."""

parse_sotw: Final = discovery_pb2.DiscoveryRequest.FromString
parse_delta: Final = discovery_pb2.DeltaDiscoveryRequest.FromString

_SOTW_RESOURCES: Final = discovery_pb2.DiscoveryResponse.RESOURCES_FIELD_NUMBER
_DELTA_RESOURCES: Final = discovery_pb2.DeltaDiscoveryResponse.RESOURCES_FIELD_NUMBER
_SOTW_NONCE: Final = discovery_pb2.DiscoveryResponse.NONCE_FIELD_NUMBER
_DELTA_NONCE: Final = discovery_pb2.DeltaDiscoveryResponse.NONCE_FIELD_NUMBER
_RESOURCE_NAME: Final = discovery_pb2.Resource.NAME_FIELD_NUMBER
_RESOURCE_VERSION: Final = discovery_pb2.Resource.VERSION_FIELD_NUMBER
_RESOURCE_BODY: Final = discovery_pb2.Resource.RESOURCE_FIELD_NUMBER

_SHARED: Final = 8
"""Messages that are kept for further clients; each is as large as what it carries."""


@dataclass(frozen=True, slots=True)
class XdsNode:
    """What a client says of itself in its first request."""

    id: str
    cluster: str
    audience: Audience = "envoy"
    """What it is served: named by its metadata, or else found by its cluster."""
    build: tuple[int, int, int] | None = None
    """Major, minor and patch number of an Envoy; ``None`` for other clients, or if not stated."""
    release: str = ""
    """Name, version and source revision of its build; empty = unknown."""
    group: str = ""
    """Its node group, ``NODE_GROUP`` of its metadata; empty = none."""
    pickers: frozenset[str] = frozenset()
    """Addresses of the pickers that it asks first, ``NODE_PICKERS`` of its metadata."""

    @property
    def kind(self) -> ClientKind:
        """What it is: a gateway is served as pickers are, and has no requests in flight."""
        gateway = self.audience == "picker" and self.cluster == GATEWAY_NODE_CLUSTER
        return "gateway" if gateway else self.audience


def node_of(request: Any) -> XdsNode:
    """Return the node of a stream's first request; later requests may omit it (X1).

    Raises:
        ProtocolError: The node id is missing, id or cluster exceeds ``MAX_NODE_CHARS``, or the
            metadata names an unknown audience.
    """
    node = request.node
    pickers = _text(node.metadata, NODE_PICKERS)
    found = XdsNode(
        node.id,
        node.cluster,
        _audience(node),
        _build(node),
        _release(node),
        _text(node.metadata, NODE_GROUP),
        frozenset(each.strip() for each in pickers.split(",")) - {""},
    )
    if not found.id:
        raise ProtocolError("the first request names no node; set node.id in the bootstrap")
    if max(map(len, (found.id, found.cluster, found.group, pickers))) > MAX_NODE_CHARS:
        raise ProtocolError(
            f"node.id, node.cluster, {NODE_GROUP} and {NODE_PICKERS} have at most {MAX_NODE_CHARS}"
            " characters"
        )
    return found


def _audience(node: Any) -> Audience:
    fields = node.metadata.fields
    if NODE_AUDIENCE_KEY not in fields:
        served = {PICKER_NODE_CLUSTER, GATEWAY_NODE_CLUSTER}
        return "picker" if node.cluster in served else "envoy"
    named = fields[NODE_AUDIENCE_KEY].string_value
    if named == "picker":
        return "picker"
    if named == "envoy":
        return "envoy"
    raise ProtocolError(
        f"node.metadata['{NODE_AUDIENCE_KEY}'] names no audience: '{named[:64]}'; write 'envoy' or "
        "'picker', or leave it out"
    )


def _build(node: Any) -> tuple[int, int, int] | None:
    found = node.user_agent_build_version.version
    if node.user_agent_name != "envoy" or not found.major_number:
        return None
    return found.major_number, found.minor_number, found.patch


def _release(node: Any) -> str:
    built = node.user_agent_build_version
    number = built.version
    version = node.user_agent_version or (
        f"{number.major_number}.{number.minor_number}.{number.patch}"
        if node.HasField("user_agent_build_version")
        else ""
    )
    revision = _text(built.metadata, "revision.sha")
    return " ".join(filter(None, (node.user_agent_name, version, revision)))[:MAX_NODE_CHARS]


def _text(metadata: Any, key: str) -> str:
    value = metadata.fields.get(key)
    return "" if value is None else str(value.string_value)


class OtherHistoryError(Exception):
    """A version that a client states lacks the mark."""


def read_sotw(request: Any, mark: str = "") -> SotwRequest:
    """Read a ``DiscoveryRequest``.

    Raises:
        OtherHistoryError: Its version lacks the mark.
    """
    return SotwRequest(
        request.type_url,
        tuple(request.resource_names),
        _unmarked(request.version_info, mark),
        request.response_nonce,
        _error(request),
    )


def read_delta(request: Any, mark: str = "") -> DeltaRequest:
    """Read a ``DeltaDiscoveryRequest``.

    Raises:
        OtherHistoryError: One of its versions lacks the mark.
    """
    return DeltaRequest(
        request.type_url,
        tuple(request.resource_names_subscribe),
        tuple(request.resource_names_unsubscribe),
        {n: _unmarked(v, mark) for n, v in request.initial_resource_versions.items()},
        request.response_nonce,
        _error(request),
    )


def _unmarked(version: str, mark: str) -> str:
    if version and not version.endswith(mark):
        raise OtherHistoryError
    return version.removesuffix(mark)


def write_sotw(response: ResourceResponse, mark: str = "") -> bytes:
    """Serialize a ``DiscoveryResponse``."""
    return _sotw_shared(response.type_url, response.version + mark, response.resources) + delimited(
        _SOTW_NONCE, response.nonce.encode()
    )


def write_delta(response: ResourceResponse, mark: str = "") -> bytes:
    """Serialize a ``DeltaDiscoveryResponse``."""
    return _delta_shared(
        response.type_url, response.version, response.resources, response.removed, mark
    ) + delimited(_DELTA_NONCE, response.nonce.encode())


@functools.lru_cache(maxsize=_SHARED)
def _sotw_shared(type_url: str, version: str, resources: tuple[Resource, ...]) -> bytes:
    head = discovery_pb2.DiscoveryResponse(version_info=version, type_url=type_url)
    return b"".join([head.SerializeToString(), *map(_sotw_part, resources)])


@functools.lru_cache(maxsize=_SHARED)
def _delta_shared(
    type_url: str,
    version: str,
    resources: tuple[Resource, ...],
    removed: tuple[str, ...],
    mark: str,
) -> bytes:
    head = discovery_pb2.DeltaDiscoveryResponse(
        system_version_info=version + mark, type_url=type_url, removed_resources=removed
    )
    parts = (_delta_part(each, mark) for each in resources)
    return b"".join([head.SerializeToString(), *parts])


def _sotw_part(resource: Resource) -> bytes:
    return delimited(_SOTW_RESOURCES, resource.any)


def _delta_part(resource: Resource, mark: str) -> bytes:
    return delimited(
        _DELTA_RESOURCES,
        delimited(_RESOURCE_VERSION, (resource.version + mark).encode())
        + delimited(_RESOURCE_BODY, resource.any)
        + delimited(_RESOURCE_NAME, resource.name.encode()),
    )


def delimited(number: int, body: bytes) -> bytes:
    """Encode a length-delimited field."""
    prefix = bytearray()
    for value in (number << 3 | 2, len(body)):
        left = value
        while left > 0x7F:  # noqa: PLR2004 - seven bits per byte of a varint
            prefix.append(left & 0x7F | 0x80)
            left >>= 7
        prefix.append(left)
    return bytes(prefix) + body


def _error(request: Any) -> str | None:
    """Return the client's error message; its presence alone makes the request a NACK (X11)."""
    if not request.HasField("error_detail"):
        return None
    return str(request.error_detail.message)
