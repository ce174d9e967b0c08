"""One connected client, as a publication sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from xds_server.protocol.messages import short_type
from xds_server.protocol.publication import ClientProblem

if TYPE_CHECKING:
    from xds_server.protocol.messages import Standing
    from xds_server.protocol.publication import Audience, PublicationRun, Stage
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

    def holds_up(self, stage: Stage) -> bool:
        """Tell whether the stage waits for its answer."""
        pending = self.standing.state == "PENDING"
        return pending and self.audience == stage.audience and not self.left

    def has_veto(self, run: PublicationRun) -> bool:
        """Tell whether its refusal counts: it was there at the beginning, and content."""
        return self.connected <= run.started and not self.refusing

    def problem(self) -> ClientProblem | None:
        """Return why it does not follow, ``None`` where nothing is known against it."""
        standing = self.standing
        short = short_type(standing.type_url)
        if standing.state == "NACKED":
            return ClientProblem(self.node, "NACKED", short, standing.message)
        if self.left == "STALLED" and standing.state == "PENDING":
            words = f"has not acknowledged {short} within the stage's deadline"
            return ClientProblem(self.node, "STALLED", short, words)
        return None
