"""Steps: how a change makes the new fleet from the one in force. Pure and CPU-bound.

They run in a worker thread, so that clients are answered meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xds_server.fleet.change import merge
from xds_server.fleet.diff import diff
from xds_server.fleet.load import FleetLoader, check
from xds_server.fleet.memo import shared
from xds_server.fleet.revision import FileState, text_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.revision import FleetState


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
