"""Where known prompts part: how many ways each block was continued in. Pure.

A block that ends one turn of a conversation is continued in one way, by the next turn. A block
that was continued in two ways or more belongs to several prompts: a system prompt, a document, a
tool's description. Only blocks that the index holds are counted, so its bounds bound this.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

BRANCHES: Final = 2
"""Continuations that make a block the property of more than one conversation."""


class Forks:
    """Continuations by block."""

    __slots__ = ("_counts", "_deepest", "_most")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._most = 0
        """No block was ever continued in more ways."""
        self._deepest = 0
        """No deeper block was ever continued in ``BRANCHES`` ways."""

    def __len__(self) -> int:
        return len(self._counts)

    def note(self, parent: int, depth: int) -> None:
        """Count a continuation that was not seen before.

        Args:
            parent: The block that was continued.
            depth: How many blocks its prefix has, itself included.
        """
        count = self._counts[parent] = self._counts.get(parent, 0) + 1
        self._most = max(self._most, count)
        if count >= BRANCHES:
            self._deepest = max(self._deepest, depth)

    def forget(self, block: int) -> None:
        """Drop a block that nobody holds any more."""
        self._counts.pop(block, None)

    def shared(self, blocks: tuple[int, ...], matched: int, endpoints: int) -> int:
        """Return how many of the first blocks are common property; see ``PrefixIndex``."""
        counts = self._counts
        deepest = min(matched, len(blocks), self._most // endpoints)
        common = 0
        for depth in compress(range(1, deepest + 1), map(counts.__contains__, blocks)):
            if counts[blocks[depth - 1]] >= endpoints * depth:
                common = depth
        return common

    def branched(self, blocks: tuple[int, ...], matched: int) -> int:
        """Return how many of the first blocks several prompts continue; see ``PrefixIndex``."""
        counts = self._counts
        deepest = min(matched, len(blocks), self._deepest)
        for depth in compress(
            range(deepest, 0, -1), map(counts.__contains__, reversed(blocks[:deepest]))
        ):
            if counts[blocks[depth - 1]] >= BRANCHES:
                return depth
        return 0
