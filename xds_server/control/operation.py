"""A change of the fleet: its options, how it makes the new fleet, and its result.

``stepped`` is pure and CPU-bound: it runs in a worker thread, so that clients are answered
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.fleet.change import merge
from xds_server.fleet.diff import diff
from xds_server.fleet.load import FleetLoader, check
from xds_server.fleet.memo import shared
from xds_server.fleet.revision import ACCEPTED, MAX_OUTCOME_CHARS, REFUSED, FileState, text_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from xds_server.fleet.guards.last_replica import Taken
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.revision import FleetState
    from xds_server.protocol.publication import PublicationOutcome
    from xds_server.snapshots.preview import Preview

DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 3600.0
MAX_REASON_SHOWN = 240
"""Most characters that are shown of a client's error message."""


_log = structlog.get_logger(__name__)


class Busy(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """Too many changes wait, or the server is stopping."""


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of a change."""

    author: str = ""
    reason: str = ""
    dry_run: bool = False
    """Validate and compare; change nothing."""
    wait: bool = False
    """Return only when every client has acknowledged, rejected or missed its deadline."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Longest wait, in seconds."""
    relief: bool = False
    """It is made even if the store cannot be written (``xds_server.control.journal``)."""
    force: bool = False
    """It may take the last usable replica of a variant, and undo what others have changed."""
    based_on: int = 0
    """Revision that must be in force (``xds_server.fleet.guards.others``); 0 = whichever is."""
    note: str = ""
    """Difference that is kept where the fleet stays as it is; empty = then there is no revision."""


@dataclass(frozen=True, slots=True)
class Change:
    """Result of a change."""

    revision: int
    """The new revision, or the current one if nothing changed."""
    changes: tuple[str, ...]
    """The differences, one line each."""
    outcome: PublicationOutcome | None = None
    """Outcome of the publication; ``None`` if the caller did not wait."""
    elapsed_s: float | None = None
    """Seconds from the call to the last acknowledgement; ``None`` if there was none in time."""
    preview: Preview | None = None
    """What a dry run would do; ``None`` if it is none, or there are no differences."""
    kept: tuple[str, ...] = ()
    """What a rollback has not taken back, one line each."""


def summary(outcome: PublicationOutcome) -> str:
    """Return the outcome of a publication in one sentence."""
    refusing = [p for p in outcome.problems if p.state == "NACKED"]
    rejecting = [f"{p.client} ({p.type}: {_reason(p.message)})" for p in refusing]
    late = [f"{p.client} ({p.type})" for p in outcome.problems if p.state == "STALLED"]
    if outcome.state == "abandoned":
        text = f"{REFUSED} {', '.join(rejecting)}"
    elif outcome.state == "superseded":
        text = "superseded by the next revision"
    else:
        over = f" over {', '.join(outcome.channels)}" if outcome.channels else ""
        took = f" in {(outcome.elapsed_s or 0.0) * 1000:.0f} ms"
        text = f"{ACCEPTED} {outcome.acked} of {outcome.clients} clients{over}{took}"
        if rejecting:
            text += f"; not by {', '.join(rejecting)}"
    if late and outcome.state != "superseded":
        text += f"; late: {', '.join(late)}"
    return text[:MAX_OUTCOME_CHARS]


def _reason(message: str) -> str:
    """Return the end of an error message: Envoy quotes the whole resource before the reason."""
    if len(message) <= MAX_REASON_SHOWN:
        return message
    return f"... {message[-MAX_REASON_SHOWN:]}"


def log_problems(revision: int, outcome: PublicationOutcome) -> None:
    """Log each client that did not acknowledge a publication."""
    for problem in outcome.problems:
        _log.warning(
            "client_behind",
            revision=revision,
            client=problem.client,
            state=problem.state,
            type=problem.type,
            message=problem.message,
        )


def log_taken(found: Iterable[Taken]) -> None:
    """Log each variant that members which went have left without a usable replica."""
    for each in found:
        _log.error(
            "last_replica_gone",
            pool=each.pool,
            variant=each.variant,
            protocol=each.protocol or "",
            remains=each.remains,
        )


load_text: Final = FleetLoader().load
"""Loads a text; what it has in common with the text before costs little."""


@dataclass(frozen=True, slots=True)
class FleetText:
    """A fleet that has not been loaded yet."""

    text: str
    """YAML or JSON."""
    source: str
    """Its name in error messages."""
    is_file: bool = False
    """It is the fleet file: values that operators set at run time are kept where it is silent."""

    def load(self) -> Loaded:
        """Return the valid fleet of the text.

        Raises:
            FleetError: The text is not a valid fleet.
        """
        fleet = load_text(self.text, self.source)
        return Loaded(fleet, FileState(text_hash(self.text), fleet) if self.is_file else None)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The fleet of a text."""

    fleet: Fleet
    file: FileState | None
    """The file that it came from, if it came from the fleet file."""


if TYPE_CHECKING:
    Step = Loaded | Callable[[Fleet | None], Fleet]
    """A loaded fleet, or a function that makes the new fleet from the one in force."""


def stepped(step: Step, state: FleetState | None) -> tuple[Fleet, tuple[str, ...]]:
    """Return the new fleet and its differences from the one in force.

    Args:
        step: How the new fleet is made.
        state: The state in force; ``None`` if there is none yet.

    Raises:
        FleetError: The new fleet breaks rules.
        ValueError: What the step's function raises: an unknown name, or a bad value.
    """
    live = None if state is None else state.fleet
    if not isinstance(step, Loaded):
        fleet = shared(live, step(live))
        check(fleet, before=live)
    elif step.file is not None and state is not None:
        last = state.file
        fleet = merge(None if last is None else last.fleet, step.fleet, state.fleet)
        check(fleet, before=live)
    else:
        fleet = shared(live, step.fleet)  # loading has checked it
    return fleet, diff(live, fleet)
