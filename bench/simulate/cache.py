"""The block cache of one replica: least recently used blocks leave first.

Rules:

1. A block is *pinned* while a running request uses it, else it is *idle* and may be evicted.
2. pinned + idle + reserved never exceeds ``capacity``. A request that does not fit is told so and
   changes nothing.
3. A request's own new blocks are *reserved* while they are computed; ``commit`` makes them
   matchable. Partial and generated blocks stay reserved until ``release``.
4. A request's blocks turn idle leaf first, so that a parent is never evicted before its child.
5. Matching is contiguous from the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockCache:
    """KV-cache blocks of one replica.

    Args:
        capacity: Blocks; at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved = 0
        self._pinned: dict[int, int] = {}
        self._idle: dict[int, None] = {}
        """In the order of use, the oldest first (dictionaries keep the order of insertion)."""

    def __repr__(self) -> str:
        return f"<BlockCache {self.used}+{len(self._idle)} of {self.capacity}>"

    @property
    def used(self) -> int:
        """Return the blocks that running requests hold."""
        return len(self._pinned) + self.reserved

    @property
    def held(self) -> int:
        """Return the blocks that may be matched."""
        return len(self._pinned) + len(self._idle)

    def has(self, block: int) -> bool:
        """Tell whether a block may be matched."""
        return block in self._pinned or block in self._idle

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks are held."""
        depth = 0
        for block in blocks:
            if block not in self._pinned and block not in self._idle:
                break
            depth += 1
        return depth

    def admit(self, blocks: Sequence[int], matched: int, private: int) -> bool:
        """Pin what is held and reserve room for the rest.

        Args:
            blocks: The prompt's full blocks.
            matched: As ``match`` just said.
            private: Blocks beside these: the prompt's partial one and those of the answer.

        Returns:
            Whether there was room; False changes nothing.
        """
        need = len(blocks) - matched + private
        waking = sum(1 for block in blocks[:matched] if block not in self._pinned)
        if self.used + waking + need > self.capacity:
            return False
        for block in blocks[:matched]:
            self._idle.pop(block, None)
            self._pinned[block] = self._pinned.get(block, 0) + 1
        self.reserved += need
        self._trim()
        return True

    def commit(self, blocks: Sequence[int]) -> None:
        """Make computed blocks matchable; they were reserved and stay with their request."""
        self.reserved -= len(blocks)
        for block in blocks:
            # Another request may have computed the same block meanwhile: one copy is kept.
            self._idle.pop(block, None)
            self._pinned[block] = self._pinned.get(block, 0) + 1

    def release(self, blocks: Sequence[int], private: int) -> None:
        """End a request: its blocks turn idle, its private ones are gone."""
        self.reserved -= private
        for block in reversed(blocks):
            users = self._pinned[block] - 1
            if users:
                self._pinned[block] = users
            else:
                del self._pinned[block]
                self._idle[block] = None
        self._trim()

    def clear(self) -> None:
        """Forget everything: the process ended."""
        self._pinned.clear()
        self._idle.clear()
        self.reserved = 0

    def _trim(self) -> None:
        over = self.used + len(self._idle) - self.capacity
        for _ in range(over):
            del self._idle[next(iter(self._idle))]
