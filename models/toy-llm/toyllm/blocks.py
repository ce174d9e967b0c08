"""The block cache: computed blocks, shared by all requests whose prompts begin alike.

Rules:

1. A block is named by something that stands for all text from the start to its end: a chained
   hash, as in vLLM's automatic prefix caching, or an id of a trace. So matching goes from the
   root on, without gaps.
2. ``used + idle + free == capacity``, always. A running request's blocks are *used*: the ones it
   shares count once, the ones it has still to fill are set aside when it is admitted, so a
   running request never waits for memory. A request that does not fit changes nothing.
3. Only idle blocks are evicted, the least recently used first, and a leaf always before its root.
   The order of release gives both: a request gives back its blocks from the last to the first,
   and whoever uses a block uses all blocks before it, so in the list of idle blocks a child always
   stands before its parent.
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
    """Append to ``chain`` the hashes of the full blocks of ``text`` that it does not have yet."""
    for start in range(
        len(chain) * CHARS_PER_BLOCK, len(text) - CHARS_PER_BLOCK + 1, CHARS_PER_BLOCK
    ):
        parent = chain[-1] if chain else b""
        block = text[start : start + CHARS_PER_BLOCK].encode("utf-8", "surrogatepass")
        chain.append(blake2b(parent + block, digest_size=16).digest())


class BlockLease:
    """The blocks of one running request.

    Attributes:
        cached_blocks: How many were found computed when it was admitted.
        private: Blocks set aside and not yet filled.
        held: Names of its filled blocks, root first.
        released: Whether they were given back.
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
        capacity: Blocks; at least 1.
    """

    __slots__ = ("_idle", "_private", "_references", "capacity", "reused_total")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity} blocks; it must be at least 1")
        self.capacity: Final = capacity
        self.reused_total = 0
        """Blocks found computed, summed over all leases."""
        self._references: dict[Hashable, int] = {}
        self._idle: dict[Hashable, None] = {}
        """In the order of use, the oldest first (dictionaries keep the order of insertion)."""
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
        """Return the number of blocks with nothing in them."""
        return self.capacity - self.used - self.idle

    @property
    def held(self) -> int:
        """Return the number of blocks that can be matched."""
        return len(self._references) + len(self._idle)

    def has(self, name: Hashable) -> bool:
        """Tell whether a block can be matched."""
        return name in self._references or name in self._idle

    def match(self, chain: Sequence[Hashable]) -> int:
        """Return how many leading blocks can be matched."""
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
        """Admit a request, or return ``None`` while its blocks do not fit.

        Args:
            chain: Names of the prompt's full blocks.
            reusable: At most so many of them may be taken from the cache.
            total_blocks: Blocks for the prompt and all that will be generated.
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
        """Turn set-aside blocks into shared ones, up to the end of ``chain``.

        A block that another request has computed meanwhile is shared and its copy given back.

        Raises:
            ValueError: More were filled than set aside; nothing is changed.
        """
        held = lease.held
        filled = len(chain) - len(held)
        if filled <= 0:
            return
        if filled > lease.private:
            raise ValueError("the request outgrew the blocks set aside for it")
        lease.private -= filled
        self._private -= filled
        references, idle = self._references, self._idle
        new = chain[len(held) :]
        for name in new:
            idle.pop(name, None)
            references[name] = references.get(name, 0) + 1
        held.extend(new)

    def release(self, lease: BlockLease) -> None:
        """Give back all blocks; the filled ones stay cached.

        Raises:
            ValueError: They were given back before.
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
        """Forget everything, leases included: the process ended."""
        self._references.clear()
        self._idle.clear()
        self._private = 0
