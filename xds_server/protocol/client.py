"""One connected client, as a publication sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from xds_server.protocol.messages import Standing
    from xds_server.protocol.publication import Audience
    from xds_server.protocol.stream import DeltaStream, SotwStream


@dataclass(slots=True)
class Client:
    """Its stream, the stage that it is on, and whether it follows."""

    number: int
    node: str
    audience: Audience
    stream: SotwStream | DeltaStream
    connected: float
    rung: int
    standing: Standing
    old_nacks: int = 0
    """Refusals before the running publication."""
    refusing: bool = False
    """It stood NACKED when the running publication began."""
    left: Literal["", "NACKED", "STALLED", "BEHIND", "CROSSED"] = ""
    greeted: bool = False
    """It has asked for clusters."""
    left_at: float = 0.0
