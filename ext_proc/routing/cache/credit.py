"""Prompts of the latest picks, so that their blocks can be credited to the replica that served.

Rule: at most ``MAX_BLOCKS`` blocks are kept, and the oldest prompts are dropped first. An access
log entry arrives a fraction of a second after its request, so a dropped prompt is rarely needed.
"""

from __future__ import annotations

from typing import Final

MAX_BLOCKS: Final = 262_144


class Credit:
    """Prompt blocks by ticket id."""

    __slots__ = ("_left", "_prompts")

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._left = MAX_BLOCKS

    def note(self, ticket_id: int, blocks: tuple[int, ...]) -> None:
        """Keep the prompt of a picked request."""
        prompts = self._prompts
        prompts[ticket_id] = blocks
        self._left -= len(blocks)
        while self._left < 0:
            self._left += len(prompts.pop(next(iter(prompts))))

    def take(self, ticket_id: int) -> tuple[int, ...]:
        """Remove and return a prompt; empty if it was never kept or was dropped."""
        blocks = self._prompts.pop(ticket_id, ())
        self._left += len(blocks)
        return blocks
