"""A publication: its stages, its state and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from xds_server.protocol.snapshot import Snapshot

Audience = Literal["envoy", "picker"]
OnReject = Literal["rollback", "keep", "quorum"]

QUORUM: Final = 0.5
"""Default share of the clients that count whose refusal ends a publication."""

STAGE_DEADLINE_S: Final = 15.0
"""Longest time, by default, for which a client's answer is waited for."""

HOLD_DEADLINE_S: Final = 30.0
"""Default time for draining endpoints to finish their requests."""

MAX_STAGES: Final = 64
"""Most stages in a publication."""

SWITCH: Final = "switch"
"""Label of the last stage in which a NACK can abandon the publication."""


class PickerLoad(NamedTuple):
    """A picker's last report of its requests in flight."""

    in_flight: Mapping[str, int]
    """Endpoint id -> requests in flight; an absent endpoint has none."""
    taken: str = ""
    """Nonce of the last response that the picker had applied when it counted."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a publication."""

    label: str
    audience: Audience
    snapshot: Snapshot
    wait_for_drained: frozenset[str] = frozenset()
    """Endpoint ids that must have no requests in flight before the stage begins."""
    hold_deadline_s: float = HOLD_DEADLINE_S
    """Longest wait for these endpoints, in seconds."""
    deadline_s: float = STAGE_DEADLINE_S
    """Longest wait for a client's answer, in seconds, from when it began to owe one."""
    grace_s: float = 0.0
    """Least time between the answers to the previous stage and this stage, in seconds."""
    urgent: bool = False
    """No answer is waited for: the stage is safe whatever the other audience holds."""
    past: tuple[Snapshot, ...] = ()
    """Of the first stage for Envoys: what they may have from an earlier server, oldest first."""
    edit: Callable[[Snapshot], Snapshot] | None = None
    """Of an urgent stage: what becomes of each snapshot that clients of the audience are to hold,
    instead of one ``snapshot`` for all."""


Plan: TypeAlias = Callable[[], Sequence[Stage]] | Sequence[Stage]
"""The stages of a publication, or a function that computes them."""


@dataclass(frozen=True, slots=True)
class ClientProblem:
    """Why a client does not hold its snapshot."""

    client: str
    """The client's node id."""
    state: Literal["NACKED", "STALLED"]
    type: str
    """Short name of the type concerned."""
    message: str
    """The client's error message, or which type it has not acknowledged."""


@dataclass(frozen=True, slots=True)
class PublicationOutcome:
    """State of a publication, running or ended."""

    state: Literal["done", "superseded", "abandoned", "waiting"]
    clients: int
    """Number of connected clients of both audiences."""
    acked: int
    """Number of these clients that hold their audience's newest snapshot."""
    problems: tuple[ClientProblem, ...]
    channels: tuple[str, ...]
    """Short names of the types that were sent to clients."""
    elapsed_s: float | None
    """Seconds from the start to the end; ``None`` while the publication runs."""
    stage: str = ""
    """Label of the stage in which the publication waits or ended; empty before the first."""
    in_waves: bool = False
    """The stage had not come to all Envoys yet; what is in force for all is the one before."""


@dataclass(slots=True)
class PublicationRun:
    """A publication, running or ended. Times are monotonic seconds."""

    stages: tuple[Stage, ...]
    started: float
    before: dict[Audience, Snapshot]
    """Snapshots in force when the publication began."""
    on_reject: OnReject = "rollback"
    quorum: float = QUORUM
    """With ``quorum``: the share of refusals, above 0 and at most 1, that ends the publication."""
    waves: bool = False
    """Stages go to Envoys in waves (``Waves``)."""
    index: int = -1
    """Index of the current stage; -1 = none yet."""
    entered: float = 0.0
    """When the current stage began."""
    hold_since: float | None = None
    """Since when the next stage waits for its grace time or its draining endpoints."""
    late_at: float = float("inf")
    """When the first of the clients that the stage waits for is late."""
    blocking: int = 0
    """Number of that client; 0 = the stage waits for none."""
    refused: set[int] = field(default_factory=set)
    """Numbers of the clients with a veto that have refused something in this publication."""
    newly_refused: list[int] = field(default_factory=list)
    """Numbers of clients whose refusals have not been remembered for their node yet."""
    touched: set[Audience] = field(default_factory=set)
    """Audiences for which a stage has begun."""
    channels: list[str] = field(default_factory=list)
    """Short names of the types sent so far."""
    outcome: PublicationOutcome | None = None
    """The final outcome; ``None`` while the publication runs."""

    @property
    def current(self) -> Stage | None:
        """The current stage; ``None`` before the first."""
        return self.stages[self.index] if self.index >= 0 else None

    @property
    def following(self) -> Stage | None:
        """The next stage; ``None`` after the last."""
        return self.stages[self.index + 1] if self.index + 1 < len(self.stages) else None

    def revocable(self, stage: Stage) -> bool:
        """Return whether a NACK in ``stage`` abandons the publication."""
        if stage.audience != "envoy" or stage.audience not in self.before:
            return False
        if stage.label == SWITCH:
            return self.on_reject != "keep"
        return SWITCH in [found.label for found in self.stages[self.index + 1 :]]
