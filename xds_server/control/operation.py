"""What goes into a change of the fleet, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xds_server.fleet.revision import MAX_OUTCOME_CHARS

if TYPE_CHECKING:
    from xds_server.protocol.publication import PublicationOutcome

DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 3600.0
MAX_REASON_SHOWN = 240


class Busy(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """Too many changes wait, or the server stops."""


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """What goes with every change."""

    author: str = ""
    reason: str = ""
    dry_run: bool = False
    """Judge and compare; change nothing."""
    wait: bool = False
    """Return when every client has acknowledged or left the gate."""
    timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Change:
    """What a change came to."""

    revision: int
    """The new revision, or the current one if nothing changed."""
    changes: tuple[str, ...]
    outcome: PublicationOutcome | None = None
    """``None`` where nobody waited."""
    elapsed_s: float | None = None
    """From the call to the last acknowledgement; ``None`` where there was none in time."""


def told(outcome: PublicationOutcome) -> str:
    """Say in one sentence what became of a publication."""
    refusers = [f"{p.client} ({p.type}: {_reason(p.message)})" for p in outcome.problems]
    if outcome.state == "abandoned":
        told = f"refused by {', '.join(refusers)}"
    elif outcome.state == "superseded":
        told = "taken over by the next revision"
    else:
        over = f" over {', '.join(outcome.channels)}" if outcome.channels else ""
        took = f" in {(outcome.elapsed_s or 0.0) * 1000:.0f} ms"
        told = f"acknowledged by {outcome.acked} of {outcome.clients} clients{over}{took}"
        if refusers:
            told += f"; not by {', '.join(refusers)}"
    return told[:MAX_OUTCOME_CHARS]


def _reason(message: str) -> str:
    """Return the end of a client's words: Envoy quotes the whole resource before the reason."""
    if len(message) <= MAX_REASON_SHOWN:
        return message
    return f"... {message[-MAX_REASON_SHOWN:]}"
