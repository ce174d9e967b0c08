"""State of one client's stream on the control server."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate_api.names import POOL_TYPE
from xds_server.protocol.messages import ClientView, ProtocolError

if TYPE_CHECKING:
    from tidegate_common.tls.pem import Validity
    from tidegate_common.tls.roles import Roles
    from xds_server.protocol.messages import ClientKind, ResourceResponse, XdsVariant
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.stream import DeltaStream, SotwStream
    from xds_server.protocol.wire import XdsNode


@dataclass(slots=True)
class AdsConnection:
    """One open stream and its queue of outgoing messages."""

    number: int
    variant: XdsVariant
    peer: str
    since: float
    """When the stream was opened, monotonic seconds."""
    stream: SotwStream | DeltaStream
    roles: Roles | None = None
    """The roles of its certificate; ``None`` = the port has no TLS."""
    certificate: Validity | None = None
    """When its certificate holds; ``None`` = it has none, or not known."""
    node: str = ""
    group: str = ""
    """The client's node group; empty = none."""
    audience: Audience = "envoy"
    kind: ClientKind = "envoy"
    build: str = ""
    """Version of an Envoy, ``major.minor.patch``; empty if not stated."""
    lost: tuple[str, ...] = ()
    """What is left out of its resources."""
    known: bool = False
    """The first request has named the node."""
    types: set[str] = field(default_factory=set)
    """Requested types; the protocol layer bounds their number."""
    outbox: deque[ResourceResponse] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message is added to ``outbox``."""
    greeted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has been told that its first request is accepted."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message of ``outbox`` has been written."""

    def introduce(self, node: XdsNode, lost: tuple[str, ...]) -> None:
        """Note what the client has said of itself, and what is left out for it.

        Raises:
            ProtocolError: Its certificate does not have the role that it takes.
        """
        roles = {"picker", "gateway"} if node.kind == "gateway" else {node.kind}
        if self.roles is not None and not roles & self.roles:
            raise ProtocolError(
                f"the node says that it is of the {node.kind}s, but its certificate has only"
                f" the role {' and '.join(sorted(self.roles))}"
            )
        self.node, self.group = node.id, node.group
        self.audience, self.kind = node.audience, node.kind
        self.build, self.lost = ".".join(map(str, node.build or ())), lost

    def view(self, now: float, quarantine: str, twins: int) -> ClientView:
        """Return the client's row of a status page.

        Args:
            now: Monotonic seconds.
            quarantine: Why it is in quarantine; empty = it is not.
            twins: Number of clients with its node id, itself included.
        """
        return ClientView(
            self.node,
            self.kind,
            self.variant,
            self.peer,
            now - self.since,
            self.stream.views(now),
            self.build,
            self.lost,
            self.group,
            quarantine,
            twins,
            self.number,
            self.certificate,
            self.stream.acknowledged(POOL_TYPE),
        )
