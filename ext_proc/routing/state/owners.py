"""The pickers of a group of which one, its owner, places each new sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.leases import LeaseKey
    from ext_proc.routing.values.proposal import PlacedAs, Proposal

    Told = Callable[[PlacedAs, float, float], None]
    """Called with what became of a proposal, monotonic and Unix seconds."""

PLACED_S: Final = 1.0
"""Longest wait for the owner, seconds."""


class SequenceOwners(Protocol):
    """What a router asks of the group; ``ext_proc.workers.group.owners`` implements it."""

    def places(self, key: LeaseKey) -> bool:
        """Return whether this picker may place a new sequence without a question."""

    def unsure(self, key: LeaseKey) -> bool:
        """Return whether too few of the group may hold the lease of a sequence, to use it."""

    def ask(self, proposal: Proposal, told: Told, latest: float) -> Callable[[], None]:
        """Ask the owner for a lease, until ``latest``; return what takes the question back."""
