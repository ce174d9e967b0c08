"""How far a change has come: what clients use now, and what the next change has to start from.

Between two fleets the parts move one after the other, so a change that is replaced halfway, or
refused, leaves Envoys and pickers with parts of different fleets. ``Reached`` names these parts.
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
    """What clients have; see the module."""

    view: View
    """Every cluster and endpoint that any client may still use."""
    front: Fleet
    """Whose listener, routes and limits the Envoys have."""
    draws: Fleet
    """Whose matches and weights the pickers draw by."""
    named: Fleet
    """Whose variants the pickers may still name."""
    force: Snapshot | None = None
    """What Envoys should hold at this moment; ``None`` = exactly what the fleets say."""

    @classmethod
    def settled(cls, view: View) -> Reached:
        """Return the end of a change: everybody has all of ``view`` and nothing else."""
        return cls(view, view.fleet, view.fleet, view.fleet)
