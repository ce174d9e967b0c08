"""A client's stream on the control server."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xds_server.protocol.messages import ResourceResponse, XdsVariant
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.stream import DeltaStream, SotwStream


@dataclass(slots=True)
class AdsConnection:
    """One open stream, and what waits to be written to it."""

    number: int
    variant: XdsVariant
    peer: str
    since: float
    stream: SotwStream | DeltaStream
    node: str = ""
    audience: Audience = "envoy"
    known: bool = False
    outbox: deque[ResourceResponse] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
