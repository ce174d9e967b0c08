"""The block cache: computed blocks that requests with a common prompt prefix share.

Rules:

1. The name of a block identifies all text from the start to the end of the block: a chained hash,
   as in vLLM's automatic prefix caching, or an id from a trace. Matching therefore starts at the
   root and has no gaps.
2. ``used + idle + free == capacity`` at all times. Blocks of running requests are *used*: shared
   blocks count once, and blocks that a request will fill are reserved at its admission, so a
   running request never waits for memory. A request that does not fit changes nothing.
3. Only idle blocks are evicted, least recently used first, and a leaf always before its root.
   Both follow from the order of release: a request releases its blocks from last to first, and a
   request that uses a block uses all blocks before it, so a child always precedes its parent in
   the list of idle blocks.
4. A lease is released exactly once; a second release raises and changes nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final

from toyllm.text import CHARS_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

TOKENS_PER_BLOCK: Final = 16
CHARS_PER_BLOCK: Final = TOKENS_PER_BLOCK * CHARS_PER_TOKEN


def extend_chain(chain: list[bytes], text: str) -> None:
    """Append to ``chain`` the hashes of the full blocks of ``text`` that it lacks."""
    for start in range(
        len(chain) * CHARS_PER_BLOCK, len(text) - CHARS_PER_BLOCK + 1, CHARS_PER_BLOCK
    ):
        parent = chain[-1] if chain else b""
        block = text[start : start + CHARS_PER_BLOCK].encode("utf-8", "surrogatepass")
        chain.append(blake2b(parent + block, digest_size=16).digest())


class BlockLease:
    """The blocks of one running request.

    Attributes:
        cached_blocks: Number of blocks found in the cache at admission.
        private: Number of reserved blocks that are not filled yet.
        held: Names of the filled blocks, root first.
        released: Whether the lease was released.
    """

    __slots__ = ("cached_blocks", "held", "private", "released")

    def __init__(self, held: list[Hashable], private: int) -> None:
        self.cached_blocks = len(held)
        self.private = private
        self.held = held
        self.released = False


class BlockCache:
    """A bounded set of blocks with reference counts.

    Args:
        capacity: Number of blocks, at least 1.

    Raises:
        ValueError: ``capacity`` is below 1.
    """

    __slots__ = ("_idle", "_private", "_references", "capacity", "reused_total")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity} blocks; it must be at least 1")
        self.capacity: Final = capacity
        self.reused_total = 0
        """Number of blocks found in the cache, summed over all leases."""
        self._references: dict[Hashable, int] = {}
        self._idle: dict[Hashable, None] = {}
        """Idle blocks in order of use, oldest first (a dictionary keeps the insertion order)."""
        self._private = 0

    def __repr__(self) -> str:
        return f"<BlockCache {self.used}+{self.idle} of {self.capacity}>"

    @property
    def used(self) -> int:
        """Return the number of blocks that running requests hold."""
        return len(self._references) + self._private

    @property
    def idle(self) -> int:
        """Return the number of computed blocks that no request holds."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """Return the number of empty blocks."""
        return self.capacity - self.used - self.idle

    @property
    def held(self) -> int:
        """Return the number of blocks that can be matched."""
        return len(self._references) + len(self._idle)

    def has(self, name: Hashable) -> bool:
        """Return whether a block can be matched."""
        return name in self._references or name in self._idle

    def match(self, chain: Sequence[Hashable]) -> int:
        """Return the number of leading blocks that can be matched."""
        references, idle = self._references, self._idle
        found = 0
        for name in chain:
            if name not in references and name not in idle:
                break
            found += 1
        return found

    def lease(
        self, chain: Sequence[Hashable], reusable: int, total_blocks: int
    ) -> BlockLease | None:
        """Admit a request, or return ``None`` if its blocks do not fit now.

        Args:
            chain: Names of the prompt's full blocks.
            reusable: Maximum number of blocks taken from the cache.
            total_blocks: Number of blocks for the prompt and the whole answer.
        """
        references, idle = self._references, self._idle
        found = waking = 0
        for name in islice(chain, reusable):
            if name in idle:
                waking += 1
            elif name not in references:
                break
            found += 1
        private = total_blocks - found
        taken = len(references) + self._private + waking + private
        if taken > self.capacity:
            return None
        held = list(chain[:found])
        for name in held:
            idle.pop(name, None)
            references[name] = references.get(name, 0) + 1
        for _ in range(taken + len(idle) - self.capacity):
            del idle[next(iter(idle))]
        self._private += private
        self.reused_total += found
        return BlockLease(held, private)

    def commit(self, lease: BlockLease, chain: Sequence[Hashable]) -> None:
        """Turn reserved blocks into shared ones, up to the end of ``chain``.

        If another request has computed a block in the meantime, that block is shared and the
        duplicate is released.

        Raises:
            ValueError: More blocks were filled than reserved; nothing changes.
        """
        held = lease.held
        filled = len(chain) - len(held)
        if filled <= 0:
            return
        if filled > lease.private:
            raise ValueError("the request filled more blocks than were reserved for it")
        lease.private -= filled
        self._private -= filled
        references, idle = self._references, self._idle
        new = chain[len(held) :]
        for name in new:
            idle.pop(name, None)
            references[name] = references.get(name, 0) + 1
        held.extend(new)

    def release(self, lease: BlockLease) -> None:
        """Release all blocks; the filled ones stay cached.

        Raises:
            ValueError: The lease was released before.
        """
        if lease.released:
            raise ValueError("the lease was released before")
        lease.released = True
        self._private -= lease.private
        references, idle = self._references, self._idle
        for name in reversed(lease.held):
            count = references[name] - 1
            if count:
                references[name] = count
            else:
                del references[name]
                idle[name] = None

    def clear(self) -> None:
        """Drop all blocks and leases, as at the end of a process."""
        self._references.clear()
        self._idle.clear()
        self._private = 0
