"""Forks of known prompts: the number of distinct continuations of each block. Pure.

The last block of a conversation's turn has one continuation, the next turn. A block with two or
more continuations belongs to several prompts: a system prompt, a document, a tool's description.
A prompt whose match ends where a known prompt goes on is itself a further continuation.
Only blocks in the index are counted, so the bounds of the index bound this too.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

BRANCHES: Final = 2
"""Continuations from which on a block belongs to more than one conversation."""


class Forks:
    """Continuations by block."""

    __slots__ = ("_counts", "_deepest", "_most", "_unsure")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._most = 0
        """Upper bound of the continuations of any block."""
        self._deepest = 0
        """Upper bound of the depth of any block with ``BRANCHES`` continuations."""
        self._unsure: dict[int, int] = {}
        """Continued block by the first block of a continuation that is not confirmed."""

    def __len__(self) -> int:
        return len(self._counts)

    def note(self, parent: int, depth: int, unsure: int | None = None) -> None:
        """Count a new continuation.

        Args:
            parent: The block that was continued.
            depth: Number of blocks of its prefix, itself included.
            unsure: First block of the continuation, if the count ends with it unless it is
                confirmed; ``None`` = the count stays.
        """
        if unsure is not None:
            self._unsure[unsure] = parent
        count = self._counts[parent] = self._counts.get(parent, 0) + 1
        self._most = max(self._most, count)
        if count >= BRANCHES:
            self._deepest = max(self._deepest, depth)

    def forget(self, block: int) -> None:
        """Drop a block that no endpoint holds any more."""
        self._counts.pop(block, None)
        if self._unsure and (parent := self._unsure.pop(block, None)) is not None:
            count = self._counts.get(parent, 0)
            if count > 1:
                self._counts[parent] = count - 1
            elif count:
                del self._counts[parent]

    def confirm(self, block: int) -> None:
        """Keep the count of the continuation that begins with a block."""
        self._unsure.pop(block, None)

    def shared(self, blocks: tuple[int, ...], matched: int, endpoints: int) -> int:
        """Return the number of widely shared leading blocks; see ``PrefixTable.shared_depth``."""
        if self._most < endpoints:
            return 0
        counts = self._counts
        deepest = min(matched, len(blocks), self._most // endpoints)
        common = 0
        for depth in compress(range(1, deepest + 1), map(counts.__contains__, blocks)):
            if counts[blocks[depth - 1]] >= endpoints * depth:
                common = depth
        return common

    def branched(self, blocks: tuple[int, ...], matched: int, *, leaves: bool = False) -> int:
        """Return the number of leading blocks with forks; see ``PrefixTable.branched_depth``.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint.
            leaves: Whether no known prompt goes on after the match as this one does.
        """
        counts = self._counts
        if leaves and blocks[matched - 1] in counts:
            return matched
        if not self._deepest:
            return 0
        deepest = min(matched, len(blocks), self._deepest)
        for depth in compress(
            range(deepest, 0, -1), map(counts.__contains__, reversed(blocks[:deepest]))
        ):
            if counts[blocks[depth - 1]] >= BRANCHES:
                return depth
        return 0
