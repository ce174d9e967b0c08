"""State of one connected client within a publication."""

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
    """A client's stream, its stage, and whether publications wait for it."""

    number: int
    node: str
    audience: Audience
    stream: SotwStream | DeltaStream
    connected: float
    stage_index: int
    """Index of its snapshot among the audience's snapshots (``Publisher``); -1 = none yet."""
    standing: Standing
    old_nacks: int = 0
    """Number of NACKs before the running publication."""
    refusing: bool = False
    """The client was NACKED when the running publication began."""
    left: Literal["", "NACKED", "STALLED", "BEHIND", "CROSSED"] = ""
    """Why no stage waits for the client; empty = stages wait for it.

    NACKED: it rejected a resource. STALLED: it missed a stage's deadline. BEHIND: it holds a bridge
    snapshot (``retired``). CROSSED: its routes have left the bridge, its clusters follow after
    ``BRIDGE_S``.
    """
    clusters_requested: bool = False
    """The client has sent its first CDS request."""
    left_at: float = 0.0
    """Time of the last change of ``left``, monotonic seconds."""

    def blocks(self, stage: Stage) -> bool:
        """Return whether the stage waits for this client's answer."""
        pending = self.standing.state == "PENDING"
        return pending and self.audience == stage.audience and not self.left

    def has_veto(self, run: PublicationRun) -> bool:
        """Return whether its NACK can end the run: it was connected and not NACKED at the start."""
        return self.connected <= run.started and not self.refusing

    def problem(self) -> ClientProblem | None:
        """Return why the client does not hold its snapshot; ``None`` if it does or still may."""
        standing = self.standing
        short = short_type(standing.type_url)
        if standing.state == "NACKED":
            return ClientProblem(self.node, "NACKED", short, standing.message)
        if self.left == "STALLED" and standing.state == "PENDING":
            reason = f"has not acknowledged {short} within the stage's deadline"
            return ClientProblem(self.node, "STALLED", short, reason)
        return None
