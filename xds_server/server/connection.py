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

    def view(self, now: float) -> ClientView:
        """Return the client as status pages show it.

        Args:
            now: Monotonic seconds.
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
        )
