"""Prompts of the latest picks, so that their blocks can be credited to who really served.

Law: at most ``MAX_BLOCKS`` blocks are remembered, the oldest prompts go first. An entry of the
access log comes a fraction of a second after its request, so what is forgotten is rarely asked for.
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
        """Remember a picked request's prompt."""
        prompts = self._prompts
        prompts[ticket_id] = blocks
        self._left -= len(blocks)
        while self._left < 0:
            self._left += len(prompts.pop(next(iter(prompts))))

    def take(self, ticket_id: int) -> tuple[int, ...]:
        """Return a prompt and forget it; empty where it is not known (any more)."""
        blocks = self._prompts.pop(ticket_id, ())
        self._left += len(blocks)
        return blocks
