"""State of one client's stream on the control server."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xds_server.protocol.messages import ClientView

if TYPE_CHECKING:
    from xds_server.protocol.messages import ResourceResponse, XdsVariant
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
    node: str = ""
    group: str = ""
    """The client's node group; empty = none."""
    audience: Audience = "envoy"
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
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a message of ``outbox`` has been written."""

    def introduce(self, node: XdsNode, lost: tuple[str, ...]) -> None:
        """Note what the client has said of itself, and what is left out for it."""
        self.node, self.group, self.audience = node.id, node.group, node.audience
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
            self.audience,
            self.variant,
            self.peer,
            now - self.since,
            self.stream.views(now),
            self.build,
            self.lost,
            self.group,
            quarantine,
            twins,
        )
