"""The prefix cache: blocks of computed text, shared by all requests that begin alike.

Laws:

* A block is 64 characters (16 tokens) and is named by a chained hash over everything from the
  start of the text to its end, as in vLLM's automatic prefix caching.
* ``used + idle + free == capacity``, always. A running request's blocks are *used*: the ones it
  shares count once, the ones it has still to fill are set aside when it is admitted, so a
  running request never waits for memory.
* Only idle blocks are evicted, the least recently used first, and a leaf always before its root.
  The order of release gives both: a request gives back its blocks from the last to the first,
  and whoever uses a block uses all blocks before it, so in the list of idle blocks a child always
  stands before its parent.
* A lease is released exactly once; a second release raises and changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from toyllm.text import CHARS_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks of one running request."""

    cached_blocks: int
    """How many were found computed when it was admitted."""
    private: int
    """Blocks set aside and not yet filled."""
    held: list[bytes] = field(default_factory=list)
    """Hashes of its filled blocks, from the start of the text on."""
    released: bool = False


class BlockCache:
    """A bounded set of blocks with reference counts."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity} blocks; it must be at least 1")
        self.capacity: Final = capacity
        self.reused_total = 0
        """Blocks found computed, summed over all leases."""
        self._references: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Return the number of blocks that running requests hold."""
        return len(self._references) + self._private

    @property
    def idle(self) -> int:
        """Return the number of computed blocks that nobody holds."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """Return the number of blocks with nothing in them."""
        return self.capacity - self.used - self.idle

    def lease(self, chain: Sequence[bytes], reusable: int, total_blocks: int) -> Lease | None:
        """Admit a request, or return ``None`` while its blocks do not fit.

        Args:
            chain: hashes of the prompt's full blocks.
            reusable: at most so many of them may be taken from the cache.
            total_blocks: blocks for the prompt and all that will be generated.
        """
        found = 0
        fresh = 0
        for name in chain[:reusable]:
            if name in self._idle:
                fresh += 1
            elif name not in self._references:
                break
            found += 1
        private = total_blocks - found
        if self.used + fresh + private > self.capacity:
            return None
        for name in chain[:found]:
            self._acquire(name)
        self._make_room(private)
        self._private += private
        self.reused_total += found
        return Lease(cached_blocks=found, private=private, held=list(chain[:found]))

    def commit(self, lease: Lease, chain: Sequence[bytes]) -> None:
        """Turn set-aside blocks into shared ones, up to the end of ``chain``.

        A block that someone else has computed meanwhile is shared and its copy given back.
        """
        for name in chain[len(lease.held) :]:
            if lease.private < 1:
                raise ValueError("the request outgrew the blocks set aside for it")
            lease.private -= 1
            self._private -= 1
            self._acquire(name)
            lease.held.append(name)

    def release(self, lease: Lease) -> None:
        """Give back all blocks; the filled ones stay cached."""
        if lease.released:
            raise ValueError("the lease was released before")
        lease.released = True
        self._private -= lease.private
        for name in reversed(lease.held):
            count = self._references[name] - 1
            if count:
                self._references[name] = count
            else:
                del self._references[name]
                self._idle[name] = None

    def _acquire(self, name: bytes) -> None:
        self._idle.pop(name, None)
        self._references[name] = self._references.get(name, 0) + 1

    def _make_room(self, blocks: int) -> None:
        while self.free < blocks:
            self._idle.popitem(last=False)
