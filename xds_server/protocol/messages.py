"""The nouns of the two xDS variants, free of any wire format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tidegate_api.names import SHORT_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.protocol.snapshot import Resource

MAX_TYPES: Final = 32
"""Types that one stream may ask for."""

MAX_ERROR_CHARS: Final = 4096
"""Characters of a client's error text that are kept."""

State = Literal["SYNCED", "STALE", "NACKED", "NOT_SENT"]
"""SYNCED: holds what it should. STALE: a message is owed or unanswered. NACKED: it refused what it
should hold. NOT_SENT: nothing was there to send."""


class ProtocolError(Exception):
    """A request breaks the protocol; the stream must end with INVALID_ARGUMENT."""


@dataclass(frozen=True, slots=True)
class SotwRequest:
    """A state-of-the-world request (``DiscoveryRequest``)."""

    type_url: str
    names: tuple[str, ...] = ()
    version: str = ""
    nonce: str = ""
    error: str | None = None
    """The client's words where it refuses; presence makes it a NACK, also when empty."""


@dataclass(frozen=True, slots=True)
class DeltaRequest:
    """A delta request (``DeltaDiscoveryRequest``)."""

    type_url: str
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)
    nonce: str = ""
    error: str | None = None
    """The client's words where it refuses; presence makes it a NACK, also when empty."""


@dataclass(frozen=True, slots=True)
class ResourceResponse:
    """A message to the client, of either variant.

    ``removed`` is empty in the state-of-the-world variant.
    """

    type_url: str
    version: str
    """Of the type's whole set; a state-of-the-world client echoes it."""
    nonce: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AckVerdict:
    """What a request said about the message in flight."""

    type_url: str
    accepted: bool
    waited_s: float
    """From the sending to this answer."""
    message: str = ""
    """The client's words where it refused."""


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type on one stream, for status pages (one cell of a `proxy-status` table)."""

    type_url: str
    state: State
    version_sent: str
    version_acked: str
    message: str
    """The client's words when NACKED."""
    pending_s: float
    """How long it has been in a state other than SYNCED; 0 when SYNCED."""
    resources: int
    """How many resources the client is known to hold."""

    @property
    def short(self) -> str:
        """The type's short name, for people."""
        return short_type(self.type_url)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stream stands with its snapshot, all types together."""

    state: Literal["SYNCED", "PENDING", "NACKED"]
    type_url: str = ""
    """The type that decides, where it is not SYNCED."""
    message: str = ""
    nacks: int = 0
    """Refusals so far on this stream: tells a fresh one from an old one."""


def short_type(type_url: str) -> str:
    """Return a type's short name (``CDS``), or its message name where it has none."""
    return SHORT_TYPE.get(type_url) or type_url.rpartition(".")[2]
