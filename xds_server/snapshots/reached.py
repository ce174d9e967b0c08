"""The state that clients have reached, from which the next change starts.

Between two fleets the parts change one after the other. A change that is superseded or rejected
therefore leaves Envoys and pickers with parts of different fleets. ``Reached`` names these parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.view import View
    from xds_server.protocol.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reached:
    """State of all clients, possibly between two fleets."""

    view: View
    """All clusters and endpoints that any client may still use."""
    front: Fleet
    """The fleet whose listener, routes and limits the Envoys have."""
    draws: Fleet
    """The fleet whose matches and weights the pickers use."""
    named: Fleet
    """The fleet whose variants the pickers may still name."""
    force: Snapshot | None = None
    """Current snapshot of the Envoys; ``None`` = exactly that of the fleets above."""

    @classmethod
    def settled(cls, view: View) -> Reached:
        """Return the state after a completed change: all clients have exactly ``view``."""
        return cls(view, view.fleet, view.fleet, view.fleet)
