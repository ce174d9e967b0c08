"""A publication: its stages, and how it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from xds_server.protocol.snapshot import Snapshot

Audience = Literal["envoy", "picker"]
OnReject = Literal["rollback", "keep"]

STAGE_DEADLINE_S: Final = 15.0
HOLD_DEADLINE_S: Final = 30.0
MAX_STAGES: Final = 64

SWITCH: Final = "switch"
"""Label of the stage after which a publication is no longer abandoned."""


class PickerLoad(NamedTuple):
    """What a picker last reported of its work."""

    in_flight: Mapping[str, int]
    """Endpoint id -> requests; an absent endpoint has none."""
    taken: str = ""
    """Nonce of the last response that it had taken when it counted."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a publication."""

    label: str
    audience: Audience
    snapshot: Snapshot
    wait_for_drained: frozenset[str] = frozenset()
    """Endpoint ids that must have nothing in flight before the stage begins."""
    hold_deadline_s: float = HOLD_DEADLINE_S
    """How long to wait for that."""
    deadline_s: float = STAGE_DEADLINE_S
    """How long to wait for the clients' answers."""
    grace_s: float = 0.0
    """How long after the answers to the stage before it the stage begins at the earliest."""


Plan: TypeAlias = Callable[[], Sequence[Stage]] | Sequence[Stage]


@dataclass(frozen=True, slots=True)
class ClientProblem:
    """A client that does not follow."""

    client: str
    """Its node id."""
    state: Literal["NACKED", "STALLED"]
    type: str
    """Short name of the type concerned."""
    message: str
    """Its own words, or what it has not answered."""


@dataclass(frozen=True, slots=True)
class PublicationOutcome:
    """How a publication stands or ended."""

    state: Literal["done", "superseded", "abandoned", "waiting"]
    clients: int
    """Connected clients of both audiences."""
    acked: int
    """How many of them hold what they should."""
    problems: tuple[ClientProblem, ...]
    channels: tuple[str, ...]
    """Short names of the types that really were sent."""
    elapsed_s: float | None
    """From the publishing to the end; ``None`` while it runs."""
    stage: str = ""
    """Label of the stage it waits in, or ended in."""


@dataclass(slots=True)
class PublicationRun:
    """A publication under way or ended."""

    stages: tuple[Stage, ...]
    started: float
    before: dict[Audience, Snapshot]
    on_reject: OnReject = "rollback"
    index: int = -1
    """The stage in force; -1 = none yet."""
    entered: float = 0.0
    hold_since: float | None = None
    touched: set[Audience] = field(default_factory=set)
    channels: list[str] = field(default_factory=list)
    outcome: PublicationOutcome | None = None
    """Set at its end."""

    @property
    def current(self) -> Stage | None:
        """The stage whose answers are awaited."""
        return self.stages[self.index] if self.index >= 0 else None

    @property
    def following(self) -> Stage | None:
        """The stage that begins next."""
        return self.stages[self.index + 1] if self.index + 1 < len(self.stages) else None

    def revocable(self, stage: Stage) -> bool:
        """Tell whether a refusal in ``stage`` ends the publication."""
        if stage.audience != "envoy" or stage.audience not in self.before:
            return False
        if stage.label == SWITCH:
            return self.on_reject == "rollback"
        return SWITCH in [found.label for found in self.stages[self.index + 1 :]]
