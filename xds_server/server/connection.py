"""A client's stream on the control server: its connection, and what status pages show of it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from xds_server.protocol.messages import ResourceResponse, TypeView
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.stream import DeltaStream, SotwStream

Variant = Literal["sotw", "delta"]


@dataclass(frozen=True, slots=True)
class ClientView:
    """One connected client, for status pages."""

    node: str
    kind: Audience
    protocol: Variant
    peer: str
    connected_s: float
    types: tuple[TypeView, ...]


@dataclass(slots=True)
class AdsConnection:
    """One open stream, and what waits to be written to it."""

    number: int
    variant: Variant
    peer: str
    since: float
    stream: SotwStream | DeltaStream
    node: str = ""
    audience: Audience = "envoy"
    known: bool = False
    outbox: deque[ResourceResponse] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
