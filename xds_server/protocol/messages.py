"""Messages and states of both xDS variants, independent of the wire format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tidegate_api.names import SHORT_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate_common.tls.pem import Validity
    from xds_server.protocol.snapshot import Resource

MAX_TYPES: Final = 32
"""Most resource types that one stream may request."""

MAX_ERROR_CHARS: Final = 4096
"""Most characters that are kept of a client's error message."""

XdsVariant = Literal["sotw", "delta"]
ClientKind = Literal["envoy", "picker", "gateway"]
"""What a client is; a gateway is of the pickers' audience."""
State = Literal["SYNCED", "STALE", "NACKED", "NOT_SENT"]
"""State of one type on one stream.

SYNCED: the client holds the snapshot. STALE: a message is due or not yet acknowledged. NACKED: the
client rejected the snapshot's content. NOT_SENT: there was nothing to send.
"""


class ProtocolError(Exception):
    """A request violates the protocol; its stream must end with INVALID_ARGUMENT."""


@dataclass(frozen=True, slots=True)
class SotwRequest:
    """A state-of-the-world request (``DiscoveryRequest``)."""

    type_url: str
    names: tuple[str, ...] = ()
    version: str = ""
    nonce: str = ""
    error: str | None = None
    """The client's error message. If present, even if empty, the request is a NACK."""

    @property
    def holds(self) -> bool:
        """The client states that it holds resources of the type."""
        return bool(self.version)


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """A delta request (``DeltaDiscoveryRequest``)."""

    type_url: str
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    error: str | None = None
    """The client's error message. If present, even if empty, the request is a NACK."""

    @property
    def holds(self) -> bool:
        """The client states that it holds resources of the type."""
        return bool(self.initial_versions)


@dataclass(frozen=True, slots=True)
class ResourceResponse:
    """A response to the client, of either variant.

    ``removed`` is empty in the state-of-the-world variant.
    """

    type_url: str
    version: str
    """Version of the type's whole set; state-of-the-world clients send it back."""
    nonce: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AckVerdict:
    """A client's ACK or NACK of the message in flight."""

    type_url: str
    accepted: bool
    waited_s: float
    """Seconds from sending the message to this answer."""
    message: str = ""
    """The client's error message if it rejected the message."""


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type on one stream, for status pages (one cell of a `proxy-status` table)."""

    type_url: str
    state: State
    version_sent: str
    version_acked: str
    message: str
    """The client's error message when NACKED."""
    pending_s: float
    """Seconds in a state other than SYNCED; 0 when SYNCED."""
    resources: int
    """Number of resources that the client is known to hold."""

    @property
    def short(self) -> str:
        """The type's short name, e.g. ``CDS``."""
        return short_type(self.type_url)


@dataclass(frozen=True, slots=True)
class ResourceView:
    """One resource of one client."""

    type_url: str
    name: str
    version: str
    """Version that the client is to have; empty = it is removed."""
    version_acked: str
    """Version that it holds; empty = none, or unknown after it has rejected a message."""
    state: State
    packed: bytes
    """The serialized ``google.protobuf.Any`` that it is to have; empty = it is removed."""

    @property
    def short(self) -> str:
        """The type's short name, e.g. ``CDS``."""
        return short_type(self.type_url)


@dataclass(frozen=True, slots=True)
class ClientView:
    """One connected client, for status pages."""

    node: str
    kind: ClientKind
    protocol: XdsVariant
    peer: str
    connected_s: float
    types: tuple[TypeView, ...]
    build: str = ""
    """Version of the Envoy; empty if it stated none."""
    lost: tuple[str, ...] = ()
    """What does not work with this build, because it would refuse it."""
    group: str = ""
    """Its node group; empty = none."""
    quarantine: str = ""
    """Why it is in quarantine; empty = it is not."""
    twins: int = 1
    """Number of clients connected with its node id, itself included."""
    number: int = 0
    """Number of its stream, which no other has."""
    certificate: Validity | None = None
    """When the certificate of its connection holds; ``None`` = it has none, or not known."""
    pools_acked: str = ""
    """Nonce of the pools that a picker acknowledged last on its stream; empty = none."""


@dataclass(frozen=True, slots=True)
class RefusedPeer:
    """A peer whose requests are not served, or not all of them."""

    peer: str
    """Its address, as gRPC writes it, at the last refusal."""
    node: str
    """Its node id; empty if it stated none."""
    reason: str
    """What is not served, and what to use instead; also what the peer was told, if it was."""
    count: int
    """Number of refusals."""
    last_s: float
    """Seconds since the last refusal."""


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a stream relative to its snapshot, over all types."""

    state: Literal["SYNCED", "PENDING", "NACKED"]
    type_url: str = ""
    """The type that determines the state; empty if SYNCED."""
    message: str = ""
    """The client's error message when NACKED."""
    nacks: int = 0
    """Number of NACKs on this stream so far; distinguishes a new NACK from an old one."""


def short_type(type_url: str) -> str:
    """Return a type's short name (``CDS``), or its message name if it has none."""
    return SHORT_TYPE.get(type_url) or type_url.rpartition(".")[2]
